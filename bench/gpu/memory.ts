// What a run of a shape takes: alive in the arena (the runtime's own statistics, from its trace), held by the arena, and gone
// from the device (nvidia-smi). One graph per process; shapes ascend, each runs twice. The same allocations as the worker's
// session, which has no trace running.
//
//   memory.ts --kind cuda-fp16 [--device gpu:0] [--small]

import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { Tensor } from 'onnxruntime-node';
import { openSession, readTrace, type TracedNode } from '@shoal/inference';
import { openGraph, openModel, type GraphKind } from '@shoal/models';
import { cacheDir, isSmall, provider, row, usedMebibytes } from './kit.ts';

const { values } = parseArgs({ strict: false, options: { kind: { type: 'string', default: 'cuda-fp16' } } });
const kind = String(values.kind) as GraphKind;
const WIDTHS = isSmall ? [16, 64] : [16, 32, 64, 128, 256, 512];
const TOKENS = isSmall ? [256, 1024] : [1024, 4096, 16_384, 32_768, 65_536, 131_072];

process.env['ORT_DISABLE_TELEMETRY'] = '1';
process.env['NVIDIA_TF32_OVERRIDE'] ??= '0';
const model = await openModel('minilm', { cacheDir });
const folder = mkdtempSync(join(tmpdir(), 'shoal-memory-'));
const beforeMebibytes = usedMebibytes();
const session = await openSession({ graphPath: await openGraph(model, { cacheDir, kind }), provider, threads: 1 }, folder);
const loadedMebibytes = usedMebibytes();
const shapes = TOKENS.flatMap((tokens) => WIDTHS.map((width) => ({ rows: Math.max(1, Math.floor(tokens / width)), width })));
shapes.unshift({ rows: 1, width: 8 });
const steps: { rows: number; width: number; usedMebibytes: number; outOfMemory?: string }[] = [];
for (const { rows, width } of shapes) {
  const feeds = { input_ids: new Tensor('int32', new Int32Array(rows * width).fill(2000), [rows, width]), lengths: new Tensor('int32', new Int32Array(rows).fill(width), [rows]) };
  try {
    for (let at = 0; at < 2; at++) await session.run(feeds);
    steps.push({ rows, width, usedMebibytes: usedMebibytes() });
  } catch (error) {
    steps.push({ rows, width, usedMebibytes: usedMebibytes(), outOfMemory: String(error).slice(0, 200) });
    break;
  }
}
session.endProfiling();
const nodes = readTrace(readFileSync(join(folder, readdirSync(folder)[0]!), 'utf8'));
await session.release();
const releasedMebibytes = usedMebibytes();
rmSync(folder, { recursive: true, force: true });
const runs = inRuns(nodes.filter((node) => node.provider !== 'CPUExecutionProvider' || provider === 'cpu'));
row({ part: 'memory', kind, beforeMebibytes, loadedMebibytes, releasedMebibytes, shapes: shapes.length, runsTraced: runs.length });
for (const [at, step] of steps.entries()) {
  const [first = [], second = []] = [runs[2 * at], runs[2 * at + 1]];
  row({ part: 'memory', kind, ...step, liveBytes: most(second, 'inUseBytes'), firstLiveBytes: most(first, 'inUseBytes'), peakBytes: most(second, 'inUsePeakBytes'), heldBytes: most(second, 'heldBytes') });
}

/** The trace has one node after the other; a run begins where its first node comes again. */
function inRuns(all: readonly TracedNode[]): TracedNode[][] {
  const first = all[0]?.name;
  const found: TracedNode[][] = [];
  for (const node of all) {
    if (node.name === first) found.push([]);
    found.at(-1)?.push(node);
  }
  return found;
}

function most(ofRun: readonly TracedNode[], field: 'inUseBytes' | 'inUsePeakBytes' | 'heldBytes'): number {
  return ofRun.reduce((largest, node) => Math.max(largest, node[field]), 0);
}
