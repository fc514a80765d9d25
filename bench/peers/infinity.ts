// Shoal's HTTP beside infinity's server on the CPU: the same weights, the same texts of 7 to 46 words, the same callers
// in a process of their own, alternately on the same cores, each with so many threads. Vectors are compared before the
// clock starts. Without --infinity ours alone.
//
//   python3 -m venv VENV && VENV/bin/pip install 'infinity-emb[server,torch]==0.0.78' 'transformers<5' 'click<8.2'
//   node --conditions=@shoal/source bench/peers/infinity.ts [--infinity VENV/bin/infinity_emb] [--folder DIR]
//       [--threads 2] [--seconds 15] [--rounds 2] [--record]
//
// --folder: the model's files for infinity; default the copy in the cache. Two loads: 8 callers with requests of 64 texts,
// and 16 with one text each. p99 is of the requests of all rounds. Takes about 3 minutes. Wants a quiet machine.

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { cpus, loadavg } from 'node:os';
import { createServer, type AddressInfo } from 'node:net';
import { resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { median } from '@shoal/core/base';
import { openModel } from '@shoal/models';
import { startTestServer } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';
import { startCallers, type Answered } from '../rig/http-callers.ts';
import { BenchKeys, HttpServer } from '../rig/http-server.ts';
import { record } from '../rig/record.ts';
import { percentile } from '../rig/rig.ts';
import { cacheDir, startWorker, stopWorker } from '../rig/sides.ts';
import { leastCosine } from '../similarity/cosine.ts';

const args = readArguments(import.meta.url, {
  infinity: { type: 'string' },
  folder: { type: 'string' },
  threads: { type: 'string', default: '2' },
  seconds: { type: 'string', default: '15' },
  rounds: { type: 'string', default: '2' },
  record: { type: 'boolean', default: false },
});
const [threads, forMs, rounds] = [Number(args.threads), 1_000 * Number(args.seconds), Number(args.rounds)];
const LOADS = [
  { name: 'requests of 64 texts, 8 callers', key: 'batch', texts: 64, callers: 8 },
  { name: 'requests of one text, 16 callers', key: 'single', texts: 1, callers: 16 },
] as const;
const LEAST_COSINE = 0.99999;
const STARTS_WITHIN_MS = 180_000;

interface Peer {
  readonly name: string;
  /** Before /v1/embeddings. */
  readonly url: string;
  readonly key: string;
  stop(): Promise<void>;
}

interface Load {
  readonly texts_per_s: number;
  readonly p50_ms: number;
  readonly p99_ms: number;
}

const model = await openModel('minilm', { cacheDir });
const callers = startCallers();
const peers: Peer[] = [];
try {
  peers.push(await openOurs());
  if (args.infinity !== undefined) peers.push(await openInfinity(args.infinity));
  const cosine = await agreement();
  for (const peer of peers) await callers.loop({ ...peer, texts: 64 }, 2, 2_000); // warm
  const rows = [];
  for (const { name, key, texts, callers: count } of LOADS) {
    const measured = new Map<string, Load>();
    const answers = new Map<string, Answered[][]>(peers.map((peer) => [peer.name, []]));
    for (let round = 0; round < rounds; round++)
      for (const peer of peers) answers.get(peer.name)!.push(await callers.loop({ ...peer, texts }, count, forMs));
    for (const [peer, all] of answers) measured.set(peer, loadOf(all, texts));
    rows.push({ name, key, measured });
  }
  process.stdout.write(
    `${JSON.stringify({
      bench: 'infinity',
      cpu: cpus()[0]?.model,
      threads,
      leastCosine: cosine,
      load: loadavg()[0],
      rows: rows.map(({ name, measured }) => rowOf(name, measured, cosine)),
    })}\n`,
  );
} finally {
  await callers.close();
  for (const peer of peers) await peer.stop();
}

function rowOf(name: string, measured: ReadonlyMap<string, Load>, cosine: number) {
  const [ours, theirs] = [measured.get('shoal')!, measured.get('infinity')];
  return record({
    bench: 'infinity',
    case: `minilm on the CPU, ${threads} threads, ${name}`,
    figures: {
      ...named('shoal', ours),
      ...(theirs !== undefined && {
        ...named('infinity', theirs),
        rate_to_infinity: Number((ours.texts_per_s / theirs.texts_per_s).toFixed(2)),
        least_cosine: cosine,
      }),
    },
    ...(theirs !== undefined && { bar: { figure: 'rate_to_infinity', at_least: 1 } }),
  });
}

function named(peer: string, load: Load): Record<string, number> {
  return Object.fromEntries(Object.entries(load).map(([figure, value]) => [`${peer}_${figure}`, value]));
}

function loadOf(all: readonly (readonly Answered[])[], texts: number): Load {
  const times = all.flat().map(({ ms }) => ms);
  return {
    texts_per_s: Math.round(median(all.map((answers) => (1_000 * texts * answers.length) / forMs))),
    p50_ms: Math.round(percentile(times, 0.5)),
    p99_ms: Math.round(percentile(times, 0.99)),
  };
}

/** The smallest cosine between vectors of the peers, of texts of many lengths. Throws where they are not the same. */
async function agreement(): Promise<number> {
  const input = Array.from({ length: 32 }, (_, at) => 'cold water under north light '.repeat(1 + at).trim());
  const [first, ...others] = await Promise.all(peers.map((peer) => vectorsOf(peer, input)));
  const cosines = others.map((vectors) => leastCosine(first!, vectors, model.dims));
  const least = Math.min(1, ...cosines);
  if (least < LEAST_COSINE) throw new Error(`the peers give other vectors: the smallest cosine is ${least}`);
  return Number(least.toFixed(7));
}

async function vectorsOf({ url, key }: Peer, input: readonly string[]): Promise<Float32Array> {
  const response = await fetch(`${url}/v1/embeddings`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
    body: JSON.stringify({ model: 'minilm', input }),
  });
  if (!response.ok) throw new Error(`${response.status}: ${(await response.text()).slice(0, 300)}`);
  const { data } = (await response.json()) as { readonly data: readonly { readonly embedding: readonly number[] }[] };
  return Float32Array.from(data.flatMap(({ embedding }) => embedding));
}

async function openOurs(): Promise<Peer> {
  const server = await startTestServer({ appendFsync: 'everysec' });
  const worker = await startWorker(server.url, 'minilm', threads);
  const keys = new BenchKeys();
  const key = await keys.of('bench');
  const http = await HttpServer.start(server.url, keys);
  const stop = async (): Promise<void> => {
    await http.stop();
    await stopWorker(worker);
    await server.stop();
    keys.close();
  };
  return { name: 'shoal', url: http.url, key, stop };
}

async function openInfinity(command: string): Promise<Peer> {
  const [port, key] = [await freePort(), 'bench'];
  const options = {
    'model-id': resolve(args.folder ?? model.folder),
    'served-model-name': 'minilm',
    engine: 'torch',
    device: 'cpu',
    dtype: 'float32',
    'batch-size': '32',
    host: '127.0.0.1',
    port: String(port),
    'url-prefix': '/v1',
    'api-key': key,
    'log-level': 'error',
  };
  const flags = ['no-trust-remote-code', 'no-bettertransformer', 'no-model-warmup', 'no-vector-disk-cache'];
  const child = spawn(
    command,
    [
      'v2',
      ...Object.entries(options).flatMap(([name, value]) => [`--${name}`, value]),
      ...flags.map((flag) => `--${flag}`),
    ],
    {
      stdio: ['ignore', 2, 2],
      env: { ...process.env, HF_HUB_OFFLINE: '1', DO_NOT_TRACK: '1', OMP_NUM_THREADS: String(threads) },
    },
  );
  process.once('exit', () => child.kill('SIGKILL'));
  const url = `http://127.0.0.1:${port}`;
  await untilUp(child, `${url}/health`);
  const stop = async (): Promise<void> => {
    if (child.exitCode !== null) return;
    const gone = once(child, 'exit');
    child.kill('SIGTERM');
    await gone;
  };
  return { name: 'infinity', url, key, stop };
}

async function untilUp(child: ChildProcess, url: string): Promise<void> {
  for (const endMs = performance.now() + STARTS_WITHIN_MS; performance.now() < endMs; await sleep(250)) {
    if (child.exitCode !== null) throw new Error(`infinity ended with ${child.exitCode}`);
    const isUp = await fetch(url).then(
      ({ ok }) => ok,
      () => false,
    );
    if (isUp) return;
  }
  throw new Error(`infinity did not answer within ${STARTS_WITHIN_MS / 1_000} s`);
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
