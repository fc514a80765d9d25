// `shoal fleet`: who serves a model, how full its lanes are, what stands in the way; and workers told to claim nothing
// or to go on. Everything goes through the queue server that is there, so it works from any machine that reaches it.

import { ShoalError } from '@shoal/contract';
import { LENGTH_CLASSES, type ByLength } from '@shoal/core';
import type { LedgerFacts, SimilarityFacts } from '@shoal/core/similarity';
import {
  Fleet,
  isSimulated,
  latelyOf,
  readLately,
  reasonsText,
  totalOf,
  type AbsentWorker,
  type ExecutorLosses,
  type FleetView,
  type Lately,
  type LatelyRead,
  type LiveWorker,
  type ParkedJobs,
  type PayloadsSeen,
} from '@shoal/queue';
import { audited } from '../processes/audited.ts';
import { overCells } from '../processes/over-cells.ts';
import { withRunningQueue, type RunningQueue } from '../processes/running-queue.ts';
import { settingsOf } from '../settings.ts';
import { age, table } from '../table.ts';
import { print, say, type Terminal } from '../terminal.ts';
import { describePayloads, payloadsHere, payloadsIn } from './fleet-payloads.ts';
import { restartWorkers, type RestartFlags } from './fleet-restart.ts';

export interface FleetFlags {
  readonly json?: boolean;
  readonly quiet?: boolean;
  /** A queue by its name, instead of a model's. */
  readonly queue?: string;
}

export interface StatusFlags extends FleetFlags {
  readonly all?: boolean;
}

export async function status(terminal: Terminal, flags: StatusFlags): Promise<void> {
  await overCells(terminal, flags, statusHere);
}

async function statusHere(terminal: Terminal, flags: StatusFlags): Promise<void> {
  if (flags.all === true) return (await import('./all-queues.ts')).statusOfAll(terminal, flags);
  await withFleet(terminal, flags, async (fleet, place) => {
    const [view, lately, here] = await Promise.all([
      fleet.read(),
      readLately(place),
      payloadsHere(await settingsOf(terminal, flags)),
    ]);
    const payloads = payloadsIn(view, here);
    const seen = { ...view, ...latelyIn(view, lately), ...(payloads !== undefined && { payloads }) };
    const warnings = [...warningsOf(seen), ...unlooked(lately)];
    if (flags.json === true) return print(terminal, `${JSON.stringify({ ...seen, warnings }, null, 1)}\n`);
    const tables = `${describe(view)}${describePayloads(payloads, view)}`;
    await print(terminal, `${tables}${leftOf(seen)}${warnings.map((warning) => `! ${warning}\n`).join('')}`);
  });
}

/** What happened to workers of this queue in the last ten minutes. */
export function latelyIn({ workers, lanes }: FleetView, { histories }: LatelyRead): Lately {
  const live = workers.map(({ workerId }) => workerId);
  return latelyOf(histories, live, lanes.main.queue);
}

/** Said once, of however many queues. */
export function unlooked({ isWhole }: LatelyRead): string[] {
  return isWhole ? [] : ['the server has more than a million keys: not every worker that died was looked for'];
}

/** Those that left in order and are not back: nothing is wrong with that, and it may be what somebody looks for. */
export function leftOf({ absent, atMs = 0 }: StatusSeen): string {
  const left = absent.filter(({ hasLeft, successor }) => hasLeft && successor === undefined);
  if (left.length === 0) return '';
  const named = left.map(({ workerId, lastMs }) => `${workerId} ${age(Math.max(0, atMs - lastMs))} ago`);
  return `left in order in the last ten minutes, and nobody of the same name is back: ${named.join(', ')}\n`;
}

export async function drain(terminal: Terminal, which: string, flags: FleetFlags): Promise<void> {
  refuseNobody(which);
  await withFleet(terminal, flags, async (fleet, place) => {
    const workerIds = await fleet.drain(which);
    await audited(terminal, place, { what: 'fleet drain', queue: place.queue, ids: workerIds, details: { which } });
    await report(
      terminal,
      flags,
      workerIds,
      `${told(workerIds)} to claim nothing more; what they have they finish. shoal fleet resume ${which} lets ` +
        'them go on',
    );
  });
}

export async function resume(terminal: Terminal, which: string, flags: FleetFlags): Promise<void> {
  refuseNobody(which);
  await withFleet(terminal, flags, async (fleet, place) => {
    const workerIds = await fleet.resume(which);
    await audited(terminal, place, { what: 'fleet resume', queue: place.queue, ids: workerIds, details: { which } });
    await report(terminal, flags, workerIds, `${told(workerIds)} to claim again`);
  });
}

export async function restart(terminal: Terminal, which: string, flags: RestartFlags): Promise<void> {
  refuseNobody(which);
  await withFleet(terminal, flags, (fleet, place) => restartWorkers(terminal, fleet, which, flags, place));
}

/** Every id begins with an empty text, which a script passes when its variable is not set. */
function refuseNobody(which: string): void {
  if (which.trim() === '')
    throw new ShoalError(
      'USAGE',
      'the worker is an empty text: give an id, the beginning of one, or all; shoal fleet status shows who is alive',
    );
}

async function withFleet(
  terminal: Terminal,
  flags: FleetFlags,
  use: (fleet: Fleet, place: RunningQueue) => Promise<void>,
): Promise<void> {
  await withRunningQueue(terminal, flags, async (place) => {
    const fleet = await Fleet.connect(place);
    try {
      await use(fleet, place);
    } finally {
      await fleet.close();
    }
  });
}

async function report(
  terminal: Terminal,
  flags: FleetFlags,
  workerIds: readonly string[],
  message: string,
): Promise<void> {
  if (flags.json === true) await print(terminal, `${JSON.stringify({ workers: workerIds })}\n`);
  else if (flags.quiet !== true) say(terminal, message);
}

function told(workerIds: readonly string[]): string {
  if (workerIds.length === 0) return 'no worker is alive now; those that start later are told';
  return `${workerIds.length} worker${workerIds.length === 1 ? ' is' : 's are'} told (${workerIds.join(', ')})`;
}

/** A fleet as it is, and what happened in it lately. */
export type StatusSeen = FleetView & Lately & { readonly payloads?: PayloadsSeen };

/** What a person should know who only looked at numbers, and what to do. */
export function warningsOf(seen: StatusSeen): string[] {
  const { lanes, workers, isAllDrained, quarantined = 0, losses, absent, atMs = 0 } = seen;
  const { main, cpu } = lanes;
  const serving = (lane: 'main' | 'cpu'): LiveWorker[] =>
    workers.filter((worker) => worker.lanes.includes(lane) && !worker.isDrained);
  const inState = (state: LiveWorker['state']): LiveWorker[] => workers.filter((worker) => worker.state === state);
  const drained = workers.filter(({ isDrained }) => isDrained);
  const simulations = workers.flatMap(({ workerId, facts }) =>
    facts !== undefined && isSimulated(facts.device) ? [workerId] : [],
  );
  const lost = main.handedOver - (cpu.waiting + cpu.active + cpu.delayed + totalOf(cpu.parked));
  return [
    ...(cpu.waiting > 0 && serving('cpu').length === 0
      ? [`the CPU lane has ${jobs(cpu.waiting)} and no CPU worker; start one with shoal worker --device cpu`]
      : []),
    ...(main.waiting > 0 && serving('main').length === 0
      ? [
          `the main lane has ${jobs(main.waiting)} and no worker serves it; start one with shoal worker ` +
            see('nobody-serves'),
        ]
      : []),
    ...[main, cpu].flatMap(({ queue, parked }) => tooNew(queue, parked)),
    ...[main, cpu].flatMap(({ queue, isPaused, waiting }) =>
      isPaused && (queue === main.queue || waiting > 0)
        ? [
            `${queue} is paused: nothing is claimed, ${jobs(waiting)} wait${waiting === 1 ? 's' : ''}; shoal queue resume ` +
              `--queue ${main.queue} lets it go on ${see('queue-paused')}`,
          ]
        : [],
    ),
    ...(isAllDrained
      ? [
          'all workers are drained, those that start later too; shoal fleet resume all lets them claim again ' +
            see('all-drained'),
        ]
      : []),
    ...(!isAllDrained && drained.length > 0
      ? [
          `drained: ${drained.map(({ workerId }) => workerId).join(', ')}; shoal fleet resume lets ` +
            `${drained.length === 1 ? 'it' : 'them'} claim again`,
        ]
      : []),
    ...[...Map.groupBy(inState('braked'), ({ reason }) => reason)].map(
      ([reason, braked]) =>
        `braked: ${braked.map(({ workerId }) => workerId).join(', ')}: ${reason}; fetch results, or give the server ` +
        `memory ${see('claiming-braked')}`,
    ),
    ...inState('starting').map(({ workerId, reason }) => `${workerId} runs nothing now: ${reason}`),
    ...losses.map(lostExecutors),
    ...absent.filter(({ hasLeft }) => !hasLeft).map((dead) => died(dead, atMs)),
    ...(quarantined > 0 ? [inQuarantine(main.queue, quarantined)] : []),
    ...(simulations.length === 0 || main.queue.endsWith('-sim')
      ? []
      : [`a trial: simulated is ${simulations.join(', ')}; vectors of this queue are not those of the model`]),
    ...(seen.payloads?.troubles ?? []).map((trouble) => `${trouble} (docs/operations.md#payload-servers)`),
    ...workers.flatMap(({ workerId, facts }) =>
      facts?.similarity?.isGpuLost === true
        ? [`${workerId}: its GPU failed, everything runs on its CPU; the GPU is tried again now and then`]
        : [],
    ),
    ...(lost > 0
      ? [
          `${jobs(lost)} handed over without a child in the CPU lane; if this stays so, shoal queue repair ` +
            'brings them back',
        ]
      : []),
  ];
}

function lostExecutors(losses: ExecutorLosses): string {
  const { workerId, count } = losses;
  return (
    `${workerId} lost its executor ${count === 1 ? 'once' : `${count} times`} in the last ten minutes (${reasonsText(losses)}); what ` +
    `ran there ran again ${see('executor-losses')}`
  );
}

function died({ workerId, owner: { device, host }, lastMs, successor }: AbsentWorker, atMs: number): string {
  const what = `${workerId} (${device} on ${host}) died without a word, last heard of ${age(Math.max(0, atMs - lastMs))} ago`;
  return successor === undefined
    ? `${what}; what it had claimed goes to others; start it again ${see('worker-down')}`
    : `${what}; ${successor} took its place`;
}

function inQuarantine(queue: string, quarantined: number): string {
  return (
    `${jobs(quarantined)} of ${queue} ${quarantined === 1 ? 'is' : 'are'} in quarantine, each killed its executor or seemed to; ` +
    `shoal queue quarantine list --queue ${queue} shows them, shoal queue quarantine return ID --queue ${queue} gives ` +
    `one back ${see('quarantined')}`
  );
}

function see(runbook: string): string {
  return `(docs/runbooks/${runbook}.md)`;
}

/** Of jobs that no worker here can read. */
export function tooNew(queue: string, parked: ParkedJobs): string[] {
  const count = totalOf(parked);
  if (count === 0) return [];
  const versions = Object.keys(parked);
  return [
    `${jobs(count)} of ${queue} ${count === 1 ? 'is' : 'are'} parked: newer (version ${versions.join(', ')}) than what the ` +
      'workers that met them read; nothing is lost, and a newer worker takes them at once',
  ];
}

function jobs(count: number): string {
  return `${count.toLocaleString('en')} job${count === 1 ? '' : 's'}`;
}

type Workers = FleetView['workers'];

export function describe(view: FleetView): string {
  const { lanes, workers, starting } = view;
  return [
    describeLanes(lanes),
    workers.length + starting.length === 0 ? 'no worker is alive\n' : describeWorkers(view),
    describeComparers(workers),
    describeTakers(workers),
    describeHelpers(workers),
  ]
    .filter((part) => part !== '')
    .join('\n');
}

const OLDEST = ['OLDEST INTERACTIVE', 'OLDEST BULK'];

function describeLanes(lanes: FleetView['lanes']): string {
  const depths = Object.values(lanes).map((lane) => [
    lane.queue,
    ...depthOf(lane),
    waits(lane.oldestWaitingMs.interactive),
    waits(lane.oldestWaitingMs.bulk),
  ]);
  return table(
    ['LANE', 'WAITING', 'ACTIVE', 'DELAYED', 'PARKED', 'HANDED OVER', 'FAILED', 'CANCELLED', ...OLDEST],
    depths,
  );
}

type Depth = Pick<
  FleetView['lanes']['main'],
  'waiting' | 'active' | 'delayed' | 'parked' | 'handedOver' | 'failed' | 'cancelled'
>;

/** Jobs by where they are, from waiting to cancelled, as cells of a table. */
export function depthOf({ waiting, active, delayed, parked, handedOver, failed, cancelled }: Depth): string[] {
  const counts = [waiting, active, delayed, totalOf(parked), handedOver, failed, cancelled];
  return counts.map((count) => count.toLocaleString('en'));
}

const WORKER_HEAD = [
  'WORKER',
  'STATE',
  'DEVICE',
  'PRECISION',
  'LANES',
  'CLAIMS',
  'POOL TOKENS',
  'TEXTS/S',
  'TOKENS/S SHORT/MEDIUM/LONG',
  'TOKEN BUDGET',
  'MEMORY',
  'VERSION',
  'UP',
];

export function describeWorkers({ workers, starting, atMs }: FleetView): string {
  const since = (ms: number | undefined): string =>
    ms === undefined || atMs === undefined ? '' : age(Math.max(0, atMs - ms));
  const lines = workers.map(({ workerId, lanes: served, facts, state }) => [
    workerId,
    `${state} ${facts?.standing?.state === state ? since(facts.standing.sinceMs) : ''}`.trimEnd(),
    facts?.device ?? '?',
    facts?.precision ?? '?',
    served.join('+'),
    short(facts?.claims),
    short(facts?.poolTokens),
    short(facts?.textsPerSecond),
    byLength(facts?.rates),
    facts?.budget === undefined ? '-' : `${short(facts.budget.maxPaddedTokens)} by ${facts.budget.limitedBy}`,
    bytes(facts?.memoryBytes),
    facts?.version ?? '?',
    since(facts?.startedMs) || '?',
  ]);
  const coming = starting.map(({ workerId, device, startedMs, version }) => [
    workerId,
    `starting ${since(startedMs)}`.trimEnd(),
    device ?? '?',
    ...WORKER_HEAD.slice(3, -2).map(() => '-'),
    version ?? '?',
    '-',
  ]);
  return table(WORKER_HEAD, [...lines, ...coming]);
}

const LEDGER_HEAD = ['BYTES', 'OF', 'LEFT FOR OTHERS'];
const COMPARER_HEAD = ['SIMILARITY WORKER', 'HELD', ...LEDGER_HEAD, 'ON THE GPU', ...LEDGER_HEAD, 'CALLS GPU/CPU'];

function describeComparers(workers: Workers): string {
  const comparers = workers.flatMap(({ workerId, facts }) =>
    facts?.similarity === undefined
      ? []
      : [
          [
            workerId,
            ...ledgerCells(facts.similarity.host),
            ...ledgerCells(facts.similarity.gpu),
            callCells(facts.similarity),
          ],
        ],
  );
  return comparers.length === 0 ? '' : table(COMPARER_HEAD, comparers);
}

const TAKER_HEAD = ['CPU WORKER', 'TAKES FROM THE MAIN LANE', 'BREAK-EVEN BACKLOG, TOKENS SHORT/MEDIUM/LONG'];

function describeTakers(workers: Workers): string {
  const hasOtherDevices = workers.some(({ facts }) => facts !== undefined && facts.device !== 'cpu');
  if (!hasOtherDevices) return ''; // nobody to take from
  const takers = workers.flatMap(({ workerId, facts }) =>
    facts?.mainLane === undefined ? [] : [[workerId, facts.mainLane.reason, byLength(facts.mainLane.breakEven)]],
  );
  return takers.length === 0 ? '' : table(TAKER_HEAD, takers);
}

const HELPER_HEAD = ['WORKER', 'HELPED CELL', 'JOBS OF IT CLAIMED', 'HELD NOW'];

function describeHelpers(workers: Workers): string {
  const helpers = workers.flatMap(({ workerId, facts }) =>
    (facts?.helped ?? []).map((one) => [workerId, one.cell, short(one.jobs), short(one.held)]),
  );
  return helpers.length === 0 ? '' : table(HELPER_HEAD, helpers);
}

function ledgerCells(ledger: LedgerFacts | undefined): string[] {
  return ledger === undefined
    ? ['-', '-', '-', '-']
    : [String(ledger.residents), bytes(ledger.bytes), bytes(ledger.budgetBytes), short(ledger.evictions)];
}

function callCells({ gpu, calls, isGpuLost }: SimilarityFacts): string {
  return gpu === undefined ? '-' : `${short(calls.gpu)} / ${short(calls.cpu)}${isGpuLost ? ', GPU LOST' : ''}`;
}

function byLength(values: ByLength | undefined): string {
  return LENGTH_CLASSES.map((length) => short(values?.[length])).join(' / ');
}

/** Three digits are enough to compare by eye. */
function short(value: number | undefined): string {
  if (value === undefined) return '-';
  return Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 }).format(value);
}

function bytes(value: number | undefined): string {
  return value === undefined ? '-' : `${(value / 1e9).toPrecision(3)} GB`;
}

function waits(ms: number): string {
  return ms > 0 ? seconds(ms) : '-';
}

function seconds(ms: number): string {
  return `${(ms / 1_000).toLocaleString('en', { maximumFractionDigits: 1 })} s`;
}
