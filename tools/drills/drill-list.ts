// The drills by number: what happens, which alerts it must raise (exactly these, possibly none), which runbook cures it.
// The table in docs/drills.md is made from this and from the last run (drills.ts).

export interface DrillPlan {
  readonly number: number;
  readonly title: string;
  /** Names of alerts, exactly these; empty where the fleet heals by itself in less time than anybody is told. */
  readonly alerts: readonly string[];
  /** The alert whose runbook has the commands that cure it; left out where nothing is to be done. */
  readonly cure?: string;
}

export const DRILL_PLANS: readonly DrillPlan[] = [
  {
    number: 1,
    title: 'an idle worker is killed and nobody starts it again',
    alerts: ['ShoalWorkerDown', 'ShoalWorkersMissing'],
    cure: 'ShoalWorkerDown',
  },
  { number: 2, title: 'a worker with claims is killed and started again', alerts: ['ShoalJobsStalled'] },
  {
    number: 3,
    title: 'an executor is killed again and again, and becomes ready each time',
    alerts: ['ShoalExecutorLosses'],
    cure: 'ShoalExecutorLosses',
  },
  {
    number: 4,
    title: 'an executor dies before it is ready, until its worker ends',
    alerts: ['ShoalWorkerDown', 'ShoalWorkersMissing'],
    cure: 'ShoalWorkersMissing',
  },
  { number: 5, title: 'the queue server is restarted within two seconds', alerts: [] },
  { number: 6, title: 'the queue server is away', alerts: ['ShoalQueueServerDown'], cure: 'ShoalQueueServerDown' },
  {
    number: 7,
    title: 'the queue server is frozen: it keeps its connections and answers nothing',
    alerts: ['ShoalQueueServerDown'],
    cure: 'ShoalQueueServerDown',
  },
  { number: 8, title: 'all workers are drained and forgotten', alerts: ['ShoalAllDrained'], cure: 'ShoalAllDrained' },
  { number: 9, title: 'the queue is paused and forgotten', alerts: ['ShoalQueuePaused'], cure: 'ShoalQueuePaused' },
  { number: 10, title: 'nobody serves a queue', alerts: ['ShoalNobodyServes'], cure: 'ShoalNobodyServes' },
  { number: 11, title: 'a tenant floods the queue', alerts: [] },
  {
    number: 12,
    title: 'a job kills its executors and goes into quarantine',
    alerts: ['ShoalQuarantined'],
    cure: 'ShoalQuarantined',
  },
  {
    number: 13,
    title: 'the memory of the queue server is full',
    alerts: ['ShoalClaimingBraked', 'ShoalQueueServerMemory'],
    cure: 'ShoalQueueServerMemory',
  },
  { number: 14, title: 'the clock of a worker is five minutes fast', alerts: [] },
  {
    number: 15,
    title: 'a worker is started with a user that may not ask INFO',
    alerts: ['ShoalWorkerDown', 'ShoalWorkersMissing'],
    cure: 'ShoalWorkerDown',
  },
  { number: 16, title: 'workers are restarted one after the other', alerts: [] },
  { number: 17, title: 'producers write jobs of a version that no worker knows', alerts: ['ShoalJobsParked'] },
  {
    number: 18,
    title: 'the queue server is away while users ask over HTTP',
    alerts: ['ShoalHttpErrorsFast', 'ShoalHttpErrorsSlow', 'ShoalQueueServerDown'],
    cure: 'ShoalQueueServerDown',
  },
];

/** Alerts that no drill raises, and why; promtool tests replay their series. */
export const WITHOUT_DRILL: Readonly<Record<string, string>> = {
  ShoalQueueServerUnreachable: 'needs a network that parts one process from the server',
  ShoalUnreadResults: 'needs a server filled to 40 % with results, minutes of work for a machine of two cores',
  ShoalExporterDown: 'a process is stopped; nothing else is learnt',
  ShoalInteractiveWaits: 'the causes have drills of their own (8, 9, 10)',
  ShoalBulkWaits: 'the causes have drills of their own (8, 9, 10)',
  ShoalBacklog: 'a fleet that is too small is no fault',
  ShoalInputLost: 'keys are deleted by hand; libs/worker/src/faults/real-faults.test.ts has what follows',
  ShoalRecordsDamaged: 'records are damaged by hand; libs/worker/src/faults/bad-input.test.ts has what follows',
  ShoalWorkerNotReady: 'needs a device that fails its canary and whose worker stays',
  ShoalRowsRerun: 'needs a device that computes wrong',
  ShoalSplits: 'needs a device with less memory than was measured',
  ShoalMemoryMisjudged: 'needs a device with other memory than was measured',
  ShoalDeviceIdle: 'needs a queue server that is the narrowest part',
  ShoalMixedVersions: 'needs a second version built',
  ShoalValkeyPersistenceFailed: 'needs redis_exporter',
  ShoalValkeyReplicaBehind: 'needs redis_exporter',
  ShoalValkeyForkSlow: 'needs redis_exporter',
  ShoalGpuFault: 'needs dcgm-exporter and a broken card',
  ShoalCertificateEnds: 'needs blackbox_exporter',
};
