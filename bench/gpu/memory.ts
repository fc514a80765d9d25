// The memory law on a GPU, held against the runtime's own statistics and the driver's: a process for each graph.
//   live       the law, fitted from a few shapes (libs/worker/src/measure/measure-arena.ts), against MaxInUse of the arena, for
//              each of 30 other shapes in a session to itself. Bar: 95 % within 10 %.
//   footprint  one backend walks through all shapes, in ascending order and then in no order; after each step what the
//              law predicts of the largest run since the arena was given back last against what nvidia-smi shows. Bar:
//              never less, and at most 2.2 times. With one session, and with two.
//   half       live memory in fp16 ÷ in fp32, over shapes of 16 k tokens and more: of the same operators in both
//              (cuda-fp16), and of the graph that serves (fused-fp16). Bar: 0.6.
//   peaks      not judged: the operators of one run of 64 k tokens at which more lives than ever before (--peaks: these
//              alone; --live: without the footprint).
// Exit 1 when a bar is missed. On a CPU (--device cpu) the same paths; without a driver the footprint is not judged.
//
//   memory.ts [--device gpu:0] [--kinds fused-fp16,cuda-fp32,plain-fp16,cuda-fp16] [--live] [--peaks cuda-fp16]
//   [--small]

import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { liveBytes, type MemoryLaw, type RunShape } from '@shoal/core';
import { footprintBytes } from '../../libs/core/src/budget/memory-model.ts';
import { OrtBackend, nativeOrt, openGraphOn, probeArena, readTrace } from '@shoal/inference';
import { openGraph, openModel, type GraphKind } from '@shoal/models';
import { arenaShapes, measureArena } from '../../libs/worker/src/measure/measure-arena.ts';
import { cacheDir, device, isSmall, median, partArguments, provider, round, row, usedMebibytes } from './kit.ts';

const MIB = 2 ** 20;
const LIVE_P95 = 0.1;
const MOST_FOOTPRINT = 2.2;
const MOST_HALF = 0.6;
const LARGE_TOKENS = isSmall ? 256 : 16_384;
const FIT_TOKENS = isSmall ? 1024 : 16_384;
/** Of a GPU's run; the widest and largest of plain operators in fp32 takes 16 GB. */
const WIDTHS = isSmall ? [24, 64] : [24, 48, 128, 320, 448];
const TOKENS = isSmall ? [256, 1024] : [1000, 4000, 16_384, 33_000, 65_536, 131_072];
const SHAPES: readonly RunShape[] = TOKENS.flatMap((tokens) =>
  WIDTHS.map((width) => ({ rows: Math.max(1, Math.floor(tokens / width)), width })),
);

const values = partArguments(import.meta.url, {
  kinds: { type: 'string', default: isSmall ? 'fused-fp32,plain-fp32' : 'fused-fp16,cuda-fp32,plain-fp16,cuda-fp16' },
  kind: { type: 'string' },
  peaks: { type: 'string' },
  live: { type: 'boolean', default: false },
});

interface Live extends RunShape {
  readonly peakBytes: number;
}

if (values.peaks !== undefined) await peaksOf(String(values.peaks) as GraphKind);
else if (values.kind === undefined) judgeAll(String(values.kinds).split(','));
else await measureKind(String(values.kind) as GraphKind);

// ---- all graphs ---------------------------------------------------------------------------------------------------

function judgeAll(kinds: readonly string[]): void {
  const lives = new Map(kinds.map((kind) => [kind, inProcess(kind)]));
  const full = lives.get('cuda-fp32');
  for (const kind of ['cuda-fp16', 'fused-fp16']) {
    const half = lives.get(kind);
    if (half?.length && full?.length) judgeHalf(kind, half, full);
  }
}

function judgeHalf(kind: string, half: readonly Live[], full: readonly Live[]): void {
  const ratios = half.flatMap(({ rows, width, peakBytes }, at) =>
    rows * width >= LARGE_TOKENS ? [{ width, ratio: peakBytes / full[at]!.peakBytes }] : [],
  );
  const most = Math.max(...ratios.map(({ ratio }) => ratio));
  const tooWide = ratios.filter(({ ratio }) => ratio > MOST_HALF).map(({ width }) => width);
  row({
    part: 'memory',
    half: `${kind} ÷ cuda-fp32`,
    shapes: ratios.length,
    median: round(median(ratios.map(({ ratio }) => ratio)), 3),
    most: round(most, 3),
    heldFromWidth: Math.min(...WIDTHS.filter((width) => width > Math.max(0, ...tooWide))),
    isHeld: most <= MOST_HALF,
    byWidth: Object.fromEntries(
      WIDTHS.map((width) => [
        width,
        round(Math.max(...ratios.flatMap((one) => (one.width === width ? [one.ratio] : []))), 3),
      ]),
    ),
  });
  if (most > MOST_HALF) process.exitCode = 1;
}

/** Its rows are passed on. */
function inProcess(kind: string): readonly Live[] {
  const args = [
    '--conditions=@shoal/source',
    '--disable-warning=ExperimentalWarning',
    fileURLToPath(import.meta.url),
    '--device',
    device,
    ...(isSmall ? ['--small'] : []),
    ...(values.live === true ? ['--live'] : []),
    '--kind',
    kind,
  ];
  let output = '';
  try {
    output = execFileSync(process.execPath, args, {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'inherit'],
      maxBuffer: 64 * MIB,
    });
  } catch (error) {
    output = (error as { stdout?: string }).stdout ?? '';
    process.exitCode = 1;
  }
  process.stdout.write(output);
  return output
    .split('\n')
    .flatMap((line) => (line.includes('"lives"') ? (JSON.parse(line) as { lives: Live[] }).lives : []));
}

// ---- one graph ----------------------------------------------------------------------------------------------------

async function optionsOf(kind: GraphKind) {
  process.env['ORT_DISABLE_TELEMETRY'] = '1';
  const model = await openModel('minilm', { cacheDir });
  return { graphPath: await openGraph(model, { cacheDir, kind }), provider, threads: 1, dims: model.dims } as const;
}

async function peaksOf(kind: GraphKind): Promise<void> {
  await tellPeaks(kind, await optionsOf(kind));
}

async function measureKind(kind: GraphKind): Promise<void> {
  const options = await optionsOf(kind);
  const startedMs = performance.now();
  const law = await measureArena(options, arenaShapes({ maxWidth: 512, tokens: FIT_TOKENS }));
  const fitSeconds = round((performance.now() - startedMs) / 1000, 1);
  const points = [];
  for (const shape of SHAPES) points.push(await probeArena(options, shape, 2));
  const errors = points.map((point) => liveBytes(law, point) / point.peakBytes - 1);
  const p95 = quantileOf(errors.map(Math.abs), 0.95);
  row({
    part: 'memory',
    kind,
    what: 'live',
    shapes: points.length,
    fitSeconds,
    p95: round(p95, 3),
    median: round(median(errors.map(Math.abs)), 3),
    worst: round(Math.max(...errors.map(Math.abs)), 3),
    isHeld: p95 <= LIVE_P95,
    law: brief(law),
  });
  row({
    part: 'memory',
    kind,
    lives: points.map(({ rows, width, peakBytes, heldBytes }) => ({ rows, width, peakBytes, heldBytes })),
    errors: errors.map((error) => round(error, 3)),
  });
  if (p95 > LIVE_P95) process.exitCode = 1;
  await tellPeaks(kind, options);
  if (values.live === true) return;
  for (const sessions of [1, 2]) await walk(kind, law, sessions, { ...options, sessions });
}

/** Bytes a token beside the weights, from the runtime's trace. */
async function tellPeaks(
  kind: GraphKind,
  options: Parameters<typeof openGraphOn>[2] & { readonly dims: number },
): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-memory-'));
  const addon = nativeOrt()!; // probed before
  const line = addon.line();
  const [rows, width] = [Math.floor(LARGE_TOKENS / 16), 64];
  const [graph] = await openGraphOn(addon, line, options, join(folder, 'trace'));
  const [weights] = await addon.statistics(line, graph);
  await addon.run(
    line,
    graph,
    new Int32Array(rows * width),
    new Int32Array(rows).fill(width),
    new Float32Array(rows * options.dims),
    rows,
    width,
    options.dims,
    false,
    false,
  );
  const nodes = readTrace(readFileSync(await addon.endTrace(line, graph), 'utf8')).filter(
    (node) => provider === 'cpu' || node.provider.startsWith('CUDA'),
  );
  await addon.close(line);
  rmSync(folder, { recursive: true, force: true });
  const perToken = (bytes: number): number => Math.round((bytes - weights) / (rows * width));
  const rises = nodes.flatMap(({ name, operator, inUseBytes, inUsePeakBytes, heldBytes }, at) =>
    inUsePeakBytes - (nodes[at - 1]?.inUsePeakBytes ?? weights) > rows * width * 100
      ? [{ name, operator, peak: perToken(inUsePeakBytes), after: perToken(inUseBytes), held: perToken(heldBytes) }]
      : [],
  );
  row({ part: 'memory', kind, what: 'peaks', shape: `${rows}x${width}`, rises });
}

async function walk(
  kind: GraphKind,
  law: MemoryLaw,
  sessions: number,
  options: Parameters<typeof measureArena>[0] & { readonly sessions: number; readonly dims: number },
): Promise<void> {
  const most = Math.max(10 * 512, ...SHAPES.map(({ rows, width }) => rows * width));
  const before = usedMebibytes() * MIB;
  const readMemory = async () => ({
    liveBytes: undefined,
    footprintBytes: usedMebibytes() * MIB - before,
    source: 'driver' as const,
  });
  const backend = await OrtBackend.open({
    ...options,
    binding: 'native',
    slotRows: most,
    slotTokens: most,
    readMemory,
  });
  await step(backend, { rows: 10, width: 512 }, sessions); // the canary's run, which a worker makes before it looks
  await backend.shrink();
  const loadedBytes = (await backend.memory())?.footprintBytes ?? 0;
  // of each session, since its arena was given back last; then it holds its graph alone
  const arenaLaw = { ...law, loadedBytes: 0 };
  const largestBytes = Array.from({ length: sessions }, () => footprintBytes(arenaLaw));
  const steps: {
    rows: number;
    width: number;
    shownMebibytes: number;
    predictedMebibytes: number;
    liveMebibytes: number;
    ratio: number;
  }[] = [];
  for (const shape of [...SHAPES, ...inNoOrder(SHAPES)]) {
    const liveMebibytes = Math.round((await step(backend, shape, sessions)) / MIB);
    for (const [at, use] of backend.arenas().entries())
      largestBytes[at] =
        use!.held - use!.inUse < MIB
          ? footprintBytes(arenaLaw)
          : Math.max(largestBytes[at]!, footprintBytes(arenaLaw, shape));
    const predictedBytes = loadedBytes + largestBytes.reduce((sum, bytes) => sum + bytes, 0);
    const shown = (await readMemory()).footprintBytes;
    steps.push({
      ...shape,
      shownMebibytes: Math.round(shown / MIB),
      predictedMebibytes: Math.round(predictedBytes / MIB),
      liveMebibytes,
      ratio: round(predictedBytes / shown, 3),
    });
  }
  await backend.shrink();
  const shrunkMebibytes = Math.round((await readMemory()).footprintBytes / MIB);
  await backend.stop();
  const ratios = steps.map(({ ratio }) => ratio);
  const [least, largest] = [Math.min(...ratios), Math.max(...ratios)];
  const isKnown = Number.isFinite(least);
  const isHeld = least >= 1 && largest <= MOST_FOOTPRINT;
  const givenBack = steps.filter(
    ({ shownMebibytes }) => shownMebibytes * MIB <= predictedAtRest(loadedBytes, sessions),
  ).length;
  row({
    part: 'memory',
    kind,
    what: 'footprint',
    sessions,
    steps: steps.length,
    givenBack,
    least,
    median: median(ratios),
    largest,
    isHeld: isKnown ? isHeld : 'no driver',
    loadedMebibytes: Math.round(loadedBytes / MIB),
    shrunkMebibytes,
    releasedMebibytes: Math.round((await readMemory()).footprintBytes / MIB),
  });
  row({ part: 'memory', kind, shape: `walk, ${sessions} sessions`, table: steps });
  if (isKnown && !isHeld) process.exitCode = 1;
}

/** What is still shown when every arena was given back. */
function predictedAtRest(loadedBytes: number, sessions: number): number {
  return (
    loadedBytes +
    sessions *
      footprintBytes({
        loadedBytes: 0,
        floorBytes: 0,
        slackBytes: 0,
        perToken: [{ width: 8, bytes: 1 }],
        arena: 'requested',
      })
  );
}

/** Once in each session, at the same time; the peak that the backend tells of the last. */
async function step(backend: OrtBackend, { rows, width }: RunShape, sessions: number): Promise<number> {
  const results = await Promise.all(
    Array.from({ length: sessions }, async () => {
      const slot = backend.lend()!;
      slot.ids.fill(2000, 0, rows * width);
      slot.lengths.fill(width, 0, rows);
      const result = await backend.run(slot, { rows, width });
      backend.giveBack(slot);
      if (!result.ok) throw new Error(`${rows} × ${width}: ${result.outOfVram.message}`);
      return result.memory?.liveBytes ?? 0;
    }),
  );
  return Math.max(...results);
}

function inNoOrder(shapes: readonly RunShape[]): RunShape[] {
  return shapes
    .map((shape, at) => ({ shape, key: (at * 7919) % shapes.length }))
    .sort((a, b) => a.key - b.key)
    .map(({ shape }) => shape);
}

function brief({ loadedBytes, floorBytes, slackBytes, perToken }: MemoryLaw): string {
  return (
    `${Math.round(loadedBytes / MIB)} + ${Math.round(floorBytes / MIB)} − ${Math.round(slackBytes / MIB)} MiB, ` +
    `${perToken
      .map(({ width, bytes, heldRatio }) => `${width}: ${Math.round(bytes)} × ${round(heldRatio ?? Number.NaN, 2)}`)
      .join(', ')} ` +
    'bytes a token × held'
  );
}

function quantileOf(figures: readonly number[], share: number): number {
  const sorted = [...figures].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? Number.NaN;
}
