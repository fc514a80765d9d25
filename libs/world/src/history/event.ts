// What a history is made of: one line for the beginning of a call and one for its end, in the order in which a process
// wrote them. Whoever runs the product writes it: the seeded world in memory, bench/chaos on disk, a file a process.
// Nothing in here knows how an event came about.
//
//   invoke ─┬─ ok       it had its effect, and this is the answer
//           ├─ fail     it had none, and is known to have had none
//           └─ unknown  its answer was lost: it may have had its effect, may have it later, or never
//
// A call without an end counts as unknown: its process died, or the history ended first. An end without its beginning
// is an observation: `since` says from when on it may have been true, left out it was true at that very moment.

/** How a call stands. */
export type EventKind = 'invoke' | 'ok' | 'fail' | 'unknown';

/**
 * What was called. Of a producer: `add`, `read` (looks at a result and leaves it), `take` (acknowledges one), `see` (asks
 * for a job's state), `cancel`. Of a worker: `claim`, `renew`, `commit`, `complete`, `fail`, `return`, `abandon`. Of
 * whoever reads what the server tells: `birth` (it added a job of this id, there was none; whose add it was it does not
 * tell). Of the run itself: `fault` (something was broken from the invoke to the end), `forget` (a server lost what it had
 * acknowledged since `since`), `room` (numbers of admission), `rest` (nothing is to be expected any more).
 */
export type EventOp = (typeof EVENT_OPS)[number];

export const EVENT_OPS = [
  'add',
  'read',
  'take',
  'see',
  'cancel',
  'claim',
  'renew',
  'commit',
  'complete',
  'fail',
  'return',
  'abandon',
  'birth',
  'fault',
  'forget',
  'room',
  'rest',
] as const;

export const EVENT_KINDS: readonly EventKind[] = ['invoke', 'ok', 'fail', 'unknown'];

/** What a check may need to know of a call. Facts of the invoke hold for its end, which may add some. */
export interface EventFacts {
  /** Of the input: 16 hex digits of an add and a commit, and of the header of a result that was read or taken. */
  readonly fingerprint?: string;
  /** Of the lock under which a worker acts. */
  readonly token?: string;
  /** Of the bytes of a result's body: of a commit, and of what was read or taken. */
  readonly digest?: string;
  /** Of the rows of the input, in order (add). */
  readonly want?: string;
  /** Of the rows that the vectors of a result are those of, in order, made like `want` (read, take). */
  readonly got?: string;
  /** Attempts that were used up when it was claimed or seen. */
  readonly attempts?: number;
  /** How long the lock holds from this claim or renewal on. */
  readonly leaseMs?: number;
  /**
   * What the call answered. add: added, known, ready, finished, refused, conflict. read and take: body, taken, absent;
   * mark, where a take only marked what was read before. commit: committed, already, conflict, lease-lost, not-staged.
   * cancel: cancelled, asked, finished, unknown. see: waiting, active, delayed, completed, failed, unknown. fault: its
   * kind, such as kill or clock.
   */
  readonly outcome?: string;
  /** Code of the failure (fail, see). */
  readonly code?: string;
  /** Of an observation: it may have been true from then on. Of a forget: what was acknowledged from then on may be gone. */
  readonly since?: number;
  /** The process that a fault is about. */
  readonly target?: string;
  /** Of room: each reserved amount by name. */
  readonly values?: Readonly<Record<string, number>>;
}

/** One line. */
export interface HistoryEvent extends EventFacts {
  /** ms of one clock that never steps and that all processes of the run share; fractions count. */
  readonly at: number;
  /** Whoever called, such as producer-0; another life of it has another name. */
  readonly process: string;
  readonly op: EventOp;
  /** Of the job; empty where it is about no job. */
  readonly id: string;
  readonly kind: EventKind;
  /** Joins an end to its invoke, within its process; left out of an observation. */
  readonly call?: number;
}

const NUMBERS = ['attempts', 'leaseMs', 'since', 'call'] as const;
const TEXTS = ['fingerprint', 'token', 'digest', 'want', 'got', 'outcome', 'code', 'target'] as const;
const KNOWN = new Set<string>(['at', 'process', 'op', 'id', 'kind', 'values', ...NUMBERS, ...TEXTS]);

/** What is wrong with something that should be an event; nothing when it is one. */
export function problemOfEvent(value: unknown): string | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return 'is no object';
  const event = value as Readonly<Record<string, unknown>>;
  const unknown = Object.keys(event).find((key) => !KNOWN.has(key));
  if (unknown !== undefined) return `has a field ${JSON.stringify(unknown)} that no event has`;
  if (!isNumber(event['at'])) return 'has no time';
  if (typeof event['process'] !== 'string' || event['process'] === '') return 'has no process';
  if (typeof event['id'] !== 'string') return 'has no id';
  if (!EVENT_OPS.includes(event['op'] as EventOp))
    return `has the op ${JSON.stringify(event['op'])}, which there is not`;
  if (!EVENT_KINDS.includes(event['kind'] as EventKind))
    return `has the kind ${JSON.stringify(event['kind'])}, which there is not`;
  if (event['kind'] === 'invoke' && event['call'] === undefined) return 'begins a call that has no number';
  const wrong =
    NUMBERS.find((key) => event[key] !== undefined && !isNumber(event[key])) ??
    TEXTS.find((key) => event[key] !== undefined && typeof event[key] !== 'string');
  if (wrong !== undefined) return `has ${wrong} ${JSON.stringify(event[wrong])}`;
  if (event['values'] !== undefined && !isNumbers(event['values'])) return 'has values that are no numbers';
  return undefined;
}

function isNumber(value: unknown): boolean {
  return typeof value === 'number' && Number.isFinite(value);
}

function isNumbers(value: unknown): boolean {
  return typeof value === 'object' && value !== null && Object.values(value).every(isNumber);
}
