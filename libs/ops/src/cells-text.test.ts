import { expect, test } from 'vitest';
import { cellsText } from './cells-text.ts';
import { createExporterMetrics, type FleetTold } from './exporter-metrics.ts';
import { parseMetrics } from './testing/parse-metrics.ts';

const NOTHING: FleetTold = { queues: [], reservedBytes: 3, unreadBytes: 0 };

function metricsOf(isUp: boolean, fleet: FleetTold | undefined): Promise<string> {
  return createExporterMetrics({
    process: 'exporter',
    server: { isUp, memory: undefined, reconnects: 0 },
    version: '1',
    survey: async () => {
      if (fleet === undefined) throw new Error('away');
      return fleet;
    },
  }).text();
}

test('series of each cell bear its name under one head, and those of the process are there once', async () => {
  const [a, b] = await Promise.all([metricsOf(true, NOTHING), metricsOf(false, undefined)]);
  const text = cellsText([
    { cell: 'a', text: a },
    { cell: 'b', text: b },
  ]);
  const heads = [...text.matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name);
  expect(new Set(heads).size).toBe(heads.length);
  expect(text).toMatch(/^shoal_queue_server_up\{cell="a"\} 1$/m);
  expect(text).toMatch(/^shoal_queue_server_up\{cell="b"\} 0$/m);
  expect(text).toMatch(/^shoal_queue_reserved_bytes\{cell="a"\} 3$/m);
  expect([...text.matchAll(/^shoal_build_info\{/gm)]).toHaveLength(1);
  expect(() => parseMetrics(text)).not.toThrow();
});

test('labels that are there stay, in whatever order', () => {
  const text = '# HELP shoal_queue_jobs x\n# TYPE shoal_queue_jobs gauge\nshoal_queue_jobs{queue="a b",state="x"} 1\n';
  expect(cellsText([{ cell: 'c-1', text }])).toBe(
    '# HELP shoal_queue_jobs x\n# TYPE shoal_queue_jobs gauge\nshoal_queue_jobs{cell="c-1",queue="a b",state="x"} 1\n',
  );
});
