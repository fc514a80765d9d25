// Cells die, and nothing is lost: several queue servers used as one through a file that changes, each with a supervised
// worker that helps the others, and clients of the SDK whose every row is compared with an undisturbed run's. By a seed:
// SIGKILL of workers, executors and cells, cells that come back with nothing, that are stopped and say nothing, cut
// connections; and by the file a cell is added, drained, and removed while requests are open in it. What each server told
// and every caller saw is held against what is promised (docs/simulation.md), each cell by itself.
//
//   node --conditions=@shoal/source bench/chaos/cells.ts [--seconds 60] [--cells 4] [--clients 2] [--calls 40]
//       [--mode everysec|always] [--outage 10] [--every 3] [--lease-ms 5000] [--seed N] [--record]
//
// Each client keeps `--calls` calls open (interactive, bulk, with ids of their own, and submitted to be fetched by id), and
// one stream whose rows must come in order, each once. `always`: no cell comes back with nothing, and what was submitted
// may not be unknown afterwards. Prints one JSON line and ends with 1 when a row was lost, wrong or twice, a call failed, or a
// promise was broken.

import { createHash } from 'node:crypto';
import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalClient } from '@shoal/client';
import { isShoalError } from '@shoal/contract';
import { cacheFolder } from '@shoal/core';
import type { Recorder } from '@shoal/world';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';
import { randomFrom } from '../rig/ragged-corpus.ts';
import { record } from '../rig/record.ts';
import { CellsHistory } from './cells-history.ts';
import { SupervisedFleet } from './fleet.ts';
import { MODEL } from './load.ts';
import { stopFor } from './process-faults.ts';
import { isSame } from './same-vectors.ts';

const args = readArguments(import.meta.url, {
  seconds: { type: 'string', default: '60' },
  cells: { type: 'string', default: '4' },
  clients: { type: 'string', default: '2' },
  calls: { type: 'string', default: '40' },
  mode: { type: 'string', default: 'everysec' },
  outage: { type: 'string', default: '10' },
  every: { type: 'string', default: '3' },
  'lease-ms': { type: 'string', default: '5000' },
  seed: { type: 'string', default: String(Math.floor(Math.random() * 1e6)) },
  record: { type: 'boolean', default: false },
});
/** How long everything may take to come to rest after the last fault. */
const REST_MS = 180_000;
const STOPPED_MS = 8_000;
const TEXTS = Array.from({ length: 1_024 }, (_, at) => `${at} ${'one more word '.repeat(1 + (at % 9))}`);
const FAULTS = [
  ['worker', 20],
  ['executor', 12],
  ['connections', 12],
  ['killed', 20],
  ['outage', 8],
  ['emptied', 10],
  ['stopped', 8],
  ['drained', 8],
  ['removed', 10],
] as const;
type FaultKind = (typeof FAULTS)[number][0];

const seconds = Number(args.seconds);
const mayForget = args.mode !== 'always';
const random = randomFrom(Number(args.seed));
const folder = mkdtempSync(join(tmpdir(), 'shoal-chaos-cells-'));
const file = join(folder, 'cells.json');
const counts = Object.fromEntries(FAULTS.map(([kind]) => [kind, 0])) as Record<FaultKind, number>;
const tally = { calls: 0, texts: 0, streamed: 0, submitted: 0, askedAgain: 0, wrong: 0, twice: 0, lost: 0 };
const failed: Record<string, number> = {};
const expected: Float32Array[] = [];
const ending = new AbortController();
const history = new CellsHistory(join(folder, 'history'), mayForget);
let open = 0;

interface Place {
  readonly name: string;
  readonly server: TestServer;
}

function listed(cells: readonly (Place & { readonly write?: boolean })[], path: string): void {
  const list = cells.map(({ name, server, write = true }) => ({ name, address: server.url, write }));
  writeFileSync(`${path}.new`, JSON.stringify(list));
  renameSync(`${path}.new`, path);
}

// ---- clients ------------------------------------------------------------------------------------------------------

async function learn(): Promise<void> {
  const client = await ShoalClient.connect({ cells: file, model: MODEL });
  const { vectors, dims } = await client.embed(TEXTS);
  for (const at of TEXTS.keys()) expected.push(vectors.slice(at * dims, (at + 1) * dims));
  await client.close();
}

function check(
  picked: readonly number[],
  { vectors, dims }: { readonly vectors: Float32Array; readonly dims: number },
): string {
  tally.texts += picked.length;
  if (vectors.length !== picked.length * dims) tally.lost++;
  const got = picked.map((text, at) =>
    isSame(vectors.subarray(at * dims, (at + 1) * dims), expected[text]!) ? text : -1,
  );
  tally.wrong += got.filter((text) => text === -1).length;
  return digestOf(got);
}

/** Of texts by their numbers, in order. */
function digestOf(texts: readonly number[]): string {
  return createHash('sha1').update(texts.join(' ')).digest('hex').slice(0, 16);
}

/** Until its answer is there: a request whose cell forgot it is submitted again, under the same id. */
async function submitted(
  client: ShoalClient,
  jobId: string,
  picked: readonly number[],
  caller: Recorder,
): Promise<void> {
  const texts = picked.map((at) => TEXTS[at]!);
  const fingerprint = digestOf(picked);
  for (;;) {
    const added = caller.invoke('add', jobId, { fingerprint, want: fingerprint });
    let taken = added;
    try {
      const { id } = await client.submit(texts, { jobId });
      added('ok', { outcome: 'added' });
      taken = caller.invoke('take', jobId);
      const { vectors, dims } = await client.job(id).result({ timeoutMs: 150_000 });
      if (!(vectors instanceof Float32Array)) throw new Error(`${id} has vectors of another form`);
      taken('ok', { outcome: 'body', fingerprint, got: check(picked, { vectors, dims }) });
      tally.submitted++;
      return;
    } catch (error) {
      taken('unknown');
      const isForgotten = isShoalError(error, 'INPUT_LOST') || isShoalError(error, 'RESULT_EXPIRED');
      const isElsewhere = isShoalError(error, 'QUEUE_UNREACHABLE') || isShoalError(error, 'CELL_UNKNOWN');
      if (!(isForgotten && mayForget) && !isElsewhere) throw error;
      tally.askedAgain++;
      await sleep(500);
    }
  }
}

async function call(client: ShoalClient, name: string, number: number, caller: Recorder): Promise<void> {
  const isInteractive = random() < 0.2;
  const count = isInteractive ? 1 + Math.floor(random() * 4) : 32 + Math.floor(random() * 160);
  const picked = Array.from({ length: count }, () => Math.floor(random() * TEXTS.length));
  const kind = random();
  const id = `${name}-${number}`;
  if (kind < 0.2) return submitted(client, id, picked, caller);
  const texts = picked.map((at) => TEXTS[at]!);
  const own = kind < 0.5 ? { jobId: id } : {};
  const fingerprint = digestOf(picked);
  const [added, taken] = [
    caller.invoke('add', id, { fingerprint, want: fingerprint }),
    caller.invoke('take', id), // its answer is the result itself
  ];
  try {
    const got = check(picked, await client.embed(texts, { class: isInteractive ? 'interactive' : 'bulk', ...own }));
    added('ok', { outcome: 'added' });
    taken('ok', { outcome: 'body', fingerprint, got });
  } catch (error) {
    for (const end of [added, taken]) end('unknown');
    throw error;
  }
}

async function calls(client: ShoalClient, name: string, caller: Recorder): Promise<void> {
  for (let number = 0; !ending.signal.aborted; number++) {
    open++;
    try {
      await call(client, name, number, caller);
      tally.calls++;
    } catch (error) {
      const code = isShoalError(error) ? error.code : String(error);
      process.stderr.write(
        `chaos: ${name}-${number} failed: ${error instanceof Error ? error.message : String(error)}\n`,
      );
      failed[code] = (failed[code] ?? 0) + 1;
    } finally {
      open--;
    }
  }
}

function* endless(): Generator<{ readonly text: string; readonly at: number }, void, undefined> {
  for (let at = 0; !ending.signal.aborted; at++) yield { text: TEXTS[at % TEXTS.length]!, at: at % TEXTS.length };
}

async function stream(client: ShoalClient): Promise<void> {
  open++;
  let due = 0;
  try {
    for await (const { item, vector, index } of client.embedMany(endless())) {
      if (index < due) tally.twice++;
      if (index > due) tally.lost += index - due;
      due = index + 1;
      if (!isSame(vector, expected[item.at]!)) tally.wrong++;
      tally.streamed++;
      await sleep(due % 64 === 0 ? 5 : 0);
    }
  } catch (error) {
    const code = isShoalError(error) ? error.code : String(error);
    process.stderr.write(`chaos: a stream failed: ${error instanceof Error ? error.message : String(error)}\n`);
    failed[code] = (failed[code] ?? 0) + 1;
  } finally {
    open--;
  }
}

// ---- faults -------------------------------------------------------------------------------------------------------

async function happen(kind: FaultKind, places: readonly Place[], fleet: SupervisedFleet): Promise<void> {
  counts[kind]++;
  const at = Math.floor(random() * places.length);
  const end = history.fault(kind, kind === 'worker' || kind === 'executor' ? undefined : at);
  await carryOut(kind, at, places, fleet);
  end();
}

async function carryOut(kind: FaultKind, at: number, places: readonly Place[], fleet: SupervisedFleet): Promise<void> {
  const { server } = places[at]!;
  switch (kind) {
    case 'worker':
      return fleet.killWorker(at);
    case 'executor':
      return fleet.killExecutor(at);
    case 'connections':
      await server.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
      return;
    case 'killed':
    case 'outage':
      await server.kill9();
      history.forgets(at, 'last');
      await sleep(kind === 'killed' ? random() * 2_000 : Number(args.outage) * 1_000);
      return server.restart();
    case 'emptied':
      await server.kill9();
      history.forgets(at, 'all');
      for (const entry of await readdir(server.folder))
        if (/aof|rdb/.test(entry)) await rm(join(server.folder, entry), { recursive: true });
      return server.restart();
    case 'stopped':
      return stopFor(server.pid, STOPPED_MS);
    case 'drained':
    case 'removed':
      return leaveAndReturn(kind, at, places);
  }
}

/** Drained for a while; or removed after that, with what is open there, and put back. */
async function leaveAndReturn(kind: 'drained' | 'removed', at: number, places: readonly Place[]): Promise<void> {
  listed(
    places.map((place, which) => ({ ...place, write: which !== at })),
    file,
  );
  await sleep(8_000); // its worker has nothing to do soon, and helps the others
  if (kind === 'removed') {
    listed(
      places.filter((_, which) => which !== at),
      file,
    );
    await sleep(6_000);
  }
  listed(places, file);
}

function anyFault(): FaultKind {
  const possible = FAULTS.filter(([kind]) => kind !== 'emptied' || mayForget);
  let left = random() * possible.reduce((sum, [, weight]) => sum + weight, 0);
  return (possible.find(([, weight]) => (left -= weight) < 0) ?? possible[0]!)[0];
}

// ---- the run ------------------------------------------------------------------------------------------------------

process.stderr.write(`chaos: seed ${args.seed}\n`);
const places = await Promise.all(
  Array.from({ length: Number(args.cells) }, async (_, at): Promise<Place> => {
    const appendFsync = mayForget ? 'everysec' : 'always';
    return { name: `c${at}`, server: await startTestServer({ appendFsync, topology: 'single' }) };
  }),
);
const known = join(folder, 'workers.json');
listed(places, known);
listed(places.slice(0, -1), file); // the last is added under load
const fleet = new SupervisedFleet({
  redisUrl: places[0]!.server.url,
  workers: places.map(({ server }) => ({
    SHOAL_REDIS_URL: server.url,
    SHOAL_CELLS: known,
    SHOAL_MODEL: MODEL,
    SHOAL_CACHE_DIR: cacheFolder(process.env['SHOAL_CACHE_DIR']),
    SHOAL_THREADS: '1',
    SHOAL_LOG_LEVEL: process.env['CHAOS_LOG'] ?? 'silent',
    SHOAL_LEASE_MS: args['lease-ms'],
    SHOAL_STALLED_CHECK_MS: String((Number(args['lease-ms']) / 3) | 0),
  })),
});
await fleet.start();
for (const { name, server } of places) await history.watch({ name, url: server.url });
await learn();
const clients = await Promise.all(
  Array.from({ length: Number(args.clients) }, () => ShoalClient.connect({ cells: file, model: MODEL })),
);
const running = clients.flatMap((client, which) => {
  const caller = history.caller(`client-${which}`);
  return [
    stream(client),
    ...Array.from({ length: Number(args.calls) }, (_, at) => calls(client, `run${args.seed}.${which}.${at}`, caller)),
  ];
});
const startedMs = performance.now();
const elapsed = (): number => (performance.now() - startedMs) / 1_000;
let isAdded = false;
while (elapsed() < seconds) {
  await sleep((0.5 + random()) * Number(args.every) * 1_000);
  if (!isAdded) listed(places, file);
  isAdded = true;
  await happen(anyFault(), places, fleet);
  process.stderr.write(
    `chaos: ${Math.round(elapsed())} s, ${tally.calls} calls, ${tally.streamed} rows streamed, ${open} open\n`,
  );
}
ending.abort();
const restMs = performance.now();
await Promise.race([Promise.all(running), sleep(REST_MS, undefined, { ref: false })]);
const restSeconds = Number(((performance.now() - restMs) / 1_000).toFixed(1));
tally.lost += open;
const helped = await helpedJobs();
await Promise.race([Promise.all(clients.map((client) => client.close())), sleep(10_000, undefined, { ref: false })]);
const exitCodes = await fleet.stop();
const judged = await history.judge(REST_MS);
await Promise.all(places.map(({ server }) => server.stop()));
rmSync(folder, { recursive: true, force: true });
const told = {
  seconds: Math.round(elapsed()),
  ...tally,
  failed,
  open,
  helped,
  faults: counts,
  workerStarts: fleet.starts,
};
process.stdout.write(
  `${JSON.stringify({ bench: 'chaos', cells: places.length, mode: args.mode, seed: Number(args.seed), ...told, exitCodes, restSeconds, history: judged })}\n`,
);
const failures = Object.values(failed).reduce((sum, count) => sum + count, 0);
record({
  bench: 'chaos',
  case: `${places.length} cells, mode ${args.mode}`,
  figures: {
    texts: tally.texts + tally.streamed,
    calls: tally.calls,
    run_s: told.seconds,
    lost_wrong_or_twice: tally.lost + tally.wrong + tally.twice,
    history_violations: judged.violations + judged.undecided,
    history_events: judged.events,
    failed: failures,
    asked_again: tally.askedAgain,
    jobs_helped: helped,
    worker_starts: fleet.starts,
    faults: Object.values(counts).reduce((sum, count) => sum + count, 0),
  },
  bar: { figure: 'lost_wrong_or_twice', at_most: 0 },
});
if (tally.lost + tally.wrong + tally.twice + failures > 0) {
  process.stderr.write(`chaos: something was lost, wrong, twice or failed (seed ${args.seed})\n`);
  process.exitCode = 1;
}
if (judged.violations + judged.undecided > 0) {
  process.stderr.write(
    `chaos: the history has ${judged.violations} violations and ${judged.undecided} requests that nothing can be said of (seed ${args.seed})\n`,
  );
  process.exitCode = 1;
}
process.exit();

/** Jobs that workers which live now claimed of other cells. */
async function helpedJobs(): Promise<number> {
  const facts = await Promise.all(
    places.map(({ server }) => server.command('HVALS', `{shoal}:facts:embed-${MODEL}`).catch(() => [])),
  );
  return facts
    .flatMap((of) => (Array.isArray(of) ? of : []))
    .reduce((sum: number, text) => {
      const { helped: jobs = [] }: { readonly helped?: readonly { readonly jobs: number }[] } = JSON.parse(
        String(text),
      );
      return sum + jobs.reduce((total, one) => total + one.jobs, 0);
    }, 0);
}
