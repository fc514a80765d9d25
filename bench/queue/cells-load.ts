// Work that has nothing of Shoal in it, for the controls of cells.ts, in a process of its own on processors that it is
// held to: it spins for a time and says how far it came, spins for a share of the time until it is told to rest, times
// a short loop again and again, or has a server run a script as fast as it can.

import { setImmediate as turnOfLoop, setTimeout as sleep } from 'node:timers/promises';
import { closeConnection, openConnection, untilReady } from '@shoal/queue';
import { median } from '@shoal/core/base';

export type LoadAsked =
  | { readonly ask: 'spin'; readonly ms: number }
  | { readonly ask: 'burn'; readonly share: number }
  | { readonly ask: 'time' }
  | { readonly ask: 'rest' }
  | { readonly ask: 'raw'; readonly url: string; readonly ms: number };

/** Loops of `spin`, µs of the loop that `time` timed, calls of `raw` in a second; else 0. */
export interface LoadTold {
  readonly told: number;
}

const TIMED_LOOPS = 200_000;
const SLICE_MS = 10;
const PIPELINE = 64;
/** About what adding, claiming and ending a job do to a server: fields, lines, a body. */
const SCRIPT = `
local key = KEYS[1]
redis.call('HSET', key, 'data', ARGV[1], 'priority', '1', 'delay', '0', 'timestamp', '1', 'opts', '{}')
for at = 1, 4 do
  redis.call('LPUSH', key .. ':wait', key)
  redis.call('ZADD', key .. ':marks', at, key)
  redis.call('RPOPLPUSH', key .. ':wait', key .. ':active')
  redis.call('HGETALL', key)
  redis.call('LREM', key .. ':active', 1, key)
  redis.call('ZREM', key .. ':marks', key)
end
redis.call('SET', key .. ':body', ARGV[2], 'EX', 60)
redis.call('XADD', key .. ':events', 'MAXLEN', '~', 100, '*', 'event', 'completed')
return redis.call('DEL', key)`;

let work = 0;
let resting = new AbortController();
let timed: number[] = [];

process.on('message', (asked: LoadAsked) => void answer(asked));

async function answer(asked: LoadAsked): Promise<void> {
  process.send!({ told: await done(asked) } satisfies LoadTold);
}

async function done(asked: LoadAsked): Promise<number> {
  switch (asked.ask) {
    case 'spin':
      return spin(asked.ms);
    case 'burn':
      resting = new AbortController();
      void burn(asked.share, resting.signal);
      return 0;
    case 'time':
      resting = new AbortController();
      timed = [];
      void time(resting.signal);
      return 0;
    case 'rest':
      resting.abort();
      return timed.length === 0 ? 0 : median(timed);
    case 'raw':
      return raw(asked.url, asked.ms);
  }
}

/** Chains that do not wait for each other, so that the other half of a core is felt. */
function loops(count: number): void {
  let [a, b, c, d] = [work | 1, work | 3, work | 5, work | 7];
  for (let at = 0; at < count; at++) {
    a = (Math.imul(a, 1_103_515_245) + 12_345) | 0;
    b = (Math.imul(b, 1_664_525) + 1_013) | 0;
    c = (Math.imul(c, 22_695_477) + 1) | 0;
    d = (Math.imul(d, 134_775_813) + 1) | 0;
  }
  work = a ^ b ^ c ^ d;
}

function spin(ms: number): number {
  const untilMs = performance.now() + ms;
  let told = 0;
  for (; performance.now() < untilMs; told++) loops(1_000);
  return told;
}

async function burn(share: number, until: AbortSignal): Promise<void> {
  while (!until.aborted) {
    spin(SLICE_MS * share);
    await (share < 1 ? sleep(SLICE_MS * (1 - share)) : turnOfLoop());
  }
}

async function time(until: AbortSignal): Promise<void> {
  while (!until.aborted) {
    const startedMs = performance.now();
    loops(TIMED_LOOPS);
    timed.push(1_000 * (performance.now() - startedMs));
    await sleep(50);
  }
}

async function raw(url: string, ms: number): Promise<number> {
  const connection = openConnection({ url, name: 'cells-raw' });
  await untilReady(connection, url);
  const startedMs = performance.now();
  let calls = 0;
  const lane = async (name: string): Promise<void> => {
    while (performance.now() < startedMs + ms) {
      const pipeline = connection.pipeline();
      for (let at = 0; at < PIPELINE; at++)
        pipeline.eval(SCRIPT, 1, `raw:${name}:${at}`, 'x'.repeat(400), 'y'.repeat(4_000));
      for (const [error] of (await pipeline.exec()) ?? []) if (error !== null) throw error;
      calls += PIPELINE;
    }
  };
  await Promise.all(['a', 'b'].map(lane)); // one is on its way while the other is run
  const seconds = (performance.now() - startedMs) / 1_000;
  await closeConnection(connection);
  return calls / seconds;
}
