// What the whole path carries when the device is not the limit: producers, queue server with AOF, claimer, executor and
// readers share this machine, and a simulated device takes 8,000 tokens a millisecond. Token ids are made before the
// clock starts (a GPU host has other cores for tokenizing); everything else is the product: one transaction for input
// and job, checks of every input, commit under the lease, announcements, acknowledgement. Every row of every result is
// checked.
//
//   node --conditions=@shoal/source bench/device/sim-device.ts [--seconds 10] [--warm 4] [--job-texts 256]
//       [--clients 2] [--in-flight 64] [--tokens-per-ms 8000] [--workers 1] [--server-args='--io-threads 4']
//       [--payload-servers 0] [--peeks] [--record]
//
// With payload servers, so many processes beside the queue server carry inputs and results (payload-ratio.ts compares).
// With --peeks results are read first and marked as taken afterwards, as the SDK does it; payload servers need that.
// Prints one JSON line: texts/s, CPU of each process in percent of a core (of the server's command thread as well, and
// in µs a job), memory. --record appends it as a row to bench/results/sim-device.jsonl; its goal is 60,000 texts/s.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { availableParallelism, cpus } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import {
  ROWS_EVERY_WORKER_TAKES,
  encodeTokens,
  fingerprintOf,
  mainQueue,
  openResult,
  type EmbedJobData,
} from '@shoal/contract';
import { cacheFolder } from '@shoal/core';
import { median } from '@shoal/core/base';
import { pacedAxis } from '@shoal/core/sim';
import { openModel, openTokenizer } from '@shoal/models';
import { JobProducer, PayloadServers, ResultReader } from '@shoal/queue';
import { tuning } from '@shoal/private-server';
import { startTestServer } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';
import { record } from '../rig/record.ts';
import { childrenOf, processCpuMs } from '../rig/processes.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';

const args = readArguments(import.meta.url, {
  role: { type: 'string', default: 'main' },
  url: { type: 'string', default: '' },
  client: { type: 'string', default: '0' },
  seconds: { type: 'string', default: '10' },
  warm: { type: 'string', default: '4' },
  'job-texts': { type: 'string', default: '256' },
  clients: { type: 'string', default: '2' },
  'in-flight': { type: 'string', default: '64' },
  'tokens-per-ms': { type: 'string', default: '8000' },
  workers: { type: 'string', default: '1' },
  'server-args': { type: 'string', default: '' },
  'payload-servers': { type: 'string', default: '0' },
  'payload-urls': { type: 'string', default: '' },
  peeks: { type: 'boolean', default: false },
  record: { type: 'boolean', default: false },
});
const MODEL = 'minilm';
const SERVED = `${MODEL}-sim`;
/** Of up to 25,600 texts: large jobs of as many texts as smaller ones. */
const PAYLOADS = Math.min(100, Math.ceil(25_600 / Number(args['job-texts'])));
const cacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);

interface Payload {
  readonly data: EmbedJobData;
  readonly input: Buffer;
  readonly axes: readonly number[];
}

async function payloads(reply: string, seed: number): Promise<Payload[]> {
  const model = await openModel(MODEL, { cacheDir });
  const tokenizer = await openTokenizer(model, { maxTokens: 512 });
  const rows = Number(args['job-texts']);
  const corpus = raggedCorpus(join(model.folder, 'tokenizer.json'), rows * PAYLOADS, seed);
  return Array.from({ length: PAYLOADS }, (_, i) => {
    const ids = corpus.slice(i * rows, (i + 1) * rows).map(({ text }) => tokenizer.encode(text).ids);
    const input = encodeTokens(ids);
    const facts = {
      model: `${SERVED}@${model.revision}`,
      prompt: undefined,
      truncate: 'end',
      output: { dtype: 'f32', dimensions: undefined },
    } as const;
    const tokens = ids.reduce((sum, row) => sum + row.length, 0);
    const data: EmbedJobData = {
      v: rows > ROWS_EVERY_WORKER_TAKES ? 2 : 1,
      input: { form: 'tokens', rows, tokens, tokenizer: tokenizer.hash },
      fingerprint: fingerprintOf(facts, input),
      reply,
    };
    return { data, input, axes: ids.map((row) => pacedAxis(row, model.dims)) };
  });
}

/** One client process: keeps a window of jobs in flight, fetches each result once and checks every row of it. */
async function runClient(): Promise<void> {
  const payloadServers = args['payload-urls'];
  const beside =
    payloadServers === '' ? undefined : await PayloadServers.connect({ payloadServers, clientName: 'bench' });
  const common = { redisUrl: args.url, queue: mainQueue(SERVED), payloads: beside };
  const reader = await ResultReader.connect({ ...common, replyName: `bench${args.client}` });
  const producer = await JobProducer.connect(common);
  const jobs = await payloads(reader.replyChannel, Number(args.client) + 1);
  const open = new Map<string, Payload>();
  let made = 0;
  let texts = 0;
  let arrived: string[] = [];
  let fetching: Promise<void> | undefined;
  const read = async (batch: readonly string[]): Promise<unknown[]> => {
    if (!args.peeks)
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
        const jobId = batch[i]!;
        if (!Buffer.isBuffer(bytes)) throw new Error(`${jobId}: ${String(bytes)}`);
        texts += check(bytes, open.get(jobId)!);
        if (args.peeks) reader.release([bytes]);
        open.delete(jobId);
      }
    }
  };
  reader.onReply(({ completed, failed }) => {
    if (failed.length > 0) throw new Error(`failed: ${failed.join(', ')}`);
    arrived.push(...completed);
    fetching ??= fetchAll().finally(() => {
      fetching = undefined;
      void fill();
    });
  });
  const fill = async (): Promise<void> => {
    const room = Number(args['in-flight']) - open.size;
    if (room < 8) return;
    const fresh = Array.from({ length: room }, () => {
      const payload = jobs[made % PAYLOADS]!;
      const jobId = `c${args.client}-${made++}`;
      open.set(jobId, payload);
      return { jobId, data: payload.data, input: payload.input, mayLieBeside: true };
    });
    await producer.add(fresh);
  };
  process.on('message', () => process.send?.({ texts, cpuMs: cpuMs() }));
  process.send?.('ready');
  await fill();
}

function check(bytes: Buffer, payload: Payload): number {
  const { header, body } = openResult(bytes);
  const aligned = body.byteOffset % 4 === 0 ? body : Buffer.from(body);
  const values = new Float32Array(aligned.buffer, aligned.byteOffset, header.rows * header.dims);
  for (const [row, axis] of payload.axes.entries())
    if (values[row * header.dims + axis] !== 1) throw new Error(`row ${row} is not what the device gave`);
  return header.rows;
}

const cpuMs = (): number => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
};

async function ask(child: ChildProcess): Promise<{ texts: number; cpuMs: number }> {
  child.send('snapshot');
  const [answer] = (await once(child, 'message')) as [{ texts: number; cpuMs: number }];
  return answer;
}

async function main(): Promise<void> {
  const server = await startTestServer({
    appendFsync: 'everysec',
    args: [...tuning(), ...args['server-args'].split(' ').filter(Boolean)],
  });
  const beside = await Promise.all(
    Array.from({ length: Number(args['payload-servers']) }, () =>
      startTestServer({ appendFsync: 'no', topology: 'single', args: tuning() }),
    ),
  );
  const payloadUrls = beside.map(({ url }) => url).join(',');
  const workers = Array.from({ length: Number(args.workers) }, (_, i) =>
    fork(fileURLToPath(new URL('../../apps/gpu-worker/src/main.ts', import.meta.url)), [], {
      env: {
        ...process.env,
        SHOAL_REDIS_URL: server.url,
        ...(payloadUrls !== '' && { SHOAL_PAYLOAD_SERVERS: payloadUrls }),
        SHOAL_DEVICE: `sim:${args['tokens-per-ms']}`,
        SHOAL_MODEL: MODEL,
        SHOAL_MAX_TOKENS: '512',
        SHOAL_LOG_LEVEL: 'warn',
        SHOAL_WORKER_NAME: `sim${i}`,
        SHOAL_MAX_PADDED_TOKENS: '65536',
        SHOAL_MAX_ROWS: '16384',
        SHOAL_POOL_TOKENS: String(16_384 * 80),
      },
      stdio: ['ignore', 2, 2, 'ipc'],
    }),
  );
  await Promise.all(workers.map((worker) => once(worker, 'message')));
  const executors = workers.map((worker) => childrenOf(worker.pid!)[0]!);
  const clients = Array.from({ length: Number(args.clients) }, (_, i) =>
    fork(
      fileURLToPath(import.meta.url),
      [
        '--role',
        'client',
        '--url',
        server.url,
        '--client',
        String(i),
        '--job-texts',
        args['job-texts'],
        '--in-flight',
        args['in-flight'],
        '--payload-urls',
        payloadUrls,
        ...(args.peeks ? ['--peeks'] : []),
      ],
      { stdio: ['ignore', 2, 2, 'ipc'] },
    ),
  );
  for (const child of [...workers, ...clients])
    child.once('exit', (code) => code !== null && code !== 0 && process.exit(1)); // it has said why
  await Promise.all(clients.map((client) => once(client, 'message')));
  const snapshot = async () => ({
    atMs: performance.now(),
    clients: await Promise.all(clients.map(ask)),
    server: processCpuMs(server.pid),
    commands: processCpuMs(server.pid, server.pid),
    beside: beside.map(({ pid }) => processCpuMs(pid)),
    claimers: workers.map((worker) => processCpuMs(worker.pid!)),
    executors: executors.map((pid) => processCpuMs(pid)),
  });
  await sleep(Number(args.warm) * 1000);
  const a = await snapshot();
  await sleep(Number(args.seconds) * 1000);
  const b = await snapshot();
  const ms = b.atMs - a.atMs;
  const percent = (cpu: number): number => Math.round((100 * cpu) / ms);
  const texts = b.clients.reduce((sum, client, i) => sum + client.texts - a.clients[i]!.texts, 0);
  const memory = String(await server.command('INFO', 'memory'));
  const report = {
    bench: 'sim-device',
    cpu: cpus()[0]?.model,
    cores: availableParallelism(),
    tokensPerMs: Number(args['tokens-per-ms']),
    jobTexts: Number(args['job-texts']),
    inFlight: Number(args['in-flight']) * clients.length,
    textsPerSecond: Math.round((texts * 1000) / ms),
    cpuPercent: {
      server: percent(b.server - a.server),
      commandThread: percent(b.commands - a.commands),
      payloadServers: b.beside.map((cpu, i) => percent(cpu - a.beside[i]!)),
      claimers: b.claimers.map((cpu, i) => percent(cpu - a.claimers[i]!)),
      executors: b.executors.map((cpu, i) => percent(cpu - a.executors[i]!)),
      clients: b.clients.map((client, i) => percent(client.cpuMs - a.clients[i]!.cpuMs)),
    },
    commandMicrosPerJob: Math.round(((b.commands - a.commands) * 1000 * Number(args['job-texts'])) / texts),
    serverMegabytes: Math.round(Number(/used_memory:(\d+)/.exec(memory)?.[1]) / 1e6),
  };
  process.stdout.write(`${JSON.stringify(report)}\n`);
  keep(report);
  for (const child of [...clients, ...workers]) {
    const gone = once(child, 'exit');
    child.kill(workers.includes(child) ? 'SIGTERM' : 'SIGKILL');
    await gone;
  }
  await Promise.all([server, ...beside].map((one) => one.stop()));
}

interface Report {
  readonly tokensPerMs: number;
  readonly jobTexts: number;
  readonly inFlight: number;
  readonly textsPerSecond: number;
  readonly cpuPercent: {
    readonly server: number;
    readonly claimers: readonly number[];
    readonly executors: readonly number[];
    readonly clients: readonly number[];
  };
  readonly commandMicrosPerJob: number;
}

/** The row of this run, for who asked to record it. */
function keep({ tokensPerMs, jobTexts, inFlight, textsPerSecond, cpuPercent, commandMicrosPerJob }: Report): void {
  const more = [
    ...(args['payload-servers'] === '0' ? [] : [`${args['payload-servers']} payload servers`]),
    ...(args.workers === '1' ? [] : [`${args.workers} workers`]),
    ...(tokensPerMs === 8_000 ? [] : [`${tokensPerMs.toLocaleString('en-US')} tokens a ms`]),
    ...(args['server-args'] === '' ? [] : [`server with ${args['server-args']}`]),
  ];
  record({
    bench: 'sim-device',
    case: [`${jobTexts} texts a job, ${inFlight.toLocaleString('en-US')} jobs in flight`, ...more].join(', '),
    figures: {
      texts_per_s: textsPerSecond,
      server_cpu_percent: cpuPercent.server,
      claimer_cpu_percent: median(cpuPercent.claimers),
      executor_cpu_percent: median(cpuPercent.executors),
      client_cpu_percent: median(cpuPercent.clients),
      command_thread_us_per_job: commandMicrosPerJob,
    },
    ...(more.length === 0 ? { bar: { figure: 'texts_per_s', at_least: 60_000 } } : {}),
  });
}

await (args.role === 'client' ? runClient() : main());
