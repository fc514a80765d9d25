// The two bindings of ONNX Runtime held against each other: ours (native/ort-session) and the package's own. Each side
// in processes of its own, in alternating order; the same graph, the same ragged corpus, sorted and cut by one budget;
// vectors are compared before any clock counts. Throughput, one short text by itself, and what the process held at
// most.
//   node --conditions=@shoal/source bench/device/ort-session.ts [--device cpu|gpu:0] [--texts 512] [--budget 1024] [--sessions
//   1] [--threads 2] [--rounds 3] [--kind fused-fp32]
// Exit 1 when the sides' vectors differ. On a GPU also one text with what is launched recorded and replayed (CUDA
// graph), where the provider does it.

import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { OrtBackend, nativeOrt, nativeOrtProblem, openGraphOn, type Binding } from '@shoal/inference';
import { openGraph, openModel, openTokenizer, type GraphKind } from '@shoal/models';
import { OF_EVERY_STEP, readArguments } from '../rig/arguments.ts';
import { leastCosine } from '../similarity/cosine.ts';
import { median, quantile, round, sortedBatches } from '../gpu/kit.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';
import { MAX_TOKENS, cacheDir } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  ...OF_EVERY_STEP,
  device: { type: 'string', default: 'cpu' },
  texts: { type: 'string', default: '512' },
  budget: { type: 'string', default: '1024' },
  sessions: { type: 'string', default: '1' },
  threads: { type: 'string', default: '2' },
  rounds: { type: 'string', default: '3' },
  kind: { type: 'string' },
  side: { type: 'string' },
  vectors: { type: 'string' },
});
const isGpu = args.device !== 'cpu';
const provider = isGpu ? 'cuda' : 'cpu';
const kind = (args.kind ?? (isGpu ? 'fused-fp16' : 'fused-fp32')) as GraphKind;
const [texts, budget, sessions, threads, rounds] = [
  args.texts,
  args.budget,
  args.sessions,
  args.threads,
  args.rounds,
].map(Number) as [number, number, number, number, number];
const ONE_TEXT_RUNS = 300;
const ONE_TEXT_TOKENS = 16;

type Side = Binding;
const SIDES: readonly Side[] = ['stock', 'native'];

interface Found {
  readonly side: Side;
  readonly openMs: number;
  readonly textsPerSecond: number;
  /** Of all threads, in the same time: what other work on the machine changes least. */
  readonly cpuMsPerText: number;
  readonly oneTextMs: { readonly p50: number; readonly p99: number };
  /** From the call to the answer, the hop between threads with it. */
  readonly oneTextCallMs: { readonly p50: number; readonly p99: number };
  readonly peakMb: number;
  readonly replayedMs?: { readonly p50: number; readonly p99: number } | string;
}

if (args.side === undefined) compare();
else await measure(args.side as Side);

function compare(): void {
  if (nativeOrt() === undefined) throw new Error(`nothing to compare: ${nativeOrtProblem()}`);
  const found = new Map<Side, Found[]>(SIDES.map((side) => [side, []]));
  const vectors = new Map<Side, Float32Array>();
  for (let at = 0; at < rounds; at++) {
    for (const side of at % 2 === 0 ? SIDES : SIDES.toReversed()) {
      const path = join(tmpdir(), `shoal-ort-session-${process.pid}-${side}.f32`);
      const output = execFileSync(
        process.execPath,
        [
          '--conditions=@shoal/source',
          '--disable-warning=ExperimentalWarning',
          fileURLToPath(import.meta.url),
          ...process.argv.slice(2),
          '--side',
          side,
          '--vectors',
          path,
        ],
        { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] },
      );
      const bytes = readFileSync(path);
      rmSync(path);
      vectors.set(side, new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4));
      found.get(side)!.push(JSON.parse(output) as Found);
      process.stderr.write(output);
    }
  }
  const cosine = Math.min(...SIDES.slice(1).map((side) => leastCosine(vectors.get(side)!, vectors.get('stock')!, 384)));
  const figures = SIDES.map((side) => {
    const rows = found.get(side)!;
    const raw = rows.map(({ textsPerSecond }) => textsPerSecond);
    const over = (value: (row: Found) => number): number => round(median(rows.map(value)), 3);
    return {
      side,
      textsPerSecond: median(raw),
      raw,
      cpuMsPerText: over((r) => r.cpuMsPerText),
      openMs: over((r) => r.openMs),
      oneTextMs: over((r) => r.oneTextMs.p50),
      oneTextP99Ms: over((r) => r.oneTextMs.p99),
      oneTextCallMs: over((r) => r.oneTextCallMs.p50),
      oneTextCallP99Ms: over((r) => r.oneTextCallMs.p99),
      peakMb: over((r) => r.peakMb),
      replayed: rows[0]?.replayedMs,
    };
  });
  const [stock, native] = figures as [(typeof figures)[0], (typeof figures)[0]];
  const better = {
    textsPerSecond: round(native.textsPerSecond / stock.textsPerSecond, 3),
    cpu: round(native.cpuMsPerText / stock.cpuMsPerText, 3),
    oneTextCall: round(native.oneTextCallMs / stock.oneTextCallMs, 3),
    peak: round(native.peakMb / stock.peakMb, 3),
  };
  process.stdout.write(
    `${JSON.stringify({ bench: 'ort-session', device: args.device, kind, texts, budget, sessions, threads, leastCosine: round(cosine, 7), nativeToStock: better, figures })}\n`,
  );
  if (!(cosine > 0.99999)) process.exitCode = 1;
}

async function measure(side: Side): Promise<void> {
  const model = await openModel('minilm', { cacheDir });
  const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
  const rows = raggedCorpus(join(model.folder, 'tokenizer.json'), texts, 1).map(
    ({ text }) => tokenizer.encode(text).ids,
  );
  const batches = sortedBatches(rows, budget);
  const graphPath = await openGraph(model, { cacheDir, kind });
  const beganMs = performance.now();
  const backend = await OrtBackend.open({
    binding: side,
    graphPath,
    provider,
    dims: model.dims,
    threads,
    sessions,
    slotRows: Math.min(texts, 32_768),
    slotTokens: Math.max(budget, MAX_TOKENS),
  });
  await backend.prepare(budget);
  const openMs = performance.now() - beganMs;
  const { dims } = backend;
  const vectors = new Float32Array(rows.length * dims);

  await runAll();
  writeFileSync(String(args.vectors), vectors);
  const startedMs = performance.now();
  const cpuBefore = process.cpuUsage();
  await runAll();
  const seconds = (performance.now() - startedMs) / 1000;
  const cpu = process.cpuUsage(cpuBefore);
  const cpuMsPerText = round((cpu.user + cpu.system) / 1000 / rows.length, 3);
  const runs: number[] = [];
  const calls: number[] = [];
  const slot = backend.lend()!;
  slot.ids.fill(2000, 0, ONE_TEXT_TOKENS);
  slot.lengths[0] = ONE_TEXT_TOKENS;
  for (let at = 0; at < ONE_TEXT_RUNS; at++) {
    const calledMs = performance.now();
    const result = await backend.run(slot, { rows: 1, width: ONE_TEXT_TOKENS });
    if (!result.ok) throw new Error(result.outOfVram.message);
    calls.push(performance.now() - calledMs);
    runs.push(result.runMs);
  }
  const oneText = slot.embeddings.slice(0, dims);
  const peakMb = round(Number(/^VmHWM:\s+(\d+)/m.exec(readFileSync('/proc/self/status', 'latin1'))![1]) / 1024);
  await backend.stop();
  const replayedMs =
    isGpu && side === 'native'
      ? await replay(graphPath, dims, oneText).catch((error: Error) => error.message.slice(0, 300))
      : undefined;
  const found: Found = {
    side,
    openMs: round(openMs),
    textsPerSecond: round(rows.length / seconds, 1),
    cpuMsPerText,
    oneTextMs: spread(runs),
    oneTextCallMs: spread(calls),
    peakMb,
    ...(replayedMs !== undefined && { replayedMs }),
  };
  process.stdout.write(`${JSON.stringify(found)}\n`);

  /** Every batch once, one queued behind each that runs. */
  async function runAll(): Promise<void> {
    let next = 0;
    const lane = async (): Promise<void> => {
      for (let batch = batches[next++]; batch !== undefined; batch = batches[next++]) {
        const own = backend.lend()!;
        own.ids.fill(0, 0, batch.rows.length * batch.width);
        for (const [at, index] of batch.rows.entries()) {
          own.ids.set(rows[index]!, at * batch.width);
          own.lengths[at] = rows[index]!.length;
        }
        const result = await backend.run(own, { rows: batch.rows.length, width: batch.width });
        if (!result.ok) throw new Error(result.outOfVram.message);
        for (const [at, index] of batch.rows.entries())
          vectors.set(own.embeddings.subarray(at * dims, (at + 1) * dims), index * dims);
        backend.giveBack(own);
      }
    };
    await Promise.all(Array.from({ length: sessions + 1 }, lane));
  }
}

/** One text with what is launched recorded once and replayed; refused with the provider's words where it cannot. */
async function replay(graphPath: string, dims: number, expected: Float32Array): Promise<{ p50: number; p99: number }> {
  const addon = nativeOrt()!;
  const line = addon.line();
  try {
    const [graph] = await openGraphOn(addon, line, {
      graphPath,
      provider,
      threads: 1,
      ownsStream: true,
      cuda: { enable_cuda_graph: '1', has_user_compute_stream: '1' },
    });
    const [ids, lengths, embeddings] = [
      new Int32Array(ONE_TEXT_TOKENS).fill(2000),
      Int32Array.of(ONE_TEXT_TOKENS),
      new Float32Array(dims),
    ];
    const times: number[] = [];
    for (let at = 0; at < ONE_TEXT_RUNS; at++) {
      embeddings.fill(Number.NaN);
      const [runMs] = await addon.run(line, graph, ids, lengths, embeddings, 1, ONE_TEXT_TOKENS, dims, false, true);
      const cosine = leastCosine(embeddings, expected, dims);
      if (!(cosine > 0.9999)) throw new Error(`what was replayed gave another vector in run ${at}: cosine ${cosine}`);
      times.push(runMs);
    }
    return spread(times);
  } finally {
    await addon.close(line);
  }
}

/** Without the first fifth, which warms up. */
function spread(times: readonly number[]): { p50: number; p99: number } {
  const warm = times.slice(times.length / 5);
  return { p50: round(median(warm), 3), p99: round(quantile(warm, 0.99), 3) };
}
