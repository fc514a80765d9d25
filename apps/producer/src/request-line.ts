// Requests that are answered, and those that wait for their turn. So many are answered at a time; a request is one of
// them until its answer is written or its connection closed, and needs room for its answer in the budget of bytes.
// Others wait: the next turn is of the tenant that has the fewest, of its users of the one that has the fewest, and
// among those requests of the first, but for those whose answers are too large for the room that is left: smaller ones
// pass them. An eighth of the turns is kept for tenants that have few: whoever fills all others takes none of these, so
// that a newcomer waits for nobody's answer. Too many, or one that has waited its
// time, is refused with the time to come back, which is spread so that those who were refused together do not come back
// together.
//
// Why: docs/decisions/command-and-setup.md#places-to-wait-are-given-by-lot-while-callers-were-told-to-come-back

import { mainTenant } from '@shoal/contract';
import type { Clock } from '@shoal/core';
import { Hold } from './byte-budget.ts';
import { callerLeft, meanSpreadSeconds, overloaded, type Problem } from './problem.ts';

export interface RequestLineOptions {
  readonly mostOpen: number;
  readonly mostWaiting: number;
  readonly clock: Clock;
  /** Default Math.random. */
  readonly random?: () => number;
  /** How many are answered at present, and how many wait. */
  readonly onChange?: ((open: number, waiting: number) => void) | undefined;
}

export interface Turn {
  /** Room that the answer takes. */
  readonly bytes: number;
  readonly hold: Hold;
  /** Aborted when nobody waits any more. */
  readonly gone: AbortSignal;
  /** Who asks: turns and places to wait are shared between tenants, and a tenant's between its users. */
  readonly tenant: string;
  readonly waitMs: number;
}

interface Waiting extends Turn {
  readonly go: () => void;
  readonly refuse: (problem: Problem) => void;
}

/** As many endings say how fast requests are answered. */
const KNOWN_ENDINGS = 64;
/** Before any is known. */
const FIRST_GUESS_SECONDS = 2;
/** OpenAI's clients wait no longer than a minute because a server says so; half as long again is added in the answer. */
const MOST_SECONDS = 40;
/**
 * How much of the line one who comes back stands for: of the places that become free some go to those who were just
 * answered and ask again at once.
 */
const RETURNING_WEIGHT = 1.5;
/** Of the turns, kept for tenants with few; of these one tenant has a quarter at most. */
const KEPT_SHARE = 1 / 8;
const KEPT_FOR_ONE = 1 / 4;

export class RequestLine {
  private readonly options: RequestLineOptions;
  /** By tenant, in the order in which they came; none is empty. */
  private readonly lines = new Map<string, Waiting[]>();
  /** By tenant and user; of all users of a tenant under its name and "/". */
  private readonly openOf = new Map<string, number>();
  private readonly endingsMs: number[] = [];
  private readonly promised = new Promised();
  /** Turns that are kept, and how many a tenant may have to be given one of them. */
  private readonly kept: number;
  private readonly few: number;
  private open = 0;
  private waiting = 0;

  constructor(options: RequestLineOptions) {
    this.options = options;
    this.kept = Math.floor(options.mostOpen * KEPT_SHARE);
    this.few = Math.ceil(this.kept * KEPT_FOR_ONE);
  }

  /**
   * Resolves when it is this request's turn, with what ends it: to be called once its answer is written or its
   * connection closed. Rejects with a Problem.
   */
  async enter(turn: Turn): Promise<() => void> {
    if (turn.gone.aborted) throw callerLeft();
    // where a turn is free and others wait all the same, it is for room, or kept from them: what is smaller passes them
    if (this.hasTurnFor(turn.tenant) && turn.hold.take(turn.bytes)) this.begins(turn);
    else {
      if (this.isFull() && !this.pushOut(turn.tenant)) throw this.full();
      await this.untilCalled(turn);
    }
    this.changed();
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      this.ended(turn);
    };
  }

  /** There is room again in the budget, or a turn: for the tenant that has the fewest, and of its requests the first. */
  callNext(): void {
    while (this.open < this.options.mostOpen) {
      const tenants = [...this.lines.keys()]
        .filter((tenant) => this.hasTurnFor(tenant))
        .sort((a, b) => this.turnsOf(a) - this.turnsOf(b) || this.ownOf(a) - this.ownOf(b));
      const next = tenants.reduce<Waiting | undefined>(
        (found, tenant) => found ?? this.firstThatFits(tenant),
        undefined,
      );
      if (next === undefined) return;
      this.remove(next);
      this.toTheEnd(next.tenant);
      this.begins(next);
      next.go();
    }
  }

  /** Of tenants with as many turns, whoever was called longest ago is next. */
  private toTheEnd(tenant: string): void {
    const line = this.lines.get(tenant);
    if (line === undefined) return;
    this.lines.delete(tenant);
    this.lines.set(tenant, line);
  }

  private firstThatFits(tenant: string): Waiting | undefined {
    return this.lines.get(tenant)?.find(({ hold, bytes }) => hold.take(bytes));
  }

  private hasTurnFor(tenant: string): boolean {
    const { mostOpen } = this.options;
    return this.open < mostOpen - this.kept || (this.open < mostOpen && this.turnsOf(tenant) < this.few);
  }

  /** Of the tenant, with all its users. */
  private turnsOf(tenant: string): number {
    return this.ownOf(`${mainTenant(tenant)}/`);
  }

  private ownOf(name: string): number {
    return this.openOf.get(name) ?? 0;
  }

  private begins({ tenant }: Turn): void {
    this.open += 1;
    for (const name of [tenant, `${mainTenant(tenant)}/`]) this.openOf.set(name, this.ownOf(name) + 1);
  }

  /**
   * While as many callers as there are places were told to come back, places to wait are given by lot, and the fewer the
   * more of them are taken: else whoever was just answered and asks again takes each place as it becomes free, and who
   * comes back when he was told to finds none, ever. With fewer such callers the lot refuses fewer. Answers end several
   * at a time, so that those who ask again come several at a time as well: with half of the places given by lot, of
   * those 76 in a hundred got one, of who came back 49. (Random early detection; S. Floyd and V. Jacobson, 1993.)
   */
  private isFull(): boolean {
    const { mostWaiting, clock, random = Math.random } = this.options;
    if (this.waiting >= mostWaiting) return true;
    const returning = this.promised.after(clock.nowMs());
    return random() < (this.waiting / mostWaiting) * Math.min(1, returning / mostWaiting);
  }

  /**
   * Whether the newest request of the tenant that waits most made its place free for one that waits less; within a tenant,
   * that of the user that waits most.
   */
  private pushOut(tenant: string): boolean {
    const waits = new Map<string, number>();
    for (const [name, { length }] of this.lines)
      waits.set(mainTenant(name), (waits.get(mainTenant(name)) ?? 0) + length);
    const own = mainTenant(tenant);
    const [[greediest, itsWaits] = ['', 0]] = [...waits].sort((a, b) => b[1] - a[1]);
    const isOther = itsWaits > (waits.get(own) ?? 0) + 1;
    const from = isOther ? greediest : own;
    const lines = [...this.lines].filter(([name]) => mainTenant(name) === from).map(([, line]) => line);
    const [most] = lines.sort((a, b) => b.length - a.length);
    if (most === undefined || (!isOther && most.length <= (this.lines.get(tenant)?.length ?? 0) + 1)) return false;
    most.at(-1)!.refuse(this.full());
    return true;
  }

  private full(): Problem {
    return this.refusal(`${this.open} requests are being answered and ${this.waiting} wait, the most there may`);
  }

  /**
   * What to say to a request that cannot be taken. The time is what those before it take, and those who were told to come
   * back before it: of ten times as many callers as there are places each then finds one at its first or second return,
   * and not at its seventh.
   */
  refusal(found: string): Problem {
    const seconds = this.retryAfterSeconds();
    this.promised.add(this.options.clock.nowMs() + (seconds + meanSpreadSeconds(seconds)) * 1_000);
    return overloaded('too_many_requests', `${found}; try again in a while`, seconds);
  }

  private retryAfterSeconds(): number {
    const [first] = this.endingsMs;
    const returning = this.promised.after(this.options.clock.nowMs());
    const before = this.open + this.waiting + returning * RETURNING_WEIGHT;
    const tookMs = first === undefined ? 0 : this.options.clock.nowMs() - first;
    const seconds = first === undefined ? FIRST_GUESS_SECONDS : (before * tookMs) / 1_000 / this.endingsMs.length;
    return Math.min(MOST_SECONDS, Math.max(1, seconds));
  }

  private untilCalled(turn: Turn): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave = (problem: Problem): void => {
        if (!this.remove(waiting)) return;
        stop();
        this.changed();
        reject(problem);
      };
      const onGone = (): void => leave(callerLeft());
      const cancel = this.options.clock.after(turn.waitMs, () =>
        leave(
          this.refusal(
            `the request has waited ${turn.waitMs / 1_000} s for its turn behind ${this.open} that are answered`,
          ),
        ),
      );
      const stop = (): void => {
        cancel();
        turn.gone.removeEventListener('abort', onGone);
      };
      const waiting: Waiting = {
        ...turn,
        refuse: leave,
        go: () => {
          stop();
          resolve();
        },
      };
      turn.gone.addEventListener('abort', onGone);
      const line = this.lines.get(turn.tenant);
      if (line === undefined) this.lines.set(turn.tenant, [waiting]);
      else line.push(waiting);
      this.waiting += 1;
      this.changed();
    });
  }

  private remove(waiting: Waiting): boolean {
    const line = this.lines.get(waiting.tenant);
    const at = line?.indexOf(waiting) ?? -1;
    if (line === undefined || at < 0) return false;
    line.splice(at, 1);
    if (line.length === 0) this.lines.delete(waiting.tenant);
    this.waiting -= 1;
    return true;
  }

  private ended({ tenant }: Turn): void {
    this.open -= 1;
    for (const name of [tenant, `${mainTenant(tenant)}/`])
      if (this.ownOf(name) > 1) this.openOf.set(name, this.ownOf(name) - 1);
      else this.openOf.delete(name);
    this.endingsMs.push(this.options.clock.nowMs());
    if (this.endingsMs.length > KNOWN_ENDINGS) this.endingsMs.shift();
    this.callNext();
    this.changed();
  }

  private changed(): void {
    this.options.onChange?.(this.open, this.waiting);
  }
}

/** How many were told to come back, by the second in which they will: a minute and a half of them at most. */
class Promised {
  private readonly bySecond = new Map<number, number>();

  add(atMs: number): void {
    const second = Math.floor(atMs / 1_000);
    this.bySecond.set(second, (this.bySecond.get(second) ?? 0) + 1);
  }

  /** Those who have not come back yet. */
  after(nowMs: number): number {
    let count = 0;
    for (const [second, callers] of this.bySecond)
      if (second < Math.floor(nowMs / 1_000)) this.bySecond.delete(second);
      else count += callers;
    return count;
  }
}
