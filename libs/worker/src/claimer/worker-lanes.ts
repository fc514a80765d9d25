// Which lanes a worker serves, and what it tells others of itself. A worker on the CPU claims from the CPU lane and,
// through a gate, from the main lane; any other device claims from the main lane and hands over what does not fit it.
// Constructs and connects; decides nothing.

import { hostname } from 'node:os';
import type { Lane } from '@shoal/contract';
import {
  homeCell,
  readCells,
  systemClock,
  type FromExecutor,
  type HistoryMeter,
  type JobSource,
  type LoadMeter,
  type Logger,
  type Metrics,
  type PayloadServerFacts,
  type RawClaim,
  type Settings,
  type WorkerFacts,
} from '@shoal/core';
import type { FaultPoints } from '@shoal/core/base';
import {
  BullJobSource,
  CellsSource,
  Fleet,
  FleetWatch,
  Helping,
  type HelpingOptions,
  HybridGate,
  LanesSource,
  PartsElsewhere,
  PartsSource,
  WorkerPresence,
  alarmOfCpuLane,
  isPartWithin,
  type BullJobSourceOptions,
  type FleetView,
} from '@shoal/queue';
import { SHOAL_VERSION } from './shoal-version.ts';
import { Standing } from './worker-standing.ts';

export interface WorkerLanesOptions {
  /** Of the main lane. */
  readonly source: Omit<BullJobSourceOptions, 'handOverTo' | 'faults' | 'workerId'>;
  readonly cpuQueue: string;
  /** Seen by others under this id. */
  readonly workerId: string;
  /** What it is called over all its lives. */
  readonly workerName: string;
  /** The lane of parts, of a worker that takes them. */
  readonly partsQueue?: string | undefined;
  /** Those of them that it tells. */
  readonly partFolders?: readonly string[] | undefined;
  /** Epoch ms by the server's clock. */
  readonly serverNowMs: () => number;
  readonly ready: Pick<
    Extract<FromExecutor, { kind: 'ready' }>,
    'device' | 'precision' | 'model' | 'prompts' | 'isNormalized'
  >;
  /** Where its metrics are. */
  readonly metricsUrl: string | undefined;
  /** The newest version of jobs that it reads. */
  readonly jobVersion: number;
  /** The most rows that it takes of a job; undefined: 256. */
  readonly maxJobRows?: number | undefined;
  /** Its set of payload servers. */
  readonly payloads?: string | undefined;
  /** What is told of it besides. */
  readonly besides?: (() => Partial<WorkerFacts>) | undefined;
  readonly settings: Pick<Settings, 'hybrid' | 'hybridAgeMs' | 'cells' | 'helpCells'>;
  /** Before it claims anything of another cell. Throws what keeps it from that. */
  readonly enter?: HelpingOptions['enter'];
  readonly meter: LoadMeter;
  readonly history: HistoryMeter;
  readonly metrics: Pick<Metrics, 'laneChosen' | 'cellHelped'>;
  readonly faults: FaultPoints;
  readonly log: Logger;
}

export interface WorkerLanes {
  readonly source: JobSource;
  /** In which state it is; told to others. */
  readonly standing: Standing;
  /** Resolves when somebody told it to end, for a successor. */
  readonly left: Promise<void>;
  /** Once the worker can claim: others see it from now on. */
  show(): Promise<void>;
  /** The source is stopped by whoever claims from it. Safe to call twice. */
  stop(): Promise<void>;
}

/** Has looked at the fleet when it resolves. Throws QUEUE_UNREACHABLE. */
export async function openLanes(options: WorkerLanesOptions): Promise<WorkerLanes> {
  const { cpuQueue, workerId, log } = options;
  const { redisUrl, prefix, queue } = options.source;
  const gate = gateOf(options);
  const lanes = lanesOf(options);
  const served = servedLanes(options, gate);
  const helping = helpingOf(options);
  const helpingParts = helpingPartsOf(options);
  const standing = new Standing(options);
  const startedMs = Math.round(options.serverNowMs());
  const drain = new Drain({
    workerId,
    lanes: [served.main, served.cpu, served.parts, helping, helpingParts],
    standing,
    log,
  });
  const fleet = await Fleet.connect({ redisUrl, prefix, queue, log });
  try {
    const presence = await WorkerPresence.connect({
      redisUrl,
      prefix,
      queue,
      workerId,
      log,
      lanes: [
        ...lanes.map((lane) => (lane === 'cpu' ? cpuQueue : queue)),
        ...(options.partsQueue === undefined ? [] : [options.partsQueue]),
      ],
      facts: () => ({ ...factsOf(options, lanes, standing, gate), startedMs, ...helpedIn(helping, helpingParts) }),
      history: () => options.history.take(),
    });
    const watch = new FleetWatch({
      // whoever decides nothing by what others are like need not read it
      read: () => fleet.look({ withFacts: gate !== undefined }),
      onView: follow(options, drain, gate),
      clock: systemClock,
      log,
    });
    await watch.start();
    const stop = async (): Promise<void> => {
      await watch.stop();
      await Promise.all([presence.stop(), fleet.close()]);
    };
    const home = sourceOf(served, gate);
    const jobs = helping === undefined ? home : new CellsSource({ home, helping });
    const source = served.parts === undefined ? jobs : new PartsSource({ jobs, parts: partsOf(served.parts) });
    return { source, stop, standing, left: drain.left, show: () => presence.start() };

    function partsOf(parts: JobSource): JobSource {
      if (helpingParts === undefined || !(jobs instanceof CellsSource)) return parts;
      return new CellsSource({ home: parts, helping: helpingParts, oneWhile: () => jobs.isIdle });
    }
  } catch (error) {
    await fleet.close();
    throw error;
  }
}

/**
 * What an executor calls the device after which there is no other ("cpu", "cpu:avx512"): whoever runs on it is a CPU
 * worker.
 */
function isCpuWorker({ ready }: WorkerLanesOptions): boolean {
  return ready.device.split(':')[0] === 'cpu';
}

function lanesOf(options: WorkerLanesOptions): Lane[] {
  if (!isCpuWorker(options)) return ['main'];
  return options.settings.hybrid === 'never' ? ['cpu'] : ['main', 'cpu'];
}

function gateOf(options: WorkerLanesOptions): HybridGate | undefined {
  const {
    workerId,
    settings: { hybrid, hybridAgeMs: ageLimitMs },
    meter,
    log,
  } = options;
  return isCpuWorker(options)
    ? new HybridGate({ workerId, hybrid, ageLimitMs, load: () => meter.load(), clock: systemClock, log })
    : undefined;
}

/** The main lane, for a CPU worker its own, and that of parts of files for who takes them. */
interface ServedLanes {
  readonly main: BullJobSource;
  readonly cpu: BullJobSource | undefined;
  readonly parts: BullJobSource | undefined;
}

function servedLanes(
  { source, cpuQueue, partsQueue, faults }: WorkerLanesOptions,
  gate: HybridGate | undefined,
): ServedLanes {
  const parts =
    partsQueue === undefined
      ? undefined
      : new BullJobSource({ ...source, queue: partsQueue, quarantineOf: partsQueue, isServerTold: true });
  return gate === undefined
    ? { main: new BullJobSource({ ...source, handOverTo: cpuQueue, faults }), cpu: undefined, parts }
    : {
        main: new BullJobSource(source),
        cpu: new BullJobSource({ ...source, queue: cpuQueue, isServerTold: true }),
        parts,
      };
}

/** Undefined where there is no other cell to help, or none is to be helped. */
function helpingOf(options: WorkerLanesOptions): Helping | undefined {
  const { cpuQueue } = options;
  const { queue } = options.source;
  return helpingIn(options, { queue }, (elsewhere) => {
    const handOverTo = isCpuWorker(options) ? undefined : cpuQueue;
    return new BullJobSource({ ...elsewhere, isBulkAlone: true, handOverTo });
  });
}

/** A part in other folders is looked at again then. */
const UNFIT_MS = 10_000;

/** The same for parts of files; undefined as well for who tells no folders. */
function helpingPartsOf(options: WorkerLanesOptions): Helping | undefined {
  const { partsQueue, partFolders } = options;
  if (partsQueue === undefined || partFolders === undefined) return undefined;
  const mayRun = (claim: RawClaim): boolean => isPartWithin(claim, partFolders);
  const terms = { queue: partsQueue, partFolders, mayRun, unfitDelayMs: UNFIT_MS };
  return helpingIn(
    options,
    terms,
    (elsewhere) => new PartsElsewhere({ ...elsewhere, queue: partsQueue, quarantineOf: partsQueue }),
  );
}

interface HelpTerms extends Pick<HelpingOptions, 'queue' | 'mayRun' | 'unfitDelayMs'> {
  readonly partFolders?: readonly string[];
}

function helpingIn(
  options: WorkerLanesOptions,
  { queue, mayRun, unfitDelayMs, partFolders }: HelpTerms,
  open: (elsewhere: BullJobSourceOptions) => BullJobSource,
): Helping | undefined {
  const { source, settings, ready, jobVersion, maxJobRows, payloads, workerName, metrics, enter, log } = options;
  const { cells, hybrid, helpCells } = settings;
  if (cells === undefined || helpCells === 'no' || (isCpuWorker(options) && hybrid === 'never')) return undefined;
  const { redisUrl, prefix } = source;
  const home = homeCell(readCells(cells), redisUrl, prefix).name;
  const { device, model } = ready;
  return new Helping({
    cells,
    home,
    prefix,
    queue,
    log,
    mayRun,
    unfitDelayMs,
    own: { device, model, jobVersion, maxJobRows, payloads, ...(partFolders !== undefined && { partFolders }) },
    onHelped: (cell, jobs) => metrics.cellHelped(cell, jobs),
    enter,
    open: (cell) =>
      open({
        ...source,
        redisUrl: cell.address,
        prefix: cell.prefix ?? prefix,
        // not the name of its own: a worker of that cell may have it
        workerName: `help-${home}-${workerName}`.slice(0, 64),
        isNameChosen: false,
        isServerTold: true,
        onServerTime: undefined,
        onBrake: undefined,
      }),
  });
}

/** Of jobs and parts together. */
function helpedIn(...helping: readonly (Helping | undefined)[]): Pick<WorkerFacts, 'helped'> {
  const byCell = Map.groupBy(
    helping.flatMap((one) => one?.helped ?? []),
    ({ cell }) => cell,
  );
  const helped = [...byCell].map(([cell, its]) => ({
    cell,
    jobs: its.reduce((sum, { jobs }) => sum + jobs, 0),
    held: its.reduce((sum, { held }) => sum + held, 0),
  }));
  return helped.length === 0 ? {} : { helped };
}

function sourceOf({ main, cpu }: ServedLanes, gate: HybridGate | undefined): JobSource {
  return gate === undefined || cpu === undefined ? main : new LanesSource({ cpu, main, gate });
}

/** Every look at the fleet: drained or not, how far the gate is open, and whether somebody serves the CPU lane. */
function follow(
  { metrics, log }: WorkerLanesOptions,
  drain: Drain,
  gate: HybridGate | undefined,
): (view: FleetView) => void {
  const soundAlarm = gate === undefined ? alarmOfCpuLane(log) : () => undefined;
  return (view) => {
    drain.see(view);
    soundAlarm(view);
    gate?.see(view);
    if (gate?.choice !== undefined) metrics.laneChosen(gate.choice);
  };
}

interface DrainParts {
  readonly workerId: string;
  /** What is told to claim nothing. */
  readonly lanes: readonly ({ drain(isDrained: boolean): void } | undefined)[];
  readonly standing: Standing;
  readonly log: Logger;
}

/** Claims nothing while the fleet says that this worker, or every one, is drained; and hears that it is to end. */
class Drain {
  private readonly parts: DrainParts;
  private readonly leaving = Promise.withResolvers<void>();

  constructor(parts: DrainParts) {
    this.parts = parts;
  }

  get left(): Promise<void> {
    return this.leaving.promise;
  }

  see(view: FleetView): void {
    const { workerId, lanes, standing, log } = this.parts;
    const own = view.workers.find((worker) => worker.workerId === workerId);
    if (own?.isLeaving === true) this.leaving.resolve();
    standing.isPaused = own?.lanes.every((lane) => view.lanes[lane].isPaused) ?? false;
    const isDrained = view.isAllDrained || own?.isDrained === true;
    if (isDrained === standing.isDrained) return;
    standing.isDrained = isDrained;
    log.info(
      { workerId },
      isDrained ? 'drained: nothing is claimed until this worker is resumed' : 'resumed, claiming again',
    );
    for (const lane of lanes) lane?.drain(isDrained);
  }
}

function factsOf(
  {
    ready,
    meter,
    metricsUrl,
    jobVersion,
    maxJobRows,
    partFolders,
    payloads,
    workerName,
    serverNowMs,
    besides,
  }: WorkerLanesOptions,
  lanes: readonly Lane[],
  standing: Standing,
  gate: HybridGate | undefined,
): WorkerFacts {
  const { device, precision, model, prompts, isNormalized } = ready;
  return {
    ...meter.load(),
    device,
    precision,
    model,
    lanes,
    isDrained: standing.isDrained,
    host: hostname(),
    pid: process.pid,
    name: workerName,
    standing: standing.told(),
    textsPerSecond: Math.round(meter.textsPerSecond),
    version: SHOAL_VERSION,
    metricsUrl,
    jobVersion,
    maxJobRows,
    partFolders,
    payloads,
    payloadServers: meter.payloadServers?.map((one) => onClock(one, serverNowMs())),
    bodies: meter.bodies,
    prompts,
    isNormalized,
    budget: meter.budget,
    memoryBytes: meter.memoryBytes,
    similarity: meter.similarity,
    mainLane: gate?.choice,
    ...besides?.(),
  };
}

/** An executor knows this machine's clock alone. */
function onClock(facts: PayloadServerFacts, serverNowMs: number): PayloadServerFacts {
  const { sinceMs } = facts;
  return sinceMs === undefined ? facts : { ...facts, sinceMs: Math.round(serverNowMs - (Date.now() - sinceMs)) };
}
