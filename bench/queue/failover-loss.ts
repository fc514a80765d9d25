// What a failover loses: jobs that a master acknowledged and its successor does not have. A producer adds jobs as fast
// as it can to a master with one replica that three Sentinels watch; then the master fails in one of several ways, and
// every id that was acknowledged before is looked for on the successor.
//
//   node --conditions=@shoal/source bench/queue/failover-loss.ts [--rounds 3] [--seconds 2] [--causes
//   killed,cut-off,replaced,replaced-paused] [--modes plain,min-replicas,wait]
//
// Causes: *killed* by SIGKILL; *cut-off*: killed after its replica had been out of reach for `--seconds`; *replaced* by
// SENTINEL FAILOVER while it lives; *replaced-paused*: the same after CLIENT PAUSE … WRITE. Modes: *plain*;
// *min-replicas*: min-replicas-to-write 1, min-replicas-max-lag 1; *wait*: the producer counts as acknowledged only
// what WAIT 1 confirmed. Prints one JSON line per cause and mode: jobs acknowledged and lost in all rounds, the age of
// the oldest lost one when the master failed, and how long no job was taken.

import { cpus } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { Queue } from 'bullmq';
import { closeConnection, openConnection, untilReady, type Redis } from '@shoal/queue';
import { startTestTopology } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';

const args = readArguments(import.meta.url, {
  rounds: { type: 'string', default: '3' },
  seconds: { type: 'string', default: '2' },
  causes: { type: 'string', default: 'killed,cut-off,replaced,replaced-paused' },
  modes: { type: 'string', default: 'plain,min-replicas,wait' },
});
const ROUNDS = Number(args.rounds);
const LAG_MS = Number(args.seconds) * 1_000;
const PREFIX = '{shoal}';
const QUEUE = 'embed-bench';
const JOBS_PER_CALL = 20;
const CALLS_IN_FLIGHT = 8;

type Topology = Awaited<ReturnType<typeof startTestTopology>>;

interface Round {
  readonly acknowledged: number;
  readonly lost: number;
  readonly oldestLostMs: number;
  readonly pauseMs: number;
}

for (const cause of args.causes.split(',')) {
  for (const mode of args.modes.split(',')) {
    const rounds: Round[] = [];
    for (let round = 0; round < ROUNDS; round++) rounds.push(await playRound(cause, mode));
    const sum = (of: (round: Round) => number): number => rounds.reduce((total, round) => total + of(round), 0);
    console.log(
      JSON.stringify({
        bench: 'failover-loss',
        cause,
        mode,
        rounds: ROUNDS,
        acknowledged: sum(({ acknowledged }) => acknowledged),
        lost: sum(({ lost }) => lost),
        lostByRound: rounds.map(({ lost }) => lost),
        oldestLostMs: Math.max(...rounds.map(({ oldestLostMs }) => oldestLostMs)),
        pauseMs: rounds.map(({ pauseMs }) => pauseMs),
        cpu: cpus()[0]?.model,
      }),
    );
  }
}

async function playRound(cause: string, mode: string): Promise<Round> {
  const servers = await startTestTopology('sentinel', {
    args: mode === 'min-replicas' ? ['--min-replicas-to-write', '1', '--min-replicas-max-lag', '1'] : [],
  });
  const connection = openConnection({ url: servers.url, prefix: PREFIX, name: 'bench' });
  await untilReady(connection, servers.url);
  let breaks = 0;
  connection.on('close', () => breaks++);
  const queue = new Queue(QUEUE, { prefix: PREFIX, connection });
  queue.on('error', () => undefined);
  const acknowledgedAt = new Map<string, number>();
  const end = new AbortController();
  const adding = Promise.all(
    Array.from({ length: CALLS_IN_FLIGHT }, (_, lane) =>
      addJobs({
        queue,
        connection,
        lane,
        isWaiting: mode === 'wait',
        breaks: () => breaks,
        acknowledgedAt,
        signal: end.signal,
      }),
    ),
  );
  await sleep(500);
  const failedMs = await fail(servers, cause);
  if (!cause.startsWith('replaced')) {
    await servers.succeeded();
    // by whoever looks after it: a master that wants a replica takes no writes before it has one
    await servers.restart();
  }
  const backMs = performance.now();
  while (![...acknowledgedAt.values()].some((atMs) => atMs > backMs)) await sleep(50);
  end.abort();
  await adding;
  const lost = await missing(servers, [...acknowledgedAt.keys()]);
  const pauseMs = longestPause([...acknowledgedAt.values()]);
  await queue.close();
  await closeConnection(connection);
  await servers.stop();
  return {
    acknowledged: acknowledgedAt.size,
    lost: lost.length,
    pauseMs,
    oldestLostMs: Math.round(lost.reduce((oldest, id) => Math.max(oldest, failedMs - acknowledgedAt.get(id)!), 0)),
  };
}

/** Resolves to when the master was gone, or about to be replaced. */
async function fail(servers: Topology, cause: string): Promise<number> {
  if (cause.startsWith('replaced')) {
    const askedMs = performance.now();
    if (cause === 'replaced-paused') await servers.command('CLIENT', 'PAUSE', 20_000, 'WRITE');
    await servers.switchOver();
    return askedMs;
  }
  const replica = servers.servers.find(({ pid }) => pid !== servers.pid)!;
  if (cause === 'cut-off') {
    replica.pause(true);
    // or the sockets' buffers would bring it up to date afterwards
    await servers.command('CLIENT', 'KILL', 'TYPE', 'REPLICA');
    await sleep(LAG_MS);
  } else if (cause !== 'killed') throw new Error(`there is no cause "${cause}"`);
  await servers.kill9();
  const killedMs = performance.now();
  replica.pause(false);
  return killedMs;
}

function longestPause(moments: readonly number[]): number {
  const inOrder = moments.toSorted((a, b) => a - b);
  // No spread: a server that is quick acknowledges more jobs than a call can have arguments.
  return Math.round(inOrder.slice(1).reduce((longest, atMs, i) => Math.max(longest, atMs - inOrder[i]!), 0));
}

interface Adding {
  readonly queue: Queue;
  readonly connection: Redis;
  readonly lane: number;
  readonly isWaiting: boolean;
  /** How many times the connection broke so far. */
  readonly breaks: () => number;
  readonly acknowledgedAt: Map<string, number>;
  readonly signal: AbortSignal;
}

/**
 * A call that fails is not counted, and not repeated: what of it was stored is nobody's business here. WAIT speaks of
 * what its own connection wrote: when that broke in between, ioredis sends it again on the next one, to the successor,
 * which has nothing to wait for and says yes.
 */
async function addJobs({ queue, connection, lane, isWaiting, breaks, acknowledgedAt, signal }: Adding): Promise<void> {
  for (let call = 0; !signal.aborted; call++) {
    const ids = Array.from({ length: JOBS_PER_CALL }, (_, i) => `job-${lane}-${call}-${i}`);
    const breaksBefore = breaks();
    try {
      await queue.addBulk(
        ids.map((jobId) => ({
          name: 'embed',
          data: { v: 1, texts: ['a text of the usual length, or so'] },
          opts: { jobId },
        })),
      );
      if (isWaiting && (Number(await connection.call('WAIT', 1, 1_000)) < 1 || breaks() > breaksBefore)) continue;
      const atMs = performance.now();
      for (const id of ids) acknowledgedAt.set(id, atMs);
    } catch {
      await sleep(50);
    }
  }
}

async function missing(servers: Topology, ids: readonly string[]): Promise<string[]> {
  const found: unknown[] = [];
  for (const id of ids) found.push(servers.command('EXISTS', `${PREFIX}:${QUEUE}:${id}`));
  const replies = await Promise.all(found);
  return ids.filter((_, at) => replies[at] !== 1);
}
