// What a start costs, and whether a graph that the runtime has optimised before would make the second one faster.
//   sessions  the same graph as it is built here, as the runtime writes it once it is optimised (.onnx), and in the
//             runtime's own format (.ort), mapped: creation and first run, each in a process of its own, in turns; the
//             vectors have to be the same.
//   workers   from the fork to `ready`: the first start (no graph built yet, nothing known of the device) and second
//             ones.
// `saved` is what the fastest form takes off a second start of the worker, as a share of it; 0.15 would be worth a
// cache of such files.
//
//   node --conditions=@shoal/source bench/queue/start-up.ts [--device cpu|gpu:0] [--rounds 5] [--encoders ort,native]
//   [--built] [--model minilm]
// --built: workers as a checkout starts them, from the bundles of `npm run build`; without it from the sources, whose
//   types Node takes away at each start.

import { execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { openGraph, openModel, type GraphKind } from '@shoal/models';
import { startTestServer } from '@shoal/queue/testing';
import { OF_EVERY_STEP, readArguments } from '../rig/arguments.ts';
import { leastCosine } from '../similarity/cosine.ts';
import { median, round } from '../gpu/kit.ts';
import { cacheDir } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  ...OF_EVERY_STEP,
  device: { type: 'string', default: 'cpu' },
  rounds: { type: 'string', default: '5' },
  encoders: { type: 'string' },
  model: { type: 'string', default: 'minilm' },
  built: { type: 'boolean', default: false },
  session: { type: 'string' },
  level: { type: 'string' },
  write: { type: 'string' },
});
const device = String(args.device);
const isGpu = device !== 'cpu';
const rounds = Number(args.rounds);
const WORTH = 0.15;
const modelName = String(args.model);

interface Opened {
  readonly createMs: number;
  readonly firstRunMs: number;
  readonly vector: readonly number[];
}

if (args.session === undefined) await measure();
else
  await openOne(
    String(args.session),
    String(args.level) as 'all' | 'disabled',
    args.write === undefined ? undefined : String(args.write),
  );

async function measure(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-start-up-'));
  try {
    const sessions = await measureSessions(folder);
    process.stderr.write(`${JSON.stringify({ device, sessions })}\n`); // where time runs out before the end
    const workers = await measureWorkers(folder);
    const second = Math.min(...workers.map(({ secondMs }) => secondMs));
    const saved = round(
      (sessions['built']!.createMs - Math.min(...Object.values(sessions).map(({ createMs }) => createMs))) / second,
      3,
    );
    const isWorthIt = saved >= WORTH;
    const report = {
      part: 'start-up',
      model: modelName,
      device,
      isBuilt: args.built,
      rounds,
      sessions,
      workers,
      saved,
      isWorthIt,
    };
    process.stdout.write(`${JSON.stringify(report)}\n`);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

// ---- sessions -----------------------------------------------------------------------------------------------------

async function measureSessions(
  folder: string,
): Promise<
  Readonly<Record<string, { readonly createMs: number; readonly firstRunMs: number; readonly raw: readonly number[] }>>
> {
  const kind: GraphKind = isGpu ? 'fused-fp16' : 'fused-fp32';
  const model = await openModel(modelName, { cacheDir });
  const built = await openGraph(model, { cacheDir, kind });
  const [optimised, own] = [join(folder, 'optimised.onnx'), join(folder, 'optimised.ort')];
  const reference = inProcess(built, 'all', optimised);
  inProcess(built, 'all', own);
  const forms = { built: [built, 'all'], optimised: [optimised, 'disabled'], ort: [own, 'disabled'] } as const;
  const found = new Map<string, Opened[]>(Object.keys(forms).map((form) => [form, []]));
  for (let at = 0; at < rounds; at++) {
    for (const [form, [path, level]] of at % 2 === 0 ? Object.entries(forms) : Object.entries(forms).toReversed()) {
      const opened = inProcess(path, level);
      if (!(leastCosine(Float32Array.from(opened.vector), Float32Array.from(reference.vector), model.dims) > 0.999_999))
        throw new Error(`${form} gives other vectors`);
      found.get(form)!.push(opened);
    }
  }
  return Object.fromEntries(
    [...found].map(([form, opened]) => [
      form,
      {
        createMs: round(median(opened.map(({ createMs }) => createMs))),
        firstRunMs: round(median(opened.map(({ firstRunMs }) => firstRunMs))),
        raw: opened.map(({ createMs }) => round(createMs)),
      },
    ]),
  );
}

function inProcess(path: string, level: string, write?: string): Opened {
  const own = [
    '--conditions=@shoal/source',
    '--disable-warning=ExperimentalWarning',
    fileURLToPath(import.meta.url),
    '--device',
    device,
    '--session',
    path,
    '--level',
    level,
    ...(write === undefined ? [] : ['--write', write]),
  ];
  return JSON.parse(
    execFileSync(process.execPath, own, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] }),
  ) as Opened;
}

/** With the options of libs/inference/src/ort-session.ts. */
async function openOne(
  path: string,
  graphOptimizationLevel: 'all' | 'disabled',
  optimizedModelFilePath: string | undefined,
): Promise<void> {
  process.env['ORT_DISABLE_TELEMETRY'] = '1';
  const { InferenceSession, Tensor } = await import('onnxruntime-node');
  const startedMs = performance.now();
  const session = await InferenceSession.create(path, {
    executionProviders: [isGpu ? { name: 'cuda', deviceId: 0 } : 'cpu'],
    enableMemPattern: false,
    interOpNumThreads: 1,
    intraOpNumThreads: 1,
    graphOptimizationLevel,
    logSeverityLevel: 4,
    ...(optimizedModelFilePath !== undefined && { optimizedModelFilePath }),
    extra: {
      session: {
        intra_op: { allow_spinning: '0' },
        ...(path.endsWith('.ort') && { use_memory_mapped_ort_model: '1', use_ort_model_bytes_for_initializers: '1' }),
      },
    },
  });
  const createdMs = performance.now();
  const { embeddings } = await session.run({
    input_ids: new Tensor('int32', new Int32Array(16).fill(101), [1, 16]),
    lengths: new Tensor('int32', Int32Array.of(16), [1]),
  });
  const ranMs = performance.now();
  process.stdout.write(
    JSON.stringify({
      createMs: createdMs - startedMs,
      firstRunMs: ranMs - createdMs,
      vector: [...(embeddings!.data as Float32Array)],
    } satisfies Opened),
  );
}

// ---- workers ------------------------------------------------------------------------------------------------------

interface Worker {
  readonly encoder: string;
  readonly device: string;
  readonly firstMs: number;
  readonly secondMs: number;
  readonly raw: readonly number[];
}

/** The model is in the cache and nothing else: what a start builds or measures, the next one finds. */
async function measureWorkers(folder: string): Promise<Worker[]> {
  const server = await startTestServer();
  const workers: Worker[] = [];
  for (const encoder of String(args.encoders ?? (isGpu ? 'ort,native' : 'ort')).split(',')) {
    const own = mkdtempSync(join(folder, 'cache-'));
    symlinkSync(join(cacheDir, 'models'), join(own, 'models'));
    const starts: { readonly device: string; readonly ms: number }[] = [];
    for (let at = 0; at < 1 + rounds; at++)
      starts.push(await startOnce({ SHOAL_REDIS_URL: server.url, SHOAL_CACHE_DIR: own, SHOAL_ENCODER: encoder }));
    const [first, ...seconds] = starts.map(({ ms }) => round(ms));
    workers.push({ encoder, device: starts[0]!.device, firstMs: first!, secondMs: median(seconds), raw: seconds });
    process.stderr.write(`${JSON.stringify(workers.at(-1))}\n`);
  }
  await server.stop();
  return workers;
}

async function startOnce(
  environment: Readonly<Record<string, string>>,
): Promise<{ readonly device: string; readonly ms: number }> {
  const startedMs = performance.now();
  const app = isGpu ? 'gpu-worker' : 'cpu-worker';
  const main = args.built === true ? `dist/programs/${app}.js` : `apps/${app}/src/main.ts`;
  const worker = fork(fileURLToPath(new URL(`../../${main}`, import.meta.url)), [], {
    ...(args.built === true && { execArgv: [] }),
    env: {
      ...process.env,
      ...environment,
      SHOAL_DEVICE: device,
      SHOAL_MODEL: modelName,
      SHOAL_LOG_LEVEL: 'warn',
      SHOAL_METRICS_PORT: '0',
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  const [report] = (await once(worker, 'message')) as [
    { readonly kind: string; readonly device: string; readonly failure?: { readonly message: string } },
  ];
  const ms = performance.now() - startedMs;
  const exit = once(worker, 'exit');
  worker.kill('SIGTERM');
  await exit;
  if (report.kind !== 'ready') throw new Error(report.failure?.message);
  return { device: report.device, ms };
}
