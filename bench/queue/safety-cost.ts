// What each safety of the path costs, per job of 256 rows × 384 f32 (mean 80 tokens a row): the product's own functions
// and scripts against the least that would do the same without the safety, alternating, in one process and one server.
//
//   node --conditions=@shoal/source bench/queue/safety-cost.ts [--rounds 300]
//
// Prints one JSON line: microseconds a job, median of rounds; `server` figures are CPU time of the server process.

import { cpus } from 'node:os';
import {
  decodeInput,
  encodeResult,
  encodeTokens,
  fingerprintOf,
  hasAtLeast,
  keySpace,
  openResult,
} from '@shoal/contract';
import { openConnection, closeConnection, RedisPayloadStore, type Redis } from '@shoal/queue/payload';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';
import { mergeDuplicates } from '../../libs/core/src/executor/duplicates.ts';

const args = readArguments(import.meta.url, { rounds: { type: 'string', default: '300' } });
const ROUNDS = Number(args.rounds);
const ROWS = 256;
const DIMS = 384;
const QUEUE = 'embed-bench';
const keys = keySpace();
const quiet = { debug() {}, info() {}, warn() {}, error() {} };

const input = encodeTokens(
  Array.from({ length: ROWS }, (_, row) =>
    Uint16Array.from({ length: 20 + ((row * 37) % 121) }, (_unused, i) => 1000 + ((row * 31 + i * 7) % 20_000)),
  ),
);
const vectors = Float32Array.from({ length: ROWS * DIMS }, (_, i) => (i % DIMS === 0 ? 1 : 0));
const body = new Uint8Array(vectors.buffer);
const facts = {
  model: 'bench@0',
  prompt: undefined,
  truncate: 'end',
  output: { dtype: 'f32', dimensions: undefined },
} as const;
const fingerprint = fingerprintOf(facts, input);
const result = encodeResult({ dtype: 'f32', rows: ROWS, dims: DIMS, fingerprint, isTruncated: false }, body);

const median = (numbers: number[]): number => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)]!;

function microseconds(work: () => unknown): number {
  const times = Array.from({ length: ROUNDS }, () => {
    const begunMs = performance.now();
    work();
    return (performance.now() - begunMs) * 1000;
  });
  return Math.round(median(times) * 10) / 10;
}

function rangeCheck(): boolean {
  const decoded = decodeInput(input);
  return decoded.form === 'tokens' && hasAtLeast(30_522, decoded.ids);
}

/** Decoded once: as the pool holds them. Fresh rows each time, because merging marks them. */
const decoded = decodeInput(input);
function searchForEqualRows(): number {
  if (decoded.form !== 'tokens') throw new Error('the input has token ids');
  return mergeDuplicates(decoded.rows.map((ids) => ({ ids, second: 0, duplicates: [] }))).length;
}

function lengthCheck(): Float32Array {
  const target = new Float32Array(vectors.length);
  for (let row = 0; row < ROWS; row++) {
    let sum = 0;
    for (let i = row * DIMS; i < (row + 1) * DIMS; i++) sum += vectors[i]! * vectors[i]!;
    const factor = 1 / Math.sqrt(sum);
    for (let i = row * DIMS; i < (row + 1) * DIMS; i++) target[i] = vectors[i]! * factor;
  }
  return target;
}

/** Server CPU and elapsed time of `work`, µs per call; `work` is given the number of the call. */
async function onServer(
  server: TestServer,
  work: (call: number) => Promise<unknown>,
): Promise<{ server: number; elapsed: number }> {
  const cpuOf = async (): Promise<number> => {
    const info = String(await server.command('INFO', 'cpu'));
    return Number(/used_cpu_sys:([\d.]+)/.exec(info)?.[1]) + Number(/used_cpu_user:([\d.]+)/.exec(info)?.[1]);
  };
  for (let call = 0; call < 20; call++) await work(-1 - call);
  const cpu = await cpuOf();
  const begunMs = performance.now();
  for (let call = 0; call < ROUNDS; call++) await work(call);
  const elapsedMs = performance.now() - begunMs;
  return {
    server: Math.round((((await cpuOf()) - cpu) * 1e6) / ROUNDS),
    elapsed: Math.round((elapsedMs * 1000) / ROUNDS),
  };
}

async function commitCosts(server: TestServer, connection: Redis): Promise<object> {
  const store = await RedisPayloadStore.connect({ redisUrl: server.url, prefix: '{shoal}', queue: QUEUE, log: quiet });
  const plain = await onServer(server, (call) => connection.set(`plain:${call % 8}`, result, 'PX', 60_000));
  await connection.set(keys.lock(QUEUE, 'job'), 'token');
  const scripted = await onServer(server, async () => {
    await connection.unlink(keys.output(QUEUE, 'job'));
    const [outcome] = await store.commit([{ jobId: 'job', token: 'token', fingerprint, result, ttlMs: 60_000 }]);
    if (outcome !== 'committed') throw new Error(`the commit came back as ${outcome}`);
  });
  const unlinkAlone = await onServer(server, () => connection.unlink('nothing'));
  await store.stop();
  return {
    plainSet: plain,
    commitScript: { server: scripted.server - unlinkAlone.server, elapsed: scripted.elapsed - unlinkAlone.elapsed },
  };
}

openResult(result); // the answer is right before anything is timed
const withAof = await startTestServer({ appendFsync: 'everysec' });
const without = await startTestServer({ appendFsync: 'no' });
const connections = [withAof, without].map((server) => openConnection({ url: server.url, name: 'bench' }));
try {
  process.stdout.write(
    `${JSON.stringify({
      bench: 'safety-cost',
      cpu: cpus()[0]?.model,
      rows: ROWS,
      inputBytes: input.length,
      resultBytes: result.length,
      executorMicroseconds: {
        fingerprintOfInput: microseconds(() => fingerprintOf(facts, input)),
        decodeAndRangeOfIds: microseconds(rangeCheck),
        searchForEqualRows: microseconds(searchForEqualRows),
        lengthOfEveryVector: microseconds(lengthCheck),
        checksumAndHeader: microseconds(() =>
          encodeResult({ dtype: 'f32', rows: ROWS, dims: DIMS, fingerprint, isTruncated: false }, body),
        ),
      },
      clientMicroseconds: { checksum: microseconds(() => openResult(result)) },
      aofEverysec: await commitCosts(withAof, connections[0]!),
      noAof: await commitCosts(without, connections[1]!),
    })}\n`,
  );
} finally {
  await Promise.all(connections.map(closeConnection));
  await Promise.all([withAof.stop(), without.stop()]);
}
