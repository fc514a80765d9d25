// The calls about one id, and what happened around them that excuses what would otherwise be wrong. An id is an object by
// itself: nothing here looks at two of them.
//
// Every question is asked of intervals. "May have" is true when some placement of the effects of calls in their
// intervals makes it so, and a call whose answer was lost may have its effect at any time after its start, or never. A
// rule accuses only what no placement explains.

import { mayHaveHappened, type Call } from './calls.ts';
import type { EventOp } from './event.ts';

export interface CheckOptions {
  /** Least time that the result of an id lives after its job completed. Default five minutes, as with a live waiter. */
  readonly resultTtlMs: (id: string) => number;
  /** Most that anything may take after the last fault, or after its add where that was later. */
  readonly settleMs: number;
  /** Most until a worker that claims a job that somebody asked to cancel has found the mark. */
  readonly cancelHeardMs: number;
  /** Whether producers add again what a server forgot, as the SDK does. Without it what was forgotten need not end. */
  readonly addsAgain: boolean;
}

export const DEFAULT_OPTIONS: CheckOptions = {
  resultTtlMs: () => 300_000,
  settleMs: 120_000,
  cancelHeardMs: 10_000,
  addsAgain: true,
};

/** What the whole history says, beside its ids. */
export interface Surroundings {
  /** Faults, and what servers forgot. */
  readonly faults: readonly Call[];
  readonly forgets: readonly Call[];
  /** When the last of them was over; 0 without any. */
  readonly lastFaultMs: number;
  /** Whether executors write down what they commit: without that a result may come from a commit nobody saw. */
  readonly hasCommits: boolean;
  /** When the last event was. */
  readonly lastMs: number;
  /** Whoever ran it says that everything had its time. */
  readonly isAtRest: boolean;
  readonly options: CheckOptions;
}

export class IdHistory {
  readonly id: string;
  /** By start. */
  readonly calls: readonly Call[];
  readonly around: Surroundings;

  constructor(id: string, calls: readonly Call[], around: Surroundings) {
    this.id = id;
    this.calls = calls;
    this.around = around;
  }

  /** Whether a result that was written at one time must be there at the other. */
  isAliveAt(writtenMs: number, ms: number): boolean {
    return ms - writtenMs < this.around.options.resultTtlMs(this.id) / 2;
  }

  /** Calls that had their effect and answered one of these; with none given, whatever they answered. */
  ok(op: EventOp, ...outcomes: readonly string[]): Call[] {
    return this.calls.filter(
      (call) =>
        call.op === op && call.kind === 'ok' && (outcomes.length === 0 || outcomes.includes(call.outcome ?? '')),
    );
  }

  /** Calls that had, or may have had, their effect. */
  possible(op: EventOp): Call[] {
    return this.calls.filter((call) => call.op === op && mayHaveHappened(call));
  }

  /** Commits that wrote the result, or may have: one that was sent again after a fault tells of its last attempt only. */
  mayHaveWritten(): Call[] {
    const mayBeRepeated = ({ to }: Call): boolean => this.around.faults.some(({ from }) => from <= to);
    return this.calls.filter((call) => call.op === 'commit' && (mayHaveHappened(call) || mayBeRepeated(call)));
  }

  /** Bodies that somebody saw, whether they stayed or not. */
  bodies(): Call[] {
    return [...this.ok('read', 'body'), ...this.ok('take', 'body')];
  }

  /** Adds that began a life of the id, or may have. */
  births(): Call[] {
    return this.possible('add').filter(({ kind, outcome }) => kind === 'unknown' || outcome === 'added');
  }

  /** A new life may have begun between the effects of the two, or the server told so. */
  mayBeReborn(a: Call, b: Call): boolean {
    return (
      this.births().some((birth) => birth !== a && birth !== b && overlaps(birth, a, b)) || this.isToldReborn(a, b)
    );
  }

  /** One witness told of all three, and what one process writes down is in order. */
  private isToldReborn(a: Call, b: Call): boolean {
    const [first, last] = a.to < b.to ? [a, b] : [b, a];
    return this.ok('birth').some(
      ({ process, to }) => process === a.process && process === b.process && to > first.to && to < last.to,
    );
  }

  /** The process of a may have added the id again between the effects of the two. */
  mayBeAskedAnew(a: Call, b: Call): boolean {
    return this.possible('add').some((add) => add.process === a.process && overlaps(add, a, b));
  }

  /** What a did may have been undone by a server that forgot it, before b. */
  mayBeForgotten(a: Call, b: Call): boolean {
    return this.around.forgets.some((forget) => a.to >= forget.from && a.from <= forget.to && forget.from <= b.to);
  }

  /** Some server forgot something between the two: neither what was there nor what was not is certain. */
  mayHaveLost(a: Call, b: Call): boolean {
    return this.around.forgets.some((forget) => overlaps(forget, a, b));
  }

  /** A clock stepped between the two, by which times to live end early. */
  clockMayHaveStepped(a: Call, b: Call): boolean {
    return this.around.faults.some((fault) => fault.outcome === 'clock' && overlaps(fault, a, b));
  }

  /** When the last fault of the whole history was over; never sooner than `ms`. */
  quietAfter(ms: number): number {
    return Math.max(ms, this.around.lastFaultMs);
  }
}

/** The effect of x may lie between those of a and b, whichever of the two came first. */
function overlaps(x: Call, a: Call, b: Call): boolean {
  return x.from <= Math.max(a.to, b.to) && x.to >= Math.min(a.from, b.from);
}
