// The drills by number: what happens, which alerts it must raise (exactly these, possibly none), which runbook cures it.
// The table in docs/drills.md is made from this and from the last run (drills.ts).

export interface DrillPlan {
  readonly number: number;
  readonly title: string;
  /** Names of alerts, exactly these; empty where the fleet heals by itself in less time than anybody is told. */
  readonly alerts: readonly string[];
  /** The alert whose runbook has the commands that cure it; left out where nothing is to be done. */
  readonly cure?: string;
  /** What every duration of the rules is divided by. */
  readonly shorten: number;
  /**
   * What `shoal fleet status` says meanwhile: a line of it has all of these words. Empty: it says of nothing that it
   * needs somebody.
   */
  readonly status: readonly string[];
  /** What the dashboard's fleet page says meanwhile; empty: that nothing needs anybody. */
  readonly page: readonly string[];
}

export const DRILL_PLANS: readonly DrillPlan[] = [
  {
    number: 1,
    shorten: 10,
    title: 'an idle worker is killed and nobody starts it again',
    alerts: ['ShoalWorkerDown', 'ShoalWorkersMissing'],
    cure: 'ShoalWorkerDown',
    status: ['died without a word', 'start it again', 'docs/runbooks/worker-down.md'],
    page: ['died without a word', 'docs/runbooks/worker-down.md'],
  },
  {
    number: 2,
    shorten: 10,
    title: 'a worker with claims is killed and started again',
    alerts: ['ShoalJobsStalled'],
    status: ['died without a word', 'what it had claimed goes to others'],
    page: ['died without a word', 'what it had claimed goes to others'],
  },
  {
    number: 3,
    shorten: 4,
    title: 'an executor is killed again and again, and becomes ready each time',
    alerts: ['ShoalExecutorLosses'],
    cure: 'ShoalExecutorLosses',
    status: ['lost its executor 6 times', 'killed by SIGKILL', 'docs/runbooks/executor-losses.md'],
    page: ['lost its executor 6 times', 'killed by SIGKILL', 'docs/runbooks/executor-losses.md'],
  },
  {
    number: 4,
    shorten: 10,
    title: 'an executor dies before it is ready, until its worker ends',
    alerts: ['ShoalWorkerDown', 'ShoalWorkersMissing'],
    cure: 'ShoalWorkersMissing',
    status: ['left in order', 'nobody of the same name is back'],
    page: ['Left in order', 'nobody of the same name is back'],
  },
  {
    number: 5,
    shorten: 2,
    title: 'the queue server is restarted within two seconds',
    alerts: [],
    status: [],
    page: [],
  },
  {
    number: 6,
    shorten: 10,
    title: 'the queue server is away',
    alerts: ['ShoalQueueServerDown'],
    cure: 'ShoalQueueServerDown',
    status: ['the queue server at', 'does not answer'],
    page: ['the queue server is away'],
  },
  {
    number: 7,
    shorten: 10,
    title: 'the queue server is frozen: it keeps its connections and answers nothing',
    alerts: ['ShoalQueueServerDown'],
    cure: 'ShoalQueueServerDown',
    status: ['the queue server at', 'does not answer'],
    page: ['the queue server is away'],
  },
  {
    number: 8,
    shorten: 30,
    title: 'all workers are drained and forgotten',
    alerts: ['ShoalAllDrained'],
    cure: 'ShoalAllDrained',
    status: ['all workers are drained', 'shoal fleet resume all', 'docs/runbooks/all-drained.md'],
    page: [
      'all workers of embed-tiny-random are drained, 20 jobs wait',
      'shoal fleet resume all',
      'docs/runbooks/all-drained.md',
    ],
  },
  {
    number: 9,
    shorten: 30,
    title: 'the queue is paused and forgotten',
    alerts: ['ShoalQueuePaused'],
    cure: 'ShoalQueuePaused',
    status: ['embed-tiny-random is paused', '20 jobs wait', 'shoal queue resume', 'docs/runbooks/queue-paused.md'],
    page: ['embed-tiny-random is paused, 20 jobs wait', 'shoal queue resume', 'docs/runbooks/queue-paused.md'],
  },
  {
    number: 10,
    shorten: 10,
    title: 'nobody serves a queue',
    alerts: ['ShoalNobodyServes'],
    cure: 'ShoalNobodyServes',
    status: ['the main lane has 3 jobs and no worker serves it', 'shoal worker', 'docs/runbooks/nobody-serves.md'],
    page: ['no worker serves embed-tiny-random, 3 jobs wait', 'shoal worker', 'docs/runbooks/nobody-serves.md'],
  },
  { number: 11, shorten: 10, title: 'a tenant floods the queue', alerts: [], status: [], page: [] },
  {
    number: 12,
    shorten: 4,
    title: 'a job kills its executors and goes into quarantine',
    alerts: ['ShoalQuarantined'],
    cure: 'ShoalQuarantined',
    status: [
      '1 job of embed-tiny-random is in quarantine',
      'shoal queue quarantine return',
      'docs/runbooks/quarantined.md',
    ],
    page: [
      '1 job is in quarantine of embed-tiny-random',
      'shoal queue quarantine list',
      'docs/runbooks/quarantined.md',
    ],
  },
  {
    number: 13,
    shorten: 10,
    title: 'the memory of the queue server is full',
    alerts: ['ShoalClaimingBraked', 'ShoalQueueServerMemory'],
    cure: 'ShoalQueueServerMemory',
    status: ['braked:', 'memory', 'docs/runbooks/claiming-braked.md'],
    page: ['is braked', 'memory', 'docs/runbooks/claiming-braked.md'],
  },
  { number: 14, shorten: 10, title: 'the clock of a worker is five minutes fast', alerts: [], status: [], page: [] },
  {
    number: 15,
    shorten: 10,
    title: 'a worker is started with a user that may not ask INFO',
    alerts: ['ShoalWorkerDown', 'ShoalWorkersMissing'],
    cure: 'ShoalWorkerDown',
    status: ['left in order', 'nobody of the same name is back'],
    page: ['Left in order', 'nobody of the same name is back'],
  },
  { number: 16, shorten: 4, title: 'workers are restarted one after the other', alerts: [], status: [], page: [] },
  {
    number: 17,
    shorten: 30,
    title: 'producers write jobs of a version that no worker knows',
    alerts: ['ShoalJobsParked'],
    status: ['5 jobs of embed-tiny-random are parked', 'version 99', 'a newer worker takes them'],
    page: ['5 jobs of embed-tiny-random are parked', 'version 99', 'docs/runbooks/jobs-parked.md'],
  },
  {
    number: 18,
    shorten: 30,
    title: 'the queue server is away while users ask over HTTP',
    alerts: ['ShoalHttpErrorsFast', 'ShoalHttpErrorsSlow', 'ShoalQueueServerDown'],
    cure: 'ShoalQueueServerDown',
    status: ['the queue server at', 'does not answer'],
    page: ['the queue server is away'],
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
