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

test('payload servers are told with how many workers they fail for, and what they hold', async () => {
  const held = { usedBytes: 3, maxBytes: 4 };
  const full = { name: 'a:6379', workers: ['one', 'two'], failing: [{}], memory: held };
  const payloadServers = [full, { name: 's3://b', workers: ['one'], failing: [] }];
  const text = await metricsOf(true, { ...NOTHING, payloadServers });
  expect(text.match(/^shoal_payload_server.*$/gm)).toEqual([
    'shoal_payload_server_workers{server="a:6379",state="answers"} 1',
    'shoal_payload_server_workers{server="a:6379",state="fails"} 1',
    'shoal_payload_server_workers{server="s3://b",state="answers"} 1',
    'shoal_payload_server_workers{server="s3://b",state="fails"} 0',
    'shoal_payload_server_used_bytes{server="a:6379"} 3',
    'shoal_payload_server_limit_bytes{server="a:6379"} 4',
  ]);
});

test('labels that are there stay, in whatever order', () => {
  const text = '# HELP shoal_queue_jobs x\n# TYPE shoal_queue_jobs gauge\nshoal_queue_jobs{queue="a b",state="x"} 1\n';
  expect(cellsText([{ cell: 'c-1', text }])).toBe(
    '# HELP shoal_queue_jobs x\n# TYPE shoal_queue_jobs gauge\nshoal_queue_jobs{cell="c-1",queue="a b",state="x"} 1\n',
  );
});
