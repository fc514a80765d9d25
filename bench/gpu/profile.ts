// Where the time of one 64 k batch goes, by operator: the runtime's trace with every kernel launched alone
// (CUDA_LAUNCH_BLOCKING=1, set by main.ts), so that a node's time is its kernels'. The sum is larger than a run without
// it.
//
//   profile.ts --kind fused-fp16 [--rows 1024 --width 64] [--device gpu:0] [--small]

import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Tensor } from 'onnxruntime-node';
import { openSession, readTrace } from '@shoal/inference';
import { openGraph, openModel, type GraphKind } from '@shoal/models';
import { cacheDir, isSmall, partArguments, provider, round, row } from './kit.ts';

const values = partArguments(import.meta.url, {
  kind: { type: 'string', default: 'fused-fp16' },
  rows: { type: 'string', default: '1024' },
  width: { type: 'string', default: '64' },
});
const [rows, width] = isSmall ? [8, 32] : [Number(values.rows), Number(values.width)];
process.env['ORT_DISABLE_TELEMETRY'] = '1';
process.env['NVIDIA_TF32_OVERRIDE'] ??= '0';
const model = await openModel('minilm', { cacheDir });
const folder = mkdtempSync(join(tmpdir(), 'shoal-profile-'));
const session = await openSession(
  { graphPath: await openGraph(model, { cacheDir, kind: String(values.kind) as GraphKind }), provider, threads: 1 },
  folder,
);
const lengths = Int32Array.from({ length: rows }, (_, at) => width - (at % 8));
const feeds = {
  input_ids: new Tensor('int32', new Int32Array(rows * width).fill(2000), [rows, width]),
  lengths: new Tensor('int32', lengths, [rows]),
};
const RUNS = isSmall ? 3 : 12;
const runMs: number[] = [];
for (let at = 0; at < RUNS; at++) {
  const startedMs = performance.now();
  await session.run(feeds);
  runMs.push(performance.now() - startedMs);
}
session.endProfiling();
const nodes = readTrace(readFileSync(join(folder, readdirSync(folder)[0]!), 'utf8'));
await session.release();
rmSync(folder, { recursive: true, force: true });
const perRun = nodes.length / RUNS;
const later = nodes.slice(Math.round(perRun) * 2); // the first runs choose kernels
const byOperator = new Map<string, { microseconds: number; nodes: number }>();
for (const { operator, name, provider: ranOn, microseconds } of later) {
  const label = `${operator === 'MatMul' ? matrixOf(name) : operator} (${ranOn.replace('ExecutionProvider', '')})`;
  const sum = byOperator.get(label) ?? { microseconds: 0, nodes: 0 };
  byOperator.set(label, { microseconds: sum.microseconds + microseconds, nodes: sum.nodes + 1 });
}
const total = later.reduce((sum, node) => sum + node.microseconds, 0);
const table = [...byOperator]
  .sort(([, a], [, b]) => b.microseconds - a.microseconds)
  .map(([operator, { microseconds, nodes: count }]) => ({
    operator,
    microsecondsPerRun: round(microseconds / (RUNS - 2)),
    nodesPerRun: round(count / (RUNS - 2), 1),
    share: round(microseconds / total, 3),
  }));
row({
  part: 'profile',
  kind: values.kind,
  shape: `${rows}x${width}`,
  isBlocking: process.env['CUDA_LAUNCH_BLOCKING'] === '1',
  runMs: runMs.map((ms) => round(ms, 2)),
  sumOfNodesMs: round(total / (RUNS - 2) / 1000, 2),
  table,
});

function matrixOf(name: string): string {
  const part = /(attended|wide|narrow|sum_row)$/.exec(name)?.[1];
  return part === undefined ? 'MatMul' : `MatMul ${part}`;
}
