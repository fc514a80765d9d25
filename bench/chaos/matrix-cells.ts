// The matrix of faults as data: which process, what happens to it, what is promised then, and what shows it. Processes
// and faults are complete; a cell that cannot be says why, and one that nobody has run is on the page as such.
// docs/fault-matrix.md is made of this and of the rows of bench/results/matrix.jsonl.

export const PROCESSES = {
  http: 'HTTP producer',
  sdk: 'producer in its own process (the SDK’s parts)',
  cli: '`shoal embed`',
  supervisor: 'supervisor of a private server',
  guard: 'guard of a private server',
  server: 'queue server',
  replica: 'replica of the queue server',
  claimer: 'claimer',
  executor: 'executor',
} as const;

export const FAULTS = {
  kill: 'SIGKILL',
  stop: 'SIGSTOP for longer than a lease, then SIGCONT',
  ahead: 'clock two hours ahead, and back again',
  behind: 'clock two hours behind, and back again',
  disk: 'disk full',
  'read-only': 'read-only: the disk, or a server that answers READONLY',
  descriptors: 'no file descriptor left',
  memory: 'no memory left',
  cut: 'connections cut',
  'half-open': 'connections half open: bytes vanish both ways, nothing is closed',
  latency: 'latency of 400 ms a round trip',
  'one-way': 'one way only: requests arrive, answers vanish',
} as const;

export type ProcessName = keyof typeof PROCESSES;
export type FaultName = keyof typeof FAULTS;
export type CellName = `${ProcessName}:${FaultName}`;

export interface Cell {
  /** What holds while and after it happens. */
  readonly promise: string;
  /** How the runner makes it; left out, it cannot make it yet. */
  readonly made?: string;
  /** Why the runner cannot make it; its test does, or nothing. */
  readonly notMade?: string;
  /** A test that shows it by day or by night. */
  readonly test?: string;
}

/** Why there can be no such cell. */
export interface NoCell {
  readonly not: string;
}

const KILLED_WORKER =
  'Its jobs wait again when their lease is over, at once when it starts under its name. No attempt is used up.';
const WIRE_WORKER =
  'A claim whose lease ran out meanwhile is given up, nothing is written for it. Others go on, each result is visible once.';
const WIRE_PRODUCER = 'It asks again. What was acknowledged ends, and a repeated add adds nothing twice.';
const NO_WIRE = 'It has no connection to the queue server.';
const PROXY = 'a proxy between it and the queue server';
const NO_FILES = 'It writes no file while it works; its caches are written at its start.';
const BY_SIGNAL = 'by signal';
const FULL_DISK = 'its files on a file system of 24 MB that is filled for eight seconds';
const READ_ONLY_DISK = 'its files on a file system that is remounted read-only for eight seconds';
const READ_ONLY_RUNS = 'its output on a file system that is remounted read-only between two runs, for eight seconds';
const SMALL_DISK = 'its data on a file system of 24 MB that is filled for eight seconds';
const CUT_REPLICA = '`CLIENT KILL TYPE replica` at the server it follows, three times';
const LIMIT = '`prlimit` on the running process for eight seconds';
const FAKETIME = 'libfaketime, its time set by a file while it runs';
const SWITCH = 'Jobs go on by the clock of the queue server: no lease, deadline or time to live is judged by its own.';

export const CELLS: Readonly<Record<CellName, Cell | NoCell>> = {
  'http:kill': {
    promise: 'Open requests are lost to their callers, batches go on where they were; each line is answered once.',
    test: 'apps/producer/src/batches/batch-kills.test.ts',
    made: BY_SIGNAL,
  },
  'http:stop': {
    promise:
      'Callers wait, or their connection ends; a part of `shoal up` that says nothing any more is killed and started again.',
    test: 'apps/cli/src/processes/up-process.test.ts',
    made: BY_SIGNAL,
  },
  'http:ahead': { promise: SWITCH, made: FAKETIME },
  'http:behind': { promise: SWITCH, made: FAKETIME },
  'http:disk': {
    promise: 'A file that cannot be stored whole is refused, and nothing of it is kept; embedding goes on.',
    made: FULL_DISK,
  },
  'http:read-only': {
    promise:
      'Files are refused while it lasts, embedding goes on; a place that cannot be written is refused when HTTP starts.',
    made: READ_ONLY_DISK,
    test: 'apps/producer/src/batches/disk-storage.test.ts',
  },
  'http:descriptors': { promise: 'New callers wait or are refused; requests that are open are answered.', made: LIMIT },
  'http:memory': {
    promise: 'As killed: requests that are open are lost to their callers, their jobs are not.',
    made: LIMIT,
  },
  'http:cut': {
    promise: 'Requests wait for the server, or end with 503 and Retry-After.',
    made: PROXY,
  },
  'http:half-open': { promise: 'As cut, from when the silence is noticed.', made: PROXY },
  'http:latency': { promise: 'Slower, and nothing else.', made: PROXY },
  'http:one-way': { promise: 'As half open.', made: PROXY },

  'sdk:kill': {
    promise: 'Who comes back with the same ids gets the same rows; nothing is computed twice that was not taken.',
    made: BY_SIGNAL,
  },
  'sdk:stop': { promise: 'It goes on where it was: what expired meanwhile is computed again.', made: BY_SIGNAL },
  'sdk:ahead': { promise: SWITCH, made: FAKETIME },
  'sdk:behind': { promise: SWITCH, made: FAKETIME },
  'sdk:disk': { not: 'It writes no file.' },
  'sdk:read-only': { not: 'It writes no file; a server that answers READONLY is in the row of the queue server.' },
  'sdk:descriptors': {
    promise: 'A connection that breaks meanwhile is made again when there are descriptors.',
    made: LIMIT,
  },
  'sdk:memory': { promise: 'As killed.', made: LIMIT },
  'sdk:cut': { promise: WIRE_PRODUCER, made: PROXY, test: 'libs/client/src/shoal-client.test.ts' },
  'sdk:half-open': { promise: WIRE_PRODUCER, made: PROXY },
  'sdk:latency': { promise: WIRE_PRODUCER, made: PROXY },
  'sdk:one-way': { promise: WIRE_PRODUCER, made: PROXY },

  'cli:kill': {
    promise: 'The same command goes on where it was, with the rows of an undisturbed run.',
    test: 'apps/cli/src/commands/embed.test.ts',
    made: BY_SIGNAL,
  },
  'cli:stop': { promise: 'It goes on where it was.', made: BY_SIGNAL },
  'cli:ahead': { promise: SWITCH, made: FAKETIME },
  'cli:behind': { promise: SWITCH, made: FAKETIME },
  'cli:disk': {
    promise: 'It ends with 1 and says which file could not be written; the same command goes on when there is room.',
    made: FULL_DISK,
  },
  'cli:read-only': { promise: 'It ends with 1 and says which file could not be written.', made: READ_ONLY_RUNS },
  'cli:descriptors': { promise: 'It ends with 1 and says so; the same command goes on.', made: LIMIT },
  'cli:memory': { promise: 'As killed.', made: LIMIT },
  'cli:cut': { promise: 'It goes on when the server is back.', made: PROXY },
  'cli:half-open': { promise: 'As cut, from when the silence is noticed.', made: PROXY },
  'cli:latency': { promise: 'Slower, and nothing else.', made: PROXY },
  'cli:one-way': { promise: 'As half open.', made: PROXY },

  'supervisor:kill': {
    promise: 'Attached commands bring up another with the same data and address.',
    test: 'libs/private-server/src/attach.test.ts',
    made: BY_SIGNAL,
  },
  'supervisor:stop': {
    promise: 'Who meets it says which process it waits for.',
    test: 'libs/private-server/src/attach.test.ts',
    made: BY_SIGNAL,
  },
  'supervisor:ahead': { promise: 'It counts by a clock that does not step.', made: FAKETIME },
  'supervisor:behind': { promise: 'It counts by a clock that does not step.', made: FAKETIME },
  'supervisor:disk': {
    promise: 'Its log ends, and its server takes no writes until there is room; then both go on.',
    made: SMALL_DISK,
  },
  'supervisor:read-only': {
    promise: 'It does not start, and says which folder it cannot write.',
    notMade: 'no file system becomes read-only while the server has its file open',
    test: 'apps/cli/src/commands/full-disk.test.ts',
  },
  'supervisor:descriptors': {
    promise: 'New commands cannot attach and say so; attached ones go on.',
    test: 'libs/private-server/src/attach.test.ts',
    made: LIMIT,
  },
  'supervisor:memory': { promise: 'As killed.', made: LIMIT },
  'supervisor:cut': {
    promise:
      'A command whose connection is gone counts as vanished: 50 s later the server stops, unless it is attached again.',
    test: 'libs/private-server/src/attach.test.ts',
    notMade: 'a Unix socket cannot be cut from outside; the test kills its command',
  },
  'supervisor:half-open': {
    not: 'Its connections are Unix sockets of one machine: they end with a process, and never in between.',
  },
  'supervisor:latency': { not: 'Its connections are Unix sockets of one machine.' },
  'supervisor:one-way': { not: 'Its connections are Unix sockets of one machine.' },

  'guard:kill': {
    promise: 'A server left by a killed supervisor and a killed guard is stopped before another starts.',
    test: 'libs/private-server/src/attach.test.ts',
    made: BY_SIGNAL,
  },
  'guard:stop': { promise: 'As killed, until it goes on.', made: BY_SIGNAL },
  'guard:ahead': { not: 'It knows no time.' },
  'guard:behind': { not: 'It knows no time.' },
  'guard:disk': { not: 'It writes nothing.' },
  'guard:read-only': { not: 'It writes nothing.' },
  'guard:descriptors': { not: 'It opens nothing.' },
  'guard:memory': { promise: 'As killed.', made: LIMIT },
  'guard:cut': { not: NO_WIRE },
  'guard:half-open': { not: NO_WIRE },
  'guard:latency': { not: NO_WIRE },
  'guard:one-way': { not: NO_WIRE },

  'server:kill': {
    promise:
      'With its append-only file nothing is lost but up to two seconds of acknowledged writes, which producers add again. Nothing is visible twice.',
    made: BY_SIGNAL,
  },
  'server:stop': {
    promise:
      'Everybody waits. Leases that ran out by its clock are lost, and what was computed for them is not written.',
    made: BY_SIGNAL,
  },
  'server:ahead': {
    promise:
      'Leases and times to live end early: claims are taken over, results that nobody fetched in time are computed again.',
    made: FAKETIME,
    test: 'libs/queue/src/faults/server-clock.test.ts',
  },
  'server:behind': {
    promise: 'No job waits for the step to pass.',
    made: FAKETIME,
    test: 'libs/queue/src/faults/server-clock.test.ts',
  },
  'server:disk': {
    promise:
      'Adds are refused in the server’s own words and taken when there is room; results wait in their executors.',
    made: SMALL_DISK,
    test: 'libs/queue/src/redis/full-disk.test.ts',
  },
  'server:read-only': {
    promise: 'Writes wait or are refused, and go on when it is a master again.',
    made: '`REPLICAOF` a place where nobody is, for eight seconds',
  },
  'server:descriptors': { promise: 'New connections are refused, those that are open go on.', made: LIMIT },
  'server:memory': {
    promise: 'Adds are refused as QUEUE_FULL or wait; results that fit nowhere wait in their executors.',
    made: '`maxmemory` 100 kB above what is used, for eight seconds',
  },
  'server:cut': {
    promise: 'All make their connections again, and each command is answered once or repeated without harm.',
    made: '`CLIENT KILL` of all, three times',
  },
  'server:half-open': { promise: 'As the same fault of every process at once.', made: PROXY },
  'server:latency': { promise: 'Slower, and nothing else.', made: PROXY },
  'server:one-way': { promise: 'Effects without answers: repeated commands do no harm.', made: PROXY },

  'replica:kill': { promise: 'Nobody notices.', made: BY_SIGNAL },
  'replica:stop': { promise: 'Nobody notices.', made: BY_SIGNAL },
  'replica:ahead': {
    promise: 'Nobody notices, until it takes over: then as the queue server’s clock.',
    made: FAKETIME,
  },
  'replica:behind': {
    promise: 'Nobody notices, until it takes over: then as the queue server’s clock.',
    made: FAKETIME,
  },
  'replica:disk': { promise: 'Nobody notices, until it takes over.', made: SMALL_DISK },
  'replica:read-only': { not: 'It is read-only.' },
  'replica:descriptors': { promise: 'Nobody notices, until it takes over.', made: LIMIT },
  'replica:memory': { promise: 'Nobody notices, until it takes over.', made: LIMIT },
  'replica:cut': {
    promise: 'Nobody notices; what a failover loses grows by what it had not heard.',
    made: CUT_REPLICA,
  },
  'replica:half-open': { promise: 'As cut.', made: PROXY },
  'replica:latency': { promise: 'As cut.', made: PROXY },
  'replica:one-way': { promise: 'As cut.', made: PROXY },

  'claimer:kill': { promise: KILLED_WORKER, made: BY_SIGNAL },
  'claimer:stop': {
    promise: 'Others claim its jobs when their lease is over; when it goes on it settles none of them.',
    made: BY_SIGNAL,
  },
  'claimer:ahead': { promise: SWITCH, made: FAKETIME },
  'claimer:behind': { promise: SWITCH, made: FAKETIME },
  'claimer:disk': { not: NO_FILES },
  'claimer:read-only': { not: NO_FILES },
  'claimer:descriptors': {
    promise:
      'It goes on with what it has open; an executor that dies meanwhile is started when there are descriptors, or the worker says so, ends with 1 and is started again.',
    made: LIMIT,
    test: 'libs/ops/src/service-main.test.ts',
  },
  'claimer:memory': { promise: `As killed. ${KILLED_WORKER}`, made: LIMIT },
  'claimer:cut': { promise: WIRE_WORKER, made: PROXY },
  'claimer:half-open': { promise: WIRE_WORKER, made: PROXY },
  'claimer:latency': { promise: WIRE_WORKER, made: PROXY },
  'claimer:one-way': { promise: WIRE_WORKER, made: PROXY },

  'executor:kill': {
    promise:
      'Its claimer starts another; what was at the device goes first and alone. A result that it had written is found.',
    made: BY_SIGNAL,
  },
  'executor:stop': {
    promise: 'Its claimer kills it for its silence and starts another, or its late commit is refused as LEASE_LOST.',
    made: BY_SIGNAL,
    test: 'libs/worker/src/claimer/worker.test.ts',
  },
  'executor:ahead': { promise: SWITCH, made: FAKETIME },
  'executor:behind': { promise: SWITCH, made: FAKETIME },
  'executor:disk': { not: NO_FILES },
  'executor:read-only': { not: NO_FILES },
  'executor:descriptors': { promise: 'It goes on with what it has open.', made: LIMIT },
  'executor:memory': {
    promise: 'As killed, or the runtime says that there is none and the micro-batch is halved.',
    made: LIMIT,
  },
  'executor:cut': { promise: WIRE_WORKER, made: PROXY },
  'executor:half-open': { promise: WIRE_WORKER, made: PROXY },
  'executor:latency': { promise: WIRE_WORKER, made: PROXY },
  'executor:one-way': { promise: WIRE_WORKER, made: PROXY },
};

export const CELL_NAMES = Object.keys(CELLS) as readonly CellName[];

/** Of the rows in bench/results/matrix.jsonl. */
export const caseOf = (name: CellName): string => name.replace(':', ', ');

export function isCellName(text: string): text is CellName {
  return Object.hasOwn(CELLS, text);
}
