// What workers of both kinds have in common: the claimer's parts are opened beside their executor, claim until they are
// told to stop, and nothing of them is left running then or when one of them cannot be opened. Constructs and connects;
// the story itself is core's Pipeline.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { ShoalError, cpuLaneOf } from '@shoal/contract';
import {
  HistoryMeter,
  LoadMeter,
  Pipeline,
  systemClock,
  type FromExecutor,
  type Logger,
  type Metrics,
  type Settings,
  type SweepFindings,
  type Tracer,
  type WorkerFacts,
} from '@shoal/core';
import { faultPointsFrom, type FaultPoints } from '@shoal/core/base';
import {
  Janitor,
  RedisAnnouncer,
  WorkerPresence,
  enterService,
  serverClock,
  type QueueService,
  type ServerClock,
} from '@shoal/queue';
import { CardWatch } from './card-watch.ts';
import { ExecutorNotes } from './executor-notes.ts';
import { cardOf, openMetrics, type OpenMetrics } from './open-metrics.ts';
import type { ForkedExecutor } from './forked-executor.ts';
import { SHOAL_VERSION } from './shoal-version.ts';
import { openLanes, type WorkerLanesOptions } from './worker-lanes.ts';
import type { Standing } from './worker-standing.ts';

export interface WorkerOptions {
  /** `redisUrl` is settled by now: a worker does not start servers. */
  readonly settings: Settings & { readonly redisUrl: string };
  readonly log: Logger;
  /** Told once its name and its queue are known: fields for every line of the log. */
  readonly sayWho?: (who: Readonly<Record<string, string>>) => void;
  /** Left out: nothing is traced. */
  readonly tracer?: Tracer | undefined;
  /** Aborted when it is to stop before it is ready: it throws INTERRUPTED, and leaves nothing running. */
  readonly stopAsked?: AbortSignal | undefined;
  /** For tests: where this process is to die, see core's FaultPoints. */
  readonly faultPoint?: string | undefined;
}

type PipelineParts = ConstructorParameters<typeof Pipeline>[0];
type Ready = Extract<FromExecutor, { kind: 'ready' }>;

export interface RunningWorker {
  readonly facts: Ready;
  /** Rejects when the worker cannot go on; never resolves. */
  readonly failed: Promise<never>;
  /** Resolves when somebody told it to end so that whoever keeps it starts a successor. */
  readonly left: Promise<void>;
  /** Drains and leaves nothing running. Safe to call twice. */
  stop(): Promise<void>;
}

/** What the kinds of worker differ in. */
export interface WorkerKind {
  readonly queue: string;
  readonly cpuQueue: string;
  /** The lane of parts, of a worker that takes them. */
  readonly partsQueue?: string | undefined;
  /** Folders of parts that it tells others of. */
  readonly partFolders?: readonly string[] | undefined;
  readonly executor: ForkedExecutor;
  readonly cacheDir: string;
  readonly workerName: string;
  readonly limits: (ready: Ready) => PipelineParts['limits'];
  /** The f32 values that producers reserve room for in each row's result. */
  readonly resultDims: (ready: Ready) => number;
  /** What the log says of it when it is ready. */
  readonly said: (ready: Ready) => Readonly<Record<string, unknown>>;
  readonly readJob?: PipelineParts['readJob'];
  /** The newest version of jobs that it reads. */
  readonly jobVersion: number;
  /** The most rows that it takes of a job; left out: 256. */
  readonly maxJobRows?: number;
  /** Whether it runs jobs of other cells while it has none. Default: it does not. */
  readonly helps?: boolean;
  /** Its set of payload servers. */
  readonly payloads?: string | undefined;
  /** Undefined where nothing but this serves the queue. */
  readonly service?: QueueService | undefined;
  /** What it tells others besides. Stopped with the worker. */
  readonly besides?: Stoppable & { facts(): Partial<WorkerFacts> };
}

interface Stoppable {
  stop(): Promise<void>;
}

/** Parts that run, in the order in which they were opened. */
class OpenParts {
  private readonly parts: Stoppable[];
  private isAbandoned = false;

  constructor(parts: readonly Stoppable[]) {
    this.parts = [...parts];
  }

  async keep<Part extends Stoppable>(part: Promise<Part> | Part): Promise<Part> {
    const opened = await part;
    this.parts.push(opened);
    if (!this.isAbandoned) return opened;
    await opened.stop();
    throw stoppedEarly();
  }

  async stop(): Promise<void> {
    await Promise.all(this.parts.map((part) => part.stop()));
  }

  /** Stops what can be stopped. */
  async abandon(): Promise<void> {
    this.isAbandoned = true;
    await Promise.allSettled(this.parts.map((part) => part.stop()));
  }
}

function stoppedEarly(): ShoalError<'INTERRUPTED'> {
  return new ShoalError('INTERRUPTED', 'the worker was stopped while it started');
}

/** Starts claiming. Throws what keeps it from that, and then leaves nothing running. */
export async function startClaiming(options: WorkerOptions, kind: WorkerKind): Promise<RunningWorker> {
  const { log } = options;
  const { executor, queue } = kind;
  const notes = new ExecutorNotes({ cacheDir: kind.cacheDir, name: kind.workerName, log });
  const open = new OpenParts([executor, notes, ...(kind.besides === undefined ? [] : [kind.besides])]);
  const giveUp = (): void => {
    executor.kill('the worker was stopped while it started');
    void open.abandon();
  };
  options.stopAsked?.addEventListener('abort', giveUp);
  try {
    if (options.stopAsked?.aborted === true) throw stoppedEarly();
    await notes.untilPredecessorsLeft();
    const { pipeline, facts, standing, left } = await openAll(options, kind, notes, open);
    options.stopAsked?.removeEventListener('abort', giveUp);
    log.info({ queue, ...kind.said(facts) }, 'worker ready');
    const stop = async (): Promise<void> => {
      standing.isStopping = true;
      await pipeline.stop();
      await open.stop();
    };
    return { facts, failed: pipeline.failed, left, stop };
  } catch (error) {
    executor.kill('the worker did not start');
    await open.abandon();
    throw error;
  }
}

interface Opened {
  readonly pipeline: Pipeline;
  readonly facts: Ready;
  readonly standing: Standing;
  readonly left: Promise<void>;
}

/** Everything that claims, sweeps and shows the worker to others, started. */
async function openAll(
  options: WorkerOptions,
  kind: WorkerKind,
  notes: ExecutorNotes,
  open: OpenParts,
): Promise<Opened> {
  const { settings, log } = options;
  const { executor, queue, cpuQueue, partsQueue, readJob } = kind;
  const server = { redisUrl: settings.redisUrl, prefix: settings.prefix, queue, log };
  const clock = systemClock;
  const id: WorkerId = { workerId: `${kind.workerName}-${randomUUID().slice(0, 8)}`, workerName: kind.workerName };
  const meter = new LoadMeter();
  const early = executor.startEarly(); // the slowest part, beside everything else
  const [announcer, serverNowMs, told, starting] = await Promise.all([
    open.keep(RedisAnnouncer.connect(server)),
    serverClock(settings.redisUrl, settings.prefix),
    open.keep(openMetrics(settings, meter, log)),
    open.keep(showStarting(options, kind, id)),
  ]);
  const recorder = told.status.tap(told.recorder);
  const faults = faultPointsFrom(options.faultPoint, (signal) => process.kill(process.pid, signal));
  const history = new HistoryMeter(() => performance.now());
  const ready = await early;
  if (kind.service !== undefined) await enterService(kind.service, server);
  const card = await open.keep(CardWatch.start({ card: cardOf(ready.device), log }));
  const lanes = await open.keep(
    openLanes(lanesOf(options, kind, { card, ...id, ready, meter, history, faults, recorder, serverNowMs, told })),
  );
  const source = await open.keep(lanes.source);
  const metrics = history.tap(meter.tap(noting(recorder, notes, log)));
  const limits = kind.limits(ready);
  const traced = options.tracer && { tracer: options.tracer, queue, workerName: kind.workerName };
  const parts = { source, announcer, executor, log, faults, serverNowMs, clock, limits, metrics, traced };
  const pipeline = await open.keep(new Pipeline(readJob === undefined ? parts : { ...parts, readJob }));
  told.introduce({ ...kind, ready });
  const facts = await pipeline.start();
  await announcer.tellDims(kind.resultDims(facts));
  await lanes.show();
  await starting.stop();
  told.status.shown(lanes.standing);
  const onSwept = (findings: SweepFindings): void => recorder.janitorSwept(findings);
  const everyMs = settings.janitorEveryMs;
  const keepMs = settings.keepFinishedMs;
  const swept = [{ queue, cpuQueue }, ...(partsQueue === undefined ? [] : [ofParts(partsQueue)])];
  for (const lanesSwept of swept) {
    const sweeping = { ...server, ...lanesSwept, everyMs, keepMs, clock, serverNowMs, onSwept };
    const janitor = await open.keep(new Janitor(sweeping));
    janitor.start();
  }
  const { standing, left } = lanes;
  return { pipeline, facts, standing, left };
}

/** Nothing is handed over there; it is swept like any other. */
function ofParts(queue: string): { readonly queue: string; readonly cpuQueue: string } {
  return { queue, cpuQueue: cpuLaneOf(queue) };
}

interface WorkerId {
  readonly workerId: string;
  readonly workerName: string;
}

/** Others see that it is coming, for as long as its device and model take. */
async function showStarting(
  { settings: { redisUrl, prefix, device }, log }: WorkerOptions,
  { queue }: WorkerKind,
  { workerId, workerName: name }: WorkerId,
): Promise<WorkerPresence> {
  const host = hostname();
  const facts = () => ({ device, host, pid: process.pid, version: SHOAL_VERSION, name });
  const presence = await WorkerPresence.connect({ redisUrl, prefix, queue, workerId, facts, isStarting: true, log });
  await presence.start();
  return presence;
}

interface LanesParts extends WorkerId {
  readonly ready: Ready;
  readonly meter: LoadMeter;
  readonly history: HistoryMeter;
  readonly faults: FaultPoints;
  readonly recorder: Metrics;
  readonly serverNowMs: ServerClock;
  readonly told: Pick<OpenMetrics, 'url'>;
  readonly card: CardWatch;
}

function lanesOf(
  { settings, log }: WorkerOptions,
  kind: WorkerKind,
  { card, workerId, workerName, ready, meter, history, faults, recorder, serverNowMs, told }: LanesParts,
): WorkerLanesOptions {
  const { queue, cpuQueue, partsQueue, partFolders, jobVersion, maxJobRows, payloads, besides, service } = kind;
  const { redisUrl, prefix, leaseMs, stalledCheckMs, keepCompletedJobs: completed, keepFailedJobs: failed } = settings;
  return {
    source: {
      redisUrl,
      prefix,
      queue,
      log,
      leaseMs,
      stalledCheckMs,
      workerName,
      isNameChosen: settings.workerName !== undefined,
      quarantineOf: queue,
      newestVersion: jobVersion,
      version: SHOAL_VERSION,
      isUnsafeAllowed: settings.unsafeServer === 'warn',
      brake: settings,
      keep: { completed, failed },
      onServerTime: (serverMs) => serverNowMs.heard(serverMs),
      serverNowMs,
      onStalled: () => recorder.jobStalled(),
      onBrake: (reason) => {
        meter.brake = reason;
        recorder.claimingBraked(reason);
      },
    },
    settings: kind.helps === true ? settings : { ...settings, helpCells: 'no' },
    enter: async (place) => {
      if (service !== undefined) await enterService(service, { ...place, queue, log });
    },
    meter,
    history,
    faults,
    log,
    cpuQueue,
    partsQueue,
    partFolders,
    besides: () => ({ card: card.facts(), ...besides?.facts() }),
    workerId,
    workerName,
    serverNowMs,
    ready,
    jobVersion,
    maxJobRows,
    payloads,
    metricsUrl: told.url,
    metrics: recorder,
  };
}

/** The pid of each executor is known where it is counted. */
function noting(metrics: Metrics, notes: ExecutorNotes, log: Logger): Metrics {
  return {
    ...metrics,
    executorReady: (pid) => {
      metrics.executorReady(pid);
      notes.note(pid).catch((error: unknown) => log.warn({ err: error }, 'which executor is ours could not be noted'));
    },
  };
}
