// From client to client: producers put jobs on a queue server with an append-only file, one worker per device serves
// them with everything on (checks of every input, leases, deadlines, commit under the lease, announcements, metrics),
// clients fetch each result once and check every row. Several windows are measured in one go, after a warm-up.
//
//   end-to-end.ts [--device gpu:0[,gpu:1…]] [--devices N] [--form tokens|inline] [--corpus ragged|128|512] [--job-texts 256]
//       [--clients 3] [--in-flight 96] [--dtype f32|f16] [--windows 3] [--seconds 6] [--warm 5] [--settings
//       '{"SHOAL_DEVICE_SESSIONS":"2"}'] [--total N] [--kill gpu:1] [--label text] [--server-args '--io-threads 1']
//       [--payload-servers 0] [--peeks] [--small]
//
// --devices N: so many from the device on (gpu:0 and 2: gpu:0,gpu:1), or so many of it where it has no index.
// With payload servers, so many processes beside the queue server carry inputs and results. With --peeks results are read
// first and marked as taken afterwards, as the SDK does it; payload servers need that.
//
// --total N: not a window of time but N texts, each of which must come back: for out of memory and deaths. With
// --idle S nothing is asked for S seconds then, what the device holds is noted, and the same texts come once more.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import {
  encodeTexts,
  encodeTokens,
  fingerprintOf,
  fromHalves,
  mainQueue,
  openResult,
  type EmbedJobData,
} from '@shoal/contract';
import { pacedAxis } from '@shoal/core/sim';
import { OrtBackend } from '@shoal/inference';
import { openGraph, openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { JobProducer, PayloadServers, ResultReader } from '@shoal/queue';
import { tuning } from '@shoal/private-server';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { leastCosine } from '../similarity/cosine.ts';
import { childrenOf, processCpuMs } from '../rig/processes.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';
import {
  MAX_TOKENS,
  cacheDir,
  device,
  devicesFrom,
  isSmall,
  median,
  partArguments,
  round,
  row,
  scratch,
  usedMebibytes,
  widthOf,
} from './kit.ts';

const values = partArguments(import.meta.url, {
  role: { type: 'string', default: 'main' },
  url: { type: 'string', default: '' },
  client: { type: 'string', default: '0' },
  form: { type: 'string', default: 'tokens' },
  dtype: { type: 'string', default: 'f32' },
  corpus: { type: 'string', default: 'ragged' },
  label: { type: 'string', default: '' },
  'job-texts': { type: 'string' },
  clients: { type: 'string' },
  'in-flight': { type: 'string' },
  windows: { type: 'string' },
  seconds: { type: 'string' },
  warm: { type: 'string' },
  settings: { type: 'string', default: '{}' },
  total: { type: 'string' },
  idle: { type: 'string' },
  kill: { type: 'string' },
  'server-args': { type: 'string', default: '' },
  devices: { type: 'string' },
  'payload-servers': { type: 'string', default: '0' },
  'payload-urls': { type: 'string', default: '' },
  peeks: { type: 'boolean', default: false },
});
const text = (name: keyof typeof values, normal: number | string, small = normal): string =>
  String(values[name] ?? (isSmall ? small : normal));
const number = (name: keyof typeof values, normal: number, small = normal): number => Number(text(name, normal, small));
const form = String(values.form);
const isInline = form === 'inline';
/** Of the results: half the bytes in f16. */
const dtype = values.dtype === 'f16' ? ('f16' as const) : ('f32' as const);
if (values.dtype !== dtype) throw new Error(`--dtype ${String(values.dtype)}: f32 or f16`);
const jobTexts = number('job-texts', isInline ? 64 : 256, 8);
const clients = number('clients', 3, 1);
const inFlight = number('in-flight', isInline ? 256 : 96, 8);
const windows = number('windows', 3, 1);
const seconds = number('seconds', 6, 2);
const warm = number('warm', 15, 1); // shapes are met for the first time: 45 to 80 ms each
/** Of the queue server, as the product starts it. */
const serverArgs = [
  ...tuning(),
  ...String(values['server-args'])
    .split(' ')
    .filter((word) => word !== ''),
];
const payloadServers = Number(values['payload-servers']);
const isPeeking = values.peeks || payloadServers > 0;
const total = values.total === undefined ? undefined : Number(values.total);
const PAYLOADS = isSmall ? 4 : isInline ? 200 : 100;
const devices = devicesFrom(device, values.devices);
/** Vectors of one text, alone and in any company, on any of the devices. */
const LEAST_COSINE = 0.9999;
/** A simulated device (`--device sim:8000`) serves a queue of its own, and what it gives is known beforehand. */
const isSimulated = devices[0]!.startsWith('sim:');
const SERVED = isSimulated ? 'minilm-sim' : 'minilm';

interface Payload {
  readonly data: EmbedJobData;
  readonly input: Buffer | undefined;
  readonly ids: readonly ArrayLike<number>[];
  /** As they came the first time, or as a simulated device gives them. */
  vectors: Float32Array | undefined;
}

// ---- client -----------------------------------------------------------------------------------------------------

async function payloads(model: StoredModel, reply: string, seed: number): Promise<Payload[]> {
  const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
  const texts = corpusTexts(model, jobTexts * PAYLOADS, seed);
  return Array.from({ length: PAYLOADS }, (_, i) => {
    const mine = texts.slice(i * jobTexts, (i + 1) * jobTexts);
    const ids = mine.map((one) => tokenizer.encode(one).ids);
    const facts = {
      model: `${SERVED}@${model.revision}`,
      prompt: undefined,
      truncate: 'end',
      output: { dtype, dimensions: undefined },
    } as const;
    const input = isInline ? encodeTexts(mine) : encodeTokens(ids);
    const common = { v: 1 as const, fingerprint: fingerprintOf(facts, input), reply, output: { dtype } };
    const tokens = ids.reduce((sum, one) => sum + one.length, 0);
    const data: EmbedJobData = isInline
      ? { ...common, texts: mine }
      : { ...common, input: { form: 'tokens', rows: jobTexts, tokens, tokenizer: tokenizer.hash } };
    const vectors = isSimulated ? vectorsOfSimulated(ids, model.dims) : undefined;
    return { data, input: isInline ? undefined : input, ids, vectors };
  });
}

function vectorsOfSimulated(rows: readonly ArrayLike<number>[], dims: number): Float32Array {
  const vectors = new Float32Array(rows.length * dims);
  for (const [at, ids] of rows.entries()) vectors[at * dims + pacedAxis(ids, dims)] = 1;
  return vectors;
}

/** Ragged, or every text with as many tokens as the corpus is called. */
function corpusTexts(model: StoredModel, count: number, seed: number): string[] {
  const path = join(model.folder, 'tokenizer.json');
  if (values.corpus === 'ragged') return raggedCorpus(path, count, seed).map((one) => one.text);
  const words = raggedCorpus(path, count, seed).flatMap((one) => one.text.split(' '));
  const length = Number(values.corpus) - 2;
  return Array.from({ length: count }, (_, at) =>
    Array.from({ length }, (_word, k) => words[(at * length + k) % words.length]).join(' '),
  );
}

async function runClient(): Promise<void> {
  const model = await openModel('minilm', { cacheDir });
  const urls = values['payload-urls'];
  const beside = urls === '' ? undefined : await PayloadServers.connect({ payloadServers: urls, clientName: 'bench' });
  const common = { redisUrl: String(values.url), queue: mainQueue(SERVED), payloads: beside };
  const reader = await ResultReader.connect({ ...common, replyName: `bench${String(values.client)}` });
  const producer = await JobProducer.connect(common);
  const jobs = await payloads(model, reader.replyChannel, Number(values.client) + 1);
  if (values.client === '0' && !isSimulated)
    jobs[0]!.vectors = new Float32Array(new Uint8Array(readFileSync(join(scratch, 'reference.f32'))).buffer);
  const open = new Map<string, Payload>();
  let limit = total === undefined ? Infinity : Math.ceil(total / clients / jobTexts);
  let [made, texts, least, failures] = [0, 0, 1, 0];
  let arrived: string[] = [];
  let fetching: Promise<void> | undefined;
  const read = async (batch: readonly string[]): Promise<unknown[]> => {
    if (!isPeeking)
      return (await reader.acknowledge(batch)).map((answer) => (answer.kind === 'body' ? answer.bytes : answer.kind));
    const found = await reader.peek(batch);
    void reader.markTaken(batch);
    return found;
  };
  const fetchAll = async (): Promise<void> => {
    while (arrived.length > 0) {
      const batch = arrived;
      arrived = [];
      for (const [i, bytes] of (await read(batch)).entries()) {
        const payload = open.get(batch[i]!);
        if (payload === undefined) continue; // told twice, which is allowed
        if (!Buffer.isBuffer(bytes)) throw new Error(`${batch[i]}: ${String(bytes)}`);
        least = Math.min(least, check(bytes, payload));
        reader.release([bytes]); // what is kept of it was copied
        texts += jobTexts;
        open.delete(batch[i]!);
      }
    }
  };
  reader.onReply(({ completed, failed }) => {
    for (const jobId of failed) {
      if (open.delete(jobId)) failures += 1;
    }
    arrived.push(...completed);
    fetching ??= fetchAll().finally(() => {
      fetching = undefined;
      void fill();
    });
  });
  const fill = async (): Promise<void> => {
    const room = Math.min(inFlight - open.size, limit - made);
    if (room <= 0 || (room < inFlight / 8 && made + room < limit)) return;
    const fresh = Array.from({ length: room }, () => {
      const payload = jobs[made % PAYLOADS]!;
      const jobId = `c${String(values.client)}-${made++}`;
      open.set(jobId, payload);
      return { jobId, data: payload.data, input: payload.input, mayLieBeside: payloadServers > 0 };
    });
    await producer.add(fresh);
  };
  process.on('message', (message) => {
    if (message === 'again') limit *= 2;
    if (message === 'go' || message === 'again') void fill();
    else
      process.send?.({
        texts,
        leastCosine: least,
        failures,
        open: open.size,
        isDone: made >= limit && open.size === 0,
        cpuMs: cpuMs(),
      });
  });
  process.send?.('ready');
}

function check(bytes: Buffer, payload: Payload): number {
  const { header, body } = openResult(bytes);
  if (header.rows !== jobTexts) throw new Error(`${header.rows} rows where ${jobTexts} were sent`);
  if (header.dtype !== dtype) throw new Error(`values of type ${header.dtype} where ${dtype} was asked for`);
  const aligned = body.byteOffset % 4 === 0 ? body : Buffer.from(body);
  const count = header.rows * header.dims;
  const vectors =
    dtype === 'f16'
      ? fromHalves(new Uint16Array(aligned.buffer, aligned.byteOffset, count))
      : new Float32Array(aligned.buffer, aligned.byteOffset, count);
  if (payload.vectors === undefined) {
    payload.vectors = vectors.slice();
    return 1;
  }
  const least = leastCosine(vectors, payload.vectors, header.dims);
  if (!(least >= LEAST_COSINE)) throw new Error(`a row came back as another vector: least cosine ${least}`);
  return least;
}

const cpuMs = (): number => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
};

// ---- main -------------------------------------------------------------------------------------------------------

/** fp32 on the CPU, for the first job of the first client. */
async function writeReference(): Promise<void> {
  const model = await openModel('minilm', { cacheDir });
  const [first] = await payloads(model, '{shoal}:reply:none', 1);
  const backend = await OrtBackend.open({
    graphPath: await openGraph(model, { cacheDir }),
    dims: model.dims,
    threads: availableParallelism(),
    slotRows: 1,
    slotTokens: MAX_TOKENS,
  });
  const vectors = new Float32Array(jobTexts * model.dims);
  for (const [at, ids] of first!.ids.entries()) {
    const slot = backend.lend()!;
    slot.ids.fill(0, 0, widthOf(ids.length));
    slot.ids.set(ids, 0);
    slot.lengths[0] = ids.length;
    await backend.run(slot, { rows: 1, width: widthOf(ids.length) });
    vectors.set(slot.embeddings.subarray(0, model.dims), at * model.dims);
    backend.giveBack(slot);
  }
  await backend.stop();
  writeFileSync(join(scratch, 'reference.f32'), new Uint8Array(vectors.buffer));
}

interface StartedWorker {
  readonly device: string;
  readonly process: ChildProcess;
  readonly executorPid: number;
  readonly metricsPort: number;
  readonly facts: { readonly device: string; readonly precision: string };
}

async function startWorker(url: string, payloadUrls: string, label: string, index: number): Promise<StartedWorker> {
  const metricsPort = 20_000 + ((process.pid + index) % 20_000);
  const child = fork(fileURLToPath(new URL('../../apps/gpu-worker/src/main.ts', import.meta.url)), [], {
    env: {
      ...process.env,
      SHOAL_REDIS_URL: url,
      ...(payloadUrls !== '' && { SHOAL_PAYLOAD_SERVERS: payloadUrls }),
      SHOAL_DEVICE: label,
      SHOAL_MODEL: 'minilm',
      SHOAL_MAX_TOKENS: String(MAX_TOKENS),
      SHOAL_LOG_LEVEL: 'warn',
      SHOAL_METRICS_PORT: String(metricsPort),
      ...(JSON.parse(String(values.settings)) as Record<string, string>),
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  const ended = once(child, 'exit').then(([code]) =>
    Promise.reject(new Error(`the worker on ${label} ended: ${String(code)}`)),
  );
  ended.catch(() => undefined);
  const [report] = (await Promise.race([once(child, 'message'), ended])) as [
    { kind: string; device: string; precision: string; failure?: { message: string } },
  ];
  if (report.kind !== 'ready') throw new Error(report.failure?.message ?? 'the worker did not start');
  return {
    device: label,
    process: child,
    executorPid: childrenOf(child.pid!)[0]!,
    metricsPort,
    facts: { device: report.device, precision: report.precision },
  };
}

interface ClientReport {
  readonly texts: number;
  readonly leastCosine: number;
  readonly failures: number;
  readonly open: number;
  readonly isDone: boolean;
  readonly cpuMs: number;
}

async function ask(child: ChildProcess): Promise<ClientReport> {
  child.send('snapshot');
  const [answer] = (await once(child, 'message')) as [ClientReport];
  return answer;
}

/** A worker's counters; those of a dead one are nothing. */
async function metricsOf(worker: StartedWorker): Promise<Readonly<Record<string, number>>> {
  const page = await fetch(`http://127.0.0.1:${worker.metricsPort}/metrics`).then(
    (answer) => answer.text(),
    () => '',
  );
  const value = (pattern: RegExp): number =>
    [...page.matchAll(pattern)].reduce((sum, found) => sum + Number(found[1]), 0);
  return {
    real: value(/^shoal_tokens_total\{[^}]*kind="real"[^}]*\} (\S+)$/gm),
    padded: value(/^shoal_tokens_total\{[^}]*kind="padded"[^}]*\} (\S+)$/gm),
    runSeconds: value(/^shoal_run_duration_seconds_sum(?:\{[^}]*\})? (\S+)$/gm),
    runs: value(/^shoal_run_duration_seconds_count(?:\{[^}]*\})? (\S+)$/gm),
    splits: value(/^shoal_splits_total(?:\{[^}]*\})? (\S+)$/gm),
    completed: value(/^shoal_texts_total(?:\{[^}]*\})? (\S+)$/gm),
    executorLosses: value(/^shoal_executor_losses_total(?:\{[^}]*\})? (\S+)$/gm),
  };
}

interface ServerFigures {
  /** CPU of the one thread that runs commands. */
  readonly mainThreadMs: number;
  /** How often a write to the append-only file had to wait for its disk. */
  readonly delayedFsyncs: number;
  /** Of the append-only file. */
  readonly rewrites: number;
  /** Time in which its loop did not sleep, all of it and in commands, µs. */
  readonly loop: { readonly all: number; readonly commands: number };
  /** From everybody and to everybody, MB. */
  readonly network: number;
  /** Time in each command so far, µs; what a script or transaction does counts for itself as well. */
  readonly commands: Readonly<Record<string, number>>;
}

async function serverFigures(server: TestServer): Promise<ServerFigures> {
  const info = String(await server.command('INFO', 'everything'));
  const figure = (name: string): number => Number(new RegExp(`^${name}:(\\S+)`, 'm').exec(info)?.[1] ?? NaN);
  const commands = Object.fromEntries(
    [...info.matchAll(/^cmdstat_([^:|]+):calls=\d+,usec=(\d+)/gm)].map(([, name, micros]) => [name!, Number(micros)]),
  );
  return {
    commands,
    mainThreadMs: 1_000 * (figure('used_cpu_user_main_thread') + figure('used_cpu_sys_main_thread')),
    delayedFsyncs: figure('aof_delayed_fsync'),
    rewrites: figure('aof_rewrites'),
    loop: { all: figure('eventloop_duration_sum'), commands: figure('eventloop_duration_cmd_sum') },
    network: (figure('total_net_input_bytes') + figure('total_net_output_bytes')) / 1e6,
  };
}

/** Of a payload server. */
async function besideFigures(server: TestServer): Promise<{ readonly cpuMs: number; readonly network: number }> {
  const { network } = await serverFigures(server);
  return { cpuMs: processCpuMs(server.pid), network };
}

/** µs a job of the commands that took most. */
function slowest(
  before: ServerFigures['commands'],
  after: ServerFigures['commands'],
  jobs: number,
): Readonly<Record<string, number>> {
  const spent = Object.entries(after).map(
    ([name, micros]) => [name, round((micros - (before[name] ?? 0)) / jobs)] as const,
  );
  return Object.fromEntries(spent.toSorted(([, a], [, b]) => b - a).slice(0, 10));
}

async function main(): Promise<void> {
  if (!isSimulated) await writeReference();
  const server = await startTestServer({ appendFsync: 'everysec', args: serverArgs });
  const beside = await Promise.all(
    Array.from({ length: payloadServers }, () =>
      startTestServer({ appendFsync: 'no', topology: 'single', args: serverArgs }),
    ),
  );
  const payloadUrls = beside.map(({ url }) => url).join(',');
  const idleMebibytes = usedMebibytes();
  const startedMs = performance.now();
  const workers = await Promise.all(devices.map((label, index) => startWorker(server.url, payloadUrls, label, index)));
  const startMs = round(performance.now() - startedMs);
  const children = Array.from({ length: clients }, (_, i) =>
    fork(
      fileURLToPath(import.meta.url),
      [
        ...process.argv.slice(2),
        '--role',
        'client',
        '--url',
        server.url,
        '--payload-urls',
        payloadUrls,
        '--client',
        String(i),
      ],
      { stdio: ['ignore', 2, 2, 'ipc'] },
    ),
  );
  const died = Promise.race(
    children.map(async (child) => {
      const [code] = await once(child, 'exit');
      throw new Error(`a client ended: ${String(code)}`);
    }),
  );
  died.catch(() => undefined);
  await Promise.race([Promise.all(children.map((child) => once(child, 'message'))), died]);
  for (const child of children) child.send('go');
  const facts = {
    part: 'end-to-end',
    label: values.label,
    devices,
    ran: workers.map((worker) => worker.facts),
    form,
    dtype,
    corpus: values.corpus,
    jobTexts,
    inFlightJobs: inFlight * clients,
    clients,
    payloadServers,
    isPeeking,
    serverArgs,
    settings: JSON.parse(String(values.settings)) as object,
    startMs,
  };
  const snapshot = async () => ({
    atMs: performance.now(),
    clients: await Promise.all(children.map(ask)),
    metrics: await Promise.all(workers.map(metricsOf)),
    server: processCpuMs(server.pid),
    beside: await Promise.all(beside.map(besideFigures)),
    ...(await serverFigures(server)),
    claimers: workers.map((worker) => processCpuMs(worker.process.pid!)),
    executors: workers.map((worker) => processCpuMs(worker.executorPid)),
  });
  type Snapshot = Awaited<ReturnType<typeof snapshot>>;
  const between = (a: Snapshot, b: Snapshot) => {
    const ms = b.atMs - a.atMs;
    const percent = (after: number, before: number): number => round((100 * (after - before)) / ms);
    const texts = (s: Snapshot): number => s.clients.reduce((sum, client) => sum + client.texts, 0);
    const sum = (s: Snapshot, name: string): number => s.metrics.reduce((all, one) => all + (one[name] ?? 0), 0);
    return {
      textsPerSecond: round((1000 * (texts(b) - texts(a))) / ms),
      millionTokensPerSecond: round((sum(b, 'real') - sum(a, 'real')) / ms / 1000, 2),
      paddingEfficiency: round((sum(b, 'real') - sum(a, 'real')) / (sum(b, 'padded') - sum(a, 'padded')), 3),
      runs: sum(b, 'runs') - sum(a, 'runs'),
      meanPaddedTokens: round((sum(b, 'padded') - sum(a, 'padded')) / (sum(b, 'runs') - sum(a, 'runs'))),
      meanRunMs: round((1000 * (sum(b, 'runSeconds') - sum(a, 'runSeconds'))) / (sum(b, 'runs') - sum(a, 'runs')), 2),
      deviceBusy: round((1000 * (sum(b, 'runSeconds') - sum(a, 'runSeconds'))) / ms / workers.length, 3),
      splits: sum(b, 'splits') - sum(a, 'splits'),
      delayedFsyncs: b.delayedFsyncs - a.delayedFsyncs,
      serverLoopPercent: {
        all: percent(b.loop.all / 1000, a.loop.all / 1000),
        commands: percent(b.loop.commands / 1000, a.loop.commands / 1000),
      },
      commandMicrosPerJob: round((1000 * (b.mainThreadMs - a.mainThreadMs) * jobTexts) / (texts(b) - texts(a))),
      megabytesPerSecond: {
        server: round((1000 * (b.network - a.network)) / ms, 1),
        payloadServers: b.beside.map(({ network }, i) => round((1000 * (network - a.beside[i]!.network)) / ms, 1)),
      },
      serverMicrosPerJob: slowest(a.commands, b.commands, (texts(b) - texts(a)) / jobTexts),
      cpuPercent: {
        server: percent(b.server, a.server),
        serverMainThread: percent(b.mainThreadMs, a.mainThreadMs),
        payloadServers: b.beside.map(({ cpuMs: cpu }, i) => percent(cpu, a.beside[i]!.cpuMs)),
        claimers: b.claimers.map((cpu, i) => percent(cpu, a.claimers[i]!)),
        executors: b.executors.map((cpu, i) => percent(cpu, a.executors[i]!)),
        clients: b.clients.map((client, i) => percent(client.cpuMs, a.clients[i]!.cpuMs)),
      },
    };
  };
  const leastOf = (s: Snapshot): number => round(Math.min(...s.clients.map((client) => client.leastCosine)), 7);
  if (total === undefined) {
    await Promise.race([sleep(warm * 1000), died]);
    const seen: Snapshot[] = [await snapshot()];
    for (let at = 0; at < windows; at++) {
      await Promise.race([sleep(seconds * 1000), died]);
      seen.push(await snapshot());
    }
    const measured = seen.slice(1).map((one, at) => between(seen[at]!, one));
    const textsPerSecond = median(measured.map((one) => one.textsPerSecond));
    const last = seen.at(-1)!;
    row({
      ...facts,
      textsPerSecond,
      raw: measured.map((one) => one.textsPerSecond),
      rewrites: seen.map((one) => one.rewrites),
      ...measured.find((one) => one.textsPerSecond === textsPerSecond),
      failures: last.clients.reduce((sum, client) => sum + client.failures, 0),
      leastCosine: leastOf(last),
      usedMebibytes: usedMebibytes(),
      idleMebibytes,
    });
  } else {
    const first = await snapshot();
    let killedAtMs: number | undefined;
    let last = first;
    const curve: number[] = [];
    const deadlineMs = performance.now() + (isSmall ? 60_000 : 240_000);
    do {
      await Promise.race([sleep(500), died]);
      const now = await snapshot();
      curve.push(between(last, now).textsPerSecond);
      last = now;
      const done = now.clients.reduce((sum, client) => sum + client.texts, 0);
      if (values.kill !== undefined && killedAtMs === undefined && done > total * 0.4) {
        killedAtMs = performance.now() - first.atMs;
        const victim = workers.find((worker) => worker.device === values.kill)!;
        victim.process.kill('SIGKILL');
        try {
          process.kill(victim.executorPid, 'SIGKILL');
        } catch {
          // it had gone with its worker
        }
      }
    } while (!last.clients.every((client) => client.isDone) && performance.now() < deadlineMs);
    const idle = values.idle === undefined ? undefined : await idleAndAgain(Number(values.idle));
    const texts = last.clients.reduce((sum, client) => sum + client.texts, 0);
    row({
      ...facts,
      total,
      texts,
      lost: last.clients.reduce((sum, client) => sum + client.open * jobTexts, 0),
      failures: last.clients.reduce((sum, client) => sum + client.failures, 0),
      isDone: last.clients.every((client) => client.isDone),
      ...between(first, last),
      executorLosses: last.metrics.map((one) => one['executorLosses']),
      textsPerSecondEachHalfSecond: curve,
      killedAtMs,
      leastCosine: leastOf(last),
      usedMebibytes: usedMebibytes(),
      idleMebibytes,
      ...idle,
    });
  }

  /**
   * After a burst: what the device holds at its end and when nothing was asked for a while, and the rate of the same
   * burst afterwards.
   */
  async function idleAndAgain(idleSeconds: number): Promise<object> {
    const burstMebibytes = usedMebibytes();
    await Promise.race([sleep(idleSeconds * 1000), died]);
    const givenBackMebibytes = usedMebibytes();
    const first = await snapshot();
    for (const child of children) child.send('again');
    let last = first;
    const deadlineMs = performance.now() + 120_000;
    do {
      await Promise.race([sleep(250), died]);
      last = await snapshot();
    } while (!last.clients.every((client) => client.isDone) && performance.now() < deadlineMs);
    return {
      burstMebibytes,
      givenBackMebibytes,
      again: {
        ...between(first, last),
        lost: last.clients.reduce((sum, client) => sum + client.open * jobTexts, 0),
        leastCosine: leastOf(last),
      },
    };
  }

  for (const child of children) child.removeAllListeners('exit').kill('SIGKILL');
  for (const worker of workers) {
    if (worker.process.exitCode !== null || worker.process.signalCode !== null) continue;
    const gone = once(worker.process, 'exit');
    worker.process.kill('SIGTERM');
    await gone;
  }
  await Promise.all([server, ...beside].map((one) => one.stop()));
}

if (values.role === 'client') {
  await runClient(); // and goes on until it is killed
} else {
  await main();
  process.exit(0);
}
