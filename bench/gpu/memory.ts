// The memory law on a GPU, held against the runtime's own statistics and the driver's: a process for each graph.
//   live       the law, fitted from a few shapes (libs/worker/src/measure-arena.ts), against MaxInUse of the arena, for each of 30 other
//              shapes in a session to itself. Bar: 95 % within 10 %.
//   footprint  one backend walks through all shapes, in ascending order and then in no order; after each step what the law predicts of
//              the largest run since the arena was given back last against what nvidia-smi shows. Bar: never less, and at most 2.2 times. With one session, and with two.
//   half       live memory in fp16 ÷ in fp32, over shapes of 16 k tokens and more. Bar: 0.6.
// Exit 1 when a bar is missed. On a CPU (--device cpu) the same paths; without a driver the footprint is not judged.
//
//   memory.ts [--device gpu:0] [--kinds fused-fp16,cuda-fp32,plain-fp16] [--small]

import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { footprintBytes, liveBytes, type MemoryLaw, type RunShape } from '@shoal/core';
import { OrtBackend, probeArena } from '@shoal/inference';
import { openGraph, openModel, type GraphKind } from '@shoal/models';
import { arenaShapes, measureArena } from '../../libs/worker/src/measure-arena.ts';
import { cacheDir, device, isSmall, median, provider, round, row, usedMebibytes } from './kit.ts';

const MIB = 2 ** 20;
const LIVE_P95 = 0.1;
const MOST_FOOTPRINT = 2.2;
const MOST_HALF = 0.6;
const LARGE_TOKENS = isSmall ? 256 : 16_384;
const FIT_TOKENS = isSmall ? 1024 : 16_384;
/** Of a GPU's run; the widest and largest of plain operators in fp32 takes 16 GB. */
const WIDTHS = isSmall ? [24, 64] : [24, 48, 128, 320, 448];
const TOKENS = isSmall ? [256, 1024] : [1000, 4000, 16_384, 33_000, 65_536, 131_072];
const SHAPES: readonly RunShape[] = TOKENS.flatMap((tokens) => WIDTHS.map((width) => ({ rows: Math.max(1, Math.floor(tokens / width)), width })));

const { values } = parseArgs({ strict: false, options: { kinds: { type: 'string', default: isSmall ? 'fused-fp32,plain-fp32' : 'fused-fp16,cuda-fp32,plain-fp16' }, kind: { type: 'string' } } });

interface Live extends RunShape {
  readonly peakBytes: number;
}

if (values.kind === undefined) judgeAll(String(values.kinds).split(','));
else await measureKind(String(values.kind) as GraphKind);

// ---- all graphs ---------------------------------------------------------------------------------------------------

function judgeAll(kinds: readonly string[]): void {
  const lives = new Map(kinds.map((kind) => [kind, inProcess(kind)]));
  const [half, full] = [lives.get('fused-fp16'), lives.get('cuda-fp32')];
  if (half === undefined || full === undefined) return;
  const ratios = half.flatMap((live, at) => (live.rows * live.width >= LARGE_TOKENS ? [live.peakBytes / full[at]!.peakBytes] : []));
  const most = Math.max(...ratios);
  row({ part: 'memory', half: 'fused-fp16 ÷ cuda-fp32', shapes: ratios.length, median: round(median(ratios), 3), most: round(most, 3), isHeld: most <= MOST_HALF });
  if (most > MOST_HALF) process.exitCode = 1;
}

/** Its rows are passed on. */
function inProcess(kind: string): readonly Live[] {
  const args = ['--conditions=@shoal/source', '--disable-warning=ExperimentalWarning', fileURLToPath(import.meta.url), '--device', device, ...(isSmall ? ['--small'] : []), '--kind', kind];
  let output = '';
  try {
    output = execFileSync(process.execPath, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'], maxBuffer: 64 * MIB });
  } catch (error) {
    output = (error as { stdout?: string }).stdout ?? '';
    process.exitCode = 1;
  }
  process.stdout.write(output);
  return output.split('\n').flatMap((line) => (line.includes('"lives"') ? (JSON.parse(line) as { lives: Live[] }).lives : []));
}

// ---- one graph ----------------------------------------------------------------------------------------------------

async function measureKind(kind: GraphKind): Promise<void> {
  process.env['ORT_DISABLE_TELEMETRY'] = '1';
  const model = await openModel('minilm', { cacheDir });
  const options = { graphPath: await openGraph(model, { cacheDir, kind }), provider, threads: 1, dims: model.dims } as const;
  const startedMs = performance.now();
  const law = await measureArena(options, arenaShapes({ maxWidth: 512, tokens: FIT_TOKENS }));
  const fitSeconds = round((performance.now() - startedMs) / 1000, 1);
  const points = [];
  for (const shape of SHAPES) points.push(await probeArena(options, shape, 2));
  const errors = points.map((point) => liveBytes(law, point) / point.peakBytes - 1);
  const p95 = quantileOf(errors.map(Math.abs), 0.95);
  row({ part: 'memory', kind, what: 'live', shapes: points.length, fitSeconds, p95: round(p95, 3), median: round(median(errors.map(Math.abs)), 3), worst: round(Math.max(...errors.map(Math.abs)), 3), isHeld: p95 <= LIVE_P95, law: brief(law) });
  row({ part: 'memory', kind, lives: points.map(({ rows, width, peakBytes, heldBytes }) => ({ rows, width, peakBytes, heldBytes })), errors: errors.map((error) => round(error, 3)) });
  if (p95 > LIVE_P95) process.exitCode = 1;
  for (const sessions of [1, 2]) await walk(kind, law, sessions, { ...options, sessions });
}

async function walk(kind: GraphKind, law: MemoryLaw, sessions: number, options: Parameters<typeof measureArena>[0] & { readonly sessions: number; readonly dims: number }): Promise<void> {
  const most = Math.max(10 * 512, ...SHAPES.map(({ rows, width }) => rows * width));
  const before = usedMebibytes() * MIB;
  const readMemory = async () => ({ liveBytes: undefined, footprintBytes: usedMebibytes() * MIB - before, source: 'driver' as const });
  const backend = await OrtBackend.open({ ...options, binding: 'native', slotRows: most, slotTokens: most, readMemory });
  await step(backend, { rows: 10, width: 512 }, sessions); // the canary's run, which a worker makes before it looks
  await backend.shrink();
  const loadedBytes = (await backend.memory())?.footprintBytes ?? 0;
  // of each session, since its arena was given back last; then it holds its graph alone
  const largestBytes = Array.from({ length: sessions }, () => 0);
  const steps: { rows: number; width: number; shownMebibytes: number; predictedMebibytes: number; liveMebibytes: number; ratio: number }[] = [];
  for (const shape of [...SHAPES, ...inNoOrder(SHAPES)]) {
    const liveMebibytes = Math.round((await step(backend, shape, sessions)) / MIB);
    for (const [at, use] of backend.arenas().entries()) largestBytes[at] = use!.held - use!.inUse < MIB ? 0 : Math.max(largestBytes[at]!, footprintBytes({ ...law, loadedBytes: 0 }, shape));
    const predictedBytes = loadedBytes + largestBytes.reduce((sum, bytes) => sum + bytes, 2 * MIB);
    const shown = (await readMemory()).footprintBytes;
    steps.push({ ...shape, shownMebibytes: Math.round(shown / MIB), predictedMebibytes: Math.round(predictedBytes / MIB), liveMebibytes, ratio: round(predictedBytes / shown, 3) });
  }
  await backend.shrink();
  const shrunkMebibytes = Math.round((await readMemory()).footprintBytes / MIB);
  await backend.stop();
  const ratios = steps.map(({ ratio }) => ratio);
  const [least, largest] = [Math.min(...ratios), Math.max(...ratios)];
  const isKnown = Number.isFinite(least);
  const isHeld = least >= 1 && largest <= MOST_FOOTPRINT;
  row({ part: 'memory', kind, what: 'footprint', sessions, steps: steps.length, least, median: median(ratios), largest, isHeld: isKnown ? isHeld : 'no driver', loadedMebibytes: Math.round(loadedBytes / MIB), shrunkMebibytes, releasedMebibytes: Math.round((await readMemory()).footprintBytes / MIB) });
  row({ part: 'memory', kind, shape: `walk, ${sessions} sessions`, table: steps });
  if (isKnown && !isHeld) process.exitCode = 1;
}

/** Once in each session, at the same time; the peak that the backend tells of the last. */
async function step(backend: OrtBackend, { rows, width }: RunShape, sessions: number): Promise<number> {
  const results = await Promise.all(Array.from({ length: sessions }, async () => {
    const slot = backend.lend()!;
    slot.ids.fill(2000, 0, rows * width);
    slot.lengths.fill(width, 0, rows);
    const result = await backend.run(slot, { rows, width });
    backend.giveBack(slot);
    if (!result.ok) throw new Error(`${rows} × ${width}: ${result.outOfVram.message}`);
    return result.memory?.liveBytes ?? 0;
  }));
  return Math.max(...results);
}

function inNoOrder(shapes: readonly RunShape[]): RunShape[] {
  return shapes.map((shape, at) => ({ shape, key: (at * 7919) % shapes.length })).sort((a, b) => a.key - b.key).map(({ shape }) => shape);
}

function brief({ loadedBytes, floorBytes, slackBytes, perToken }: MemoryLaw): string {
  return `${Math.round(loadedBytes / MIB)} + ${Math.round(floorBytes / MIB)} − ${Math.round(slackBytes / MIB)} MiB, ${perToken.map(({ width, bytes }) => `${width}: ${Math.round(bytes)}`).join(', ')} bytes a token`;
}

function quantileOf(figures: readonly number[], share: number): number {
  const sorted = [...figures].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? Number.NaN;
}
