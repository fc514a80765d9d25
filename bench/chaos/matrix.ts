// The matrix of faults with real processes: one process, one fault, a small load, and the history of all calls held
// against what is promised. docs/fault-matrix.md has the cells, their promises and the newest run of each.
//
//   node --conditions=@shoal/source bench/chaos/matrix.ts --only claimer:kill[,executor:stop…] [--seed N]
//       [--lease-ms 5000] [--rest 90] [--record]
//
// `claimer:all` takes all cells of a process that can be made. Cells of one call share a stage and a history, one fault
// after the other: where something is found, all of them count as broken, until each was run alone. Clocks need
// SHOAL_TEST_FAKETIME, the path of a libfaketime.so.1 (Debian has it). Linux only; a full disk needs root. One JSON line
// a cell; exit 1 when something was found or could not be made.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { cacheFolder } from '@shoal/core';
import { readArguments, refuse } from '../rig/arguments.ts';
import { randomFrom } from '../rig/ragged-corpus.ts';
import { record } from '../rig/record.ts';
import { judgeHistory } from './judge-history.ts';
import { prepareLoad, type Load } from './load.ts';
import { CELLS, CELL_NAMES, PROCESSES, caseOf, isCellName, type CellName } from './matrix-cells.ts';
import { isOfPrivate, makeFault, stageOf } from './matrix-faults.ts';
import { Stage, type OnDisk, type StageOptions } from './matrix-stage.ts';

const args = readArguments(import.meta.url, {
  only: { type: 'string' },
  seed: { type: 'string', default: '1' },
  'lease-ms': { type: 'string', default: '5000' },
  rest: { type: 'string', default: '90' },
  record: { type: 'boolean', default: false },
});
/** Jobs that complete before the first fault, between two, and after the last. */
const CALM_JOBS = 20;
const CALM_WITHIN_MS = 180_000;

/** Cells that were asked for; refuses names that there are not, and those that nothing can make. */
function chosenCells(only: string | undefined): CellName[] {
  if (only === undefined) refuse('--only names no cell: claimer:kill, or claimer:all');
  return only.split(',').flatMap((asked) => {
    const [who = '', fault] = asked.split(':');
    if (fault === 'all' && Object.hasOwn(PROCESSES, who)) {
      const cells = CELL_NAMES.filter((name) => name.startsWith(`${who}:`) && isMade(name));
      return cells.length > 0 ? cells : refuse(`no cell of ${who} can be made yet`);
    }
    if (!isCellName(asked)) return refuse(`there is no cell ${asked}: a process and a fault of docs/fault-matrix.md`);
    const cell = CELLS[asked];
    if ('not' in cell) return refuse(`${asked} cannot be: ${cell.not}`);
    return isMade(asked)
      ? [asked]
      : refuse(`${asked} cannot be made yet; cells that can say how in docs/fault-matrix.md`);
  });
}

function isMade(name: CellName): boolean {
  const cell = CELLS[name];
  return 'made' in cell && cell.made !== undefined;
}

async function runGroup(
  { kind, isPrivate }: Pick<StageOptions, 'kind' | 'isPrivate'>,
  cells: readonly CellName[],
  folder: string,
  load: Load,
): Promise<boolean> {
  const stage = await Stage.start({
    kind,
    isPrivate,
    folder,
    cacheDir: cacheFolder(process.env['SHOAL_CACHE_DIR']),
    load,
    seed: Number(args.seed),
    leaseMs: Number(args['lease-ms']),
    hasReplica: cells.some((name) => name.startsWith('replica:')),
    hasHttp: cells.some((name) => name.startsWith('http:')),
    hasCli: cells.some((name) => name.startsWith('cli:')),
    filled: cells.flatMap((name) => (name.endsWith(':disk') ? [name.split(':')[0] as OnDisk] : [])),
    faketime: process.env['SHOAL_TEST_FAKETIME'],
  });
  try {
    for (const name of cells) {
      await calm(stage);
      process.stderr.write(`matrix: ${name}\n`);
      await makeFault(stage, name);
    }
    await calm(stage);
    const restMs = Number(args.rest) * 1_000;
    const startedMs = performance.now();
    const final = await Promise.race([stage.finish(), sleep(restMs, undefined, { ref: false })]);
    const report = final ?? (await stage.report());
    const restSeconds = Number(((performance.now() - startedMs) / 1_000).toFixed(1));
    stage.history.observe('rest', '');
    const judged = judgeHistory(stage.histories, { settleMs: restMs });
    const { lost, wrong, visibleTwice, open } = report;
    const http = stage.http?.report();
    const cli = stage.cli?.report();
    const breaches =
      judged.violations +
      judged.undecided +
      lost +
      wrong +
      visibleTwice +
      open +
      (http?.wrong ?? 0) +
      (cli?.wrong ?? 0);
    for (const name of cells) {
      const row = record({
        bench: 'matrix',
        case: caseOf(name),
        figures: {
          breaches,
          acknowledged_jobs: report.acknowledged,
          completed_jobs: report.completed,
          added_again: report.addedAgain,
          claimed_again: report.claimedAgain,
          history_events: judged.events,
          worker_starts: stage.fleet.starts,
          ...named('http', http),
          ...named('embed', cli),
          rest_s: restSeconds,
        },
        bar: { figure: 'breaches', at_most: 0 },
      });
      process.stdout.write(`${JSON.stringify(row)}\n`);
    }
    if (report.completed === 0) throw new Error('no job completed: nothing was shown');
    return breaches === 0;
  } finally {
    await stage.stop();
  }
}

/** Resolves when some jobs more have completed: nothing is shown by a fault that nobody works under. */
async function calm(stage: Stage): Promise<void> {
  const { completed } = await stage.report();
  const before = workOf(stage);
  for (const startedMs = performance.now(); performance.now() - startedMs < CALM_WITHIN_MS; await sleep(200)) {
    const isAtWork = workOf(stage).every((done, at) => done > before[at]!);
    if (isAtWork && (await stage.report()).completed >= completed + CALM_JOBS) return;
  }
  throw new Error(
    `within ${CALM_WITHIN_MS / 1_000} s fewer than ${CALM_JOBS} jobs completed after ${completed} (now ` +
      `${(await stage.report()).completed}), or nothing was done beside them (before ${before}, now ${workOf(stage)})`,
  );
}

/** What HTTP and the command have done so far: requests, files that were stored, files that were written. */
function workOf({ http, cli }: Stage): number[] {
  const told = http?.report();
  return [
    ...(told === undefined ? [] : [told.answered, told.files]),
    ...(cli === undefined ? [] : [cli.report().files]),
  ];
}

function named(who: string, report: object = {}): Record<string, number> {
  return Object.fromEntries(Object.entries(report).map(([what, count]) => [`${who}_${what}`, Number(count)]));
}

async function main(): Promise<void> {
  const cells = chosenCells(args.only);
  if (cells.some((name) => stageOf(name) === 'clock') && process.env['SHOAL_TEST_FAKETIME'] === undefined)
    refuse('clocks need SHOAL_TEST_FAKETIME, the path of a libfaketime.so.1');
  const folder = mkdtempSync(join(tmpdir(), 'shoal-matrix-'));
  try {
    const load = await prepareLoad(folder, cacheFolder(process.env['SHOAL_CACHE_DIR']), randomFrom(Number(args.seed)));
    for (const isPrivate of [false, true]) {
      for (const kind of ['plain', 'disk', 'clock'] as const) {
        const group = cells.filter((name) => stageOf(name) === kind && isOfPrivate(name) === isPrivate);
        if (group.length > 0 && !(await runGroup({ kind, isPrivate }, group, folder, load))) process.exitCode = 1;
      }
    }
  } finally {
    if (process.exitCode === 1) process.stderr.write(`matrix: the histories are in ${folder}\n`);
    else rmSync(folder, { recursive: true, force: true });
  }
}

await main();
process.exit();
