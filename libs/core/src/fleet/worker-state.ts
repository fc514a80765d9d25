// In which state a worker is: one word and one sentence, the same for whoever publishes it, shows it or counts it.
//
// starting: it is not able to run anything yet, or its executor died and the next is being started.
// ready:    it claims.
// braked:   it claims nothing, or little, because the queue server has no room for results.
// paused:   somebody paused its queue.
// draining: it was told to claim nothing more, or to leave, and finishes what it has.
// drained:  it was told to claim nothing, and has nothing left.
//
// Of several that hold, the one that a person must undo last is told: a drained worker of a paused queue is drained.

export const WORKER_STATES = ['starting', 'ready', 'braked', 'paused', 'draining', 'drained'] as const;
export type WorkerState = (typeof WORKER_STATES)[number];

export interface WorkerStanding {
  readonly state: WorkerState;
  /** A sentence without a full stop, for a person. */
  readonly reason: string;
}

/** What decides about it. */
export interface StandingSeen {
  /** Why it cannot run anything now; left out: it can. */
  readonly notReady?: string | undefined;
  /** Told to end: by a signal, or to make room for its successor. */
  readonly isStopping?: boolean | undefined;
  readonly isDrained: boolean;
  /** Claims in flight. */
  readonly claims: number;
  readonly isPaused: boolean;
  readonly brake?: 'memory' | 'unread' | undefined;
}

const BRAKED = {
  memory: 'the memory of the queue server is almost full; a few jobs are claimed at a time',
  unread: 'results that nobody has fetched fill the queue server',
} as const;

export function standingOf({ notReady, isStopping, isDrained, claims, isPaused, brake }: StandingSeen): WorkerStanding {
  const left = `${claims.toLocaleString('en')} claimed job${claims === 1 ? '' : 's'} left`;
  if (isStopping === true) return { state: 'draining', reason: `it was told to end; ${left}` };
  if (isDrained && claims > 0) return { state: 'draining', reason: `it was told to claim nothing; ${left}` };
  if (isDrained) return { state: 'drained', reason: 'it was told to claim nothing until it is resumed' };
  if (notReady !== undefined) return { state: 'starting', reason: notReady };
  if (isPaused) return { state: 'paused', reason: 'its queue is paused' };
  if (brake !== undefined) return { state: 'braked', reason: BRAKED[brake] };
  return { state: 'ready', reason: 'it claims' };
}
