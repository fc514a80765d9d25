// A queue that is asked for ten times what it can do: clients add as fast as they may, the device takes 15 ms a run of
// 256 rows, and the server has little memory. Three acts: everybody reads; nobody reads for a while; readers return.
// Then the estimate: how long a refused client was told to wait, against how long it was until all that it had asked
// for was let in.
//
//   node --conditions=@shoal/source bench/queue/admission.ts [--seconds 15] [--maxmemory 192] [--clients 4] [--report]
//
// Bars: used memory never above maxmemory and no write refused by it; everything accepted is delivered, each row
// checked; median error of the told wait ≤ 30 %. One JSON line, exit 1 when a bar is missed. Takes about 90 s. Wants a
// quiet machine.

import { availableParallelism, cpus } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { readArguments } from '../rig/arguments.ts';
import { FIXED_DEVICE, Load, openRig, percentile, type Rig } from '../rig/rig.ts';

const args = readArguments(import.meta.url, {
  seconds: { type: 'string', default: '15' },
  maxmemory: { type: 'string', default: '192' },
  clients: { type: 'string', default: '4' },
  report: { type: 'boolean', default: false },
});
const seconds = Number(args.seconds);
const DEVICE = { ...FIXED_DEVICE, SHOAL_MAX_ROWS: '256', SHOAL_MAX_PADDED_TOKENS: '16384', SHOAL_POOL_TOKENS: '20000' };
const JOBS_AT_ONCE = 16;
const missed: string[] = [];
/** Whether clients fetch what they hear of, whether they add, and whether one was refused. */
const act = { isReading: true, isAdding: true, isFull: false };

interface Told {
  readonly toldMs: number;
  readonly tookMs: number;
}

/**
 * Adds without end: what is refused is asked for again when it was told to, and in between every few ms to see when
 * there is room.
 */
async function pushOn(load: Load, told: Told[]): Promise<number> {
  let accepted = 0;
  let wanted = JOBS_AT_ONCE;
  while (act.isAdding) {
    const refused = await load.add(wanted);
    accepted += wanted - refused.length;
    const [first] = refused;
    if (first === undefined) continue;
    act.isFull = true;
    const toldMs = Number(first.error.fields['retryAfterMs']);
    const refusedMs = performance.now();
    await sleep(toldMs * 0.3);
    for (wanted = refused.length; act.isAdding && wanted > 0; await sleep(Math.max(3, toldMs / 30))) {
      const again = await load.add(wanted);
      accepted += wanted - again.length;
      wanted = again.length;
    }
    if (wanted === 0) told.push({ toldMs, tookMs: performance.now() - refusedMs });
    wanted = JOBS_AT_ONCE;
  }
  return accepted;
}

function watchMemory(rig: Rig): { stop(): { peakMegabytes: number; refusedWrites: number } } {
  let peak = 0;
  let refusedWrites = 0;
  const look = async (): Promise<void> => {
    const memory = String(await rig.server.command('INFO', 'memory'));
    peak = Math.max(peak, Number(/used_memory:(\d+)/.exec(memory)?.[1]));
    refusedWrites = Number(
      /errorstat_OOM:count=(\d+)/.exec(String(await rig.server.command('INFO', 'errorstats')))?.[1] ?? 0,
    );
  };
  const timer = setInterval(() => void look(), 50);
  return {
    stop: () => {
      clearInterval(timer);
      return { peakMegabytes: Math.round(peak / 1e6), refusedWrites };
    },
  };
}

const rig = await openRig(DEVICE, { serverArgs: ['--maxmemory', `${args.maxmemory}mb`] });
try {
  const loads = await Promise.all(
    Array.from({ length: Number(args.clients) }, (_, i) =>
      Load.connect({
        url: rig.url,
        name: `client${i}`,
        rows: 64,
        class: 'bulk',
        isReading: () => act.isReading,
        limits: { maxTenantShare: 1 },
      }),
    ),
  );
  for (const load of loads) await load.offer(20, 1); // warms, and checks the answers
  const watch = watchMemory(rig);
  const told: Told[] = [];
  const startedAt = loads.reduce((sum, load) => sum + load.ended.length, 0);
  const accepting = Promise.all(loads.map((load) => pushOn(load, told)));
  const ended = (): number => loads.reduce((sum, load) => sum + load.ended.length, 0);
  while (!act.isFull) await sleep(20);
  await sleep(3_000); // until it is known how fast room comes back
  const unready = told.length;
  const fullAt = ended();
  await sleep(seconds * 1_000);
  const readingRate = ((ended() - fullAt) * 64) / seconds;
  const reliable = told.length;
  act.isReading = false;
  await sleep(seconds * 1_000);
  const toldToNobody = told.length - reliable;
  act.isReading = true;
  for (const load of loads) await load.ask();
  await sleep(seconds * 1_000);
  act.isAdding = false;
  const accepted = (await accepting).reduce((sum, count) => sum + count, 0);
  for (const load of loads) await load.allEnded();
  const delivered = ended() - startedAt;
  const { peakMegabytes, refusedWrites } = watch.stop();
  await Promise.all(loads.map((load) => load.close()));
  // Of the waits that began and ended while everybody read: what nobody fetches comes back at no rate at all.
  const errors = told.slice(unready, reliable).map(({ toldMs, tookMs }) => Math.abs(toldMs - tookMs) / tookMs);
  const medianError = percentile(errors, 0.5);
  const failed = loads.reduce((sum, load) => sum + load.failed, 0);
  if (peakMegabytes > Number(args.maxmemory) * 1.048_576) missed.push(`the server used ${peakMegabytes} MB`);
  if (refusedWrites > 0) missed.push(`the server refused ${refusedWrites} writes for want of memory`);
  if (delivered !== accepted || failed > 0)
    missed.push(`${accepted} jobs were accepted, ${delivered} delivered, ${failed} failed`);
  if (!(medianError <= 0.3)) missed.push(`the told wait is off by ${Math.round(100 * medianError)} % (median)`);
  process.stdout.write(
    `${JSON.stringify({
      bench: 'admission',
      cpu: cpus()[0]?.model,
      cores: availableParallelism(),
      maxmemoryMegabytes: Number(args.maxmemory),
      textsPerSecondWhileReading: Math.round(readingRate),
      accepted,
      delivered,
      failed,
      peakMegabytes,
      refusedWrites,
      waits: errors.length,
      toldMs: {
        median: percentile(
          told.slice(unready, reliable).map(({ toldMs }) => toldMs),
          0.5,
        ),
      },
      medianError: Math.round(1_000 * medianError) / 1_000,
      p90Error: Math.round(1_000 * percentile(errors, 0.9)) / 1_000,
      waitsWithoutReaders: toldToNobody,
      missed,
    })}\n`,
  );
} finally {
  await rig.stop();
}
if (missed.length > 0 && !args.report) process.exitCode = 1;
