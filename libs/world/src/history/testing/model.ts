// A little model of what histories are about, to test their checker: a queue server in a few lines, workers and
// producers that call it, replies that get lost, processes that die, a server that forgets its last second. Everything
// by a seed. Correct as it is, its histories must be accepted; with one of the bugs below, one rule must refuse some.

import { seededRandom } from '@shoal/core/base';
import type { EventFacts, EventOp, HistoryEvent } from '../event.ts';
import { MemoryHistory, Recorder } from '../recorder.ts';

/** Mistakes of one line each, and the rule that must find it. */
export const BUGS = {
  'hands out what was taken': 'two-results',
  'shows what was taken': 'after-taken',
  'writes over a result': 'written-twice',
  'answers for other input': 'other-input',
  'mixes rows up': 'rows',
  'writes half a result': 'torn',
  'completes before it commits': 'completed-empty',
  'deletes results at completion': 'lost-result',
  'keeps the old token valid': 'lease-shared',
  'gives a held job away': 'lease-overlap',
  'commits without looking at the lock': 'without-lease',
  'charges an attempt for a death': 'attempt-charged',
  'runs what was cancelled': 'after-cancel',
  'forgets stalled jobs': 'never-ended',
  'ends a job twice': 'ended-twice',
  'deletes inputs early': 'input-lost',
  'sees conflicts everywhere': 'false-conflict',
} as const;

export type Bug = keyof typeof BUGS;

const LEASE_MS = 500;
const END_MS = 10_000;
/** After that nothing breaks any more, and nothing new is asked for. */
const QUIET_MS = 5_000;
export const MODEL_SETTLE_MS = 4_500;
const IDS = 4;

interface Job {
  state: 'waiting' | 'active' | 'completed' | 'failed';
  fingerprint: string;
  token: string | undefined;
  /** Tokens before it, for the server that keeps them valid. */
  old: string[];
  untilMs: number;
  attempts: number;
  code: string | undefined;
  isCancelled: boolean;
  hasInput: boolean;
}

interface Stored {
  readonly fingerprint: string;
  readonly digest: string;
  readonly got: string;
  isTaken: boolean;
}

interface Server {
  jobs: Record<string, Job>;
  results: Record<string, Stored>;
}

/** The history that one seed gives, bug or none. */
export function modelHistory(seed: number, bug?: Bug): HistoryEvent[] {
  return new Model(seed, bug).run();
}

class Model {
  private readonly random: () => number;
  private readonly bug: Bug | undefined;
  private readonly history = new MemoryHistory();
  private readonly agenda: { readonly at: number; readonly order: number; readonly step: () => void }[] = [];
  private server: Server = { jobs: {}, results: {} };
  private snapshots: { readonly at: number; readonly text: string }[] = [];
  private nowMs = 0;
  /** What readers took, by id: they tell a server that comes back. */
  private readonly taken = new Map<string, Stored>();
  private order = 0;
  private names = 0;

  constructor(seed: number, bug: Bug | undefined) {
    this.random = seededRandom(seed);
    this.bug = bug;
  }

  run(): HistoryEvent[] {
    for (let index = 0; index < 3; index++) this.startWorker(index, 0);
    for (let id = 0; id < IDS; id++) this.startProducer(`job-${id}`);
    this.after(0, () => this.keepSnapshots());
    if (this.random() < 0.4) this.after(1_000 + this.random() * 3_000, () => this.crash());
    for (;;) {
      const next = this.agenda.reduce<number>((least, { at, order }, index) => {
        const other = this.agenda[least];
        return other === undefined || at < other.at || (at === other.at && order < other.order) ? index : least;
      }, -1);
      if (next === -1 || this.agenda[next]!.at > END_MS) break;
      const [{ at, step }] = this.agenda.splice(next, 1) as [(typeof this.agenda)[number]];
      this.nowMs = at;
      step();
    }
    this.nowMs = END_MS;
    new Recorder('run', this.history, () => this.nowMs).observe('rest', '');
    return this.history.events;
  }

  private after(ms: number, step: () => void): void {
    this.agenda.push({ at: this.nowMs + ms, order: this.order++, step });
  }

  private has(bug: Bug): boolean {
    return this.bug === bug;
  }

  private recorder(name: string): Recorder {
    return new Recorder(name, this.history, () => this.nowMs);
  }

  /**
   * A call: its effect some ms later, its answer some ms after that, or lost; then `then` hears nothing of what it did.
   * An answer of undefined says that it had no effect.
   */
  private call(
    recorder: Recorder,
    { op, id, facts = {} }: { readonly op: EventOp; readonly id: string; readonly facts?: EventFacts },
    effect: () => { readonly kind: 'ok' | 'fail'; readonly facts: EventFacts },
    then: (answer: EventFacts & { readonly isKnown: boolean; readonly isOk: boolean }) => void,
  ): void {
    const end = recorder.invoke(op, id, facts);
    const isLost = this.nowMs < QUIET_MS && this.random() < 0.04;
    const hasEffect = !isLost || this.random() < 0.5;
    this.after(1 + this.random() * 20, () => {
      const { kind, facts: answer } = hasEffect ? effect() : { kind: 'fail' as const, facts: {} };
      this.after(1 + this.random() * 20, () => {
        end(isLost ? 'unknown' : kind, isLost ? {} : answer);
        then(isLost ? { isKnown: false, isOk: false } : { ...answer, isKnown: true, isOk: kind === 'ok' });
      });
    });
  }

  private keepSnapshots(): void {
    this.snapshots.push({ at: this.nowMs, text: JSON.stringify(this.server) });
    this.after(100, () => this.keepSnapshots());
  }

  /** The server comes back with what it had up to a second ago. */
  private crash(): void {
    const wanted = this.nowMs - this.random() * 1_000;
    const { at, text } = this.snapshots.findLast((snapshot) => snapshot.at <= wanted) ?? this.snapshots[0]!;
    this.server = JSON.parse(text) as Server;
    for (const [id, result] of this.taken) {
      const there = this.server.results[id];
      if (there === undefined || there.digest === result.digest) this.server.results[id] = { ...result, isTaken: true };
    }
    this.recorder('server').observe('forget', '', { since: at });
  }

  private startWorker(index: number, life: number): void {
    const recorder = this.recorder(`worker-${index}.${life}`);
    const worker: { isDead: boolean; token: string | undefined } = { isDead: false, token: undefined };
    const look = (): void => {
      if (worker.isDead) return;
      this.claim(recorder, worker, look);
    };
    this.after(this.random() * 50, look);
    if (this.random() < 0.5)
      this.after(500 + this.random() * 3_500, () => {
        worker.isDead = true;
        this.recorder('run').observe('fault', '', { outcome: 'kill', target: recorder.process });
        this.after(50, () => this.startWorker(index, life + 1));
      });
  }

  private claim(recorder: Recorder, worker: { isDead: boolean }, look: () => void): void {
    this.stall();
    const held = this.has('gives a held job away') && this.random() < 0.2;
    const id = Object.keys(this.server.jobs).find((one) => {
      const { state } = this.server.jobs[one]!;
      return state === 'waiting' || (held && state === 'active');
    });
    if (id === undefined) return this.after(30, look);
    const token = `t${++this.names}`;
    this.call(
      recorder,
      { op: 'claim', id, facts: { token, leaseMs: LEASE_MS } },
      () => {
        const job = this.server.jobs[id];
        if (job === undefined || !(job.state === 'waiting' || (held && job.state === 'active')))
          return { kind: 'fail', facts: {} };
        if (job.token !== undefined) job.old.push(job.token);
        Object.assign(job, { state: 'active', token, untilMs: this.nowMs + LEASE_MS });
        return { kind: 'ok', facts: { attempts: job.attempts } };
      },
      ({ isOk }) => (isOk && !worker.isDead ? this.work(recorder, worker, { id, token, look }) : this.after(10, look)),
    );
  }

  /** Who has died is not asked any more. */
  private work(
    recorder: Recorder,
    worker: { isDead: boolean },
    { id, token, look }: { readonly id: string; readonly token: string; readonly look: () => void },
  ): void {
    const job = this.server.jobs[id];
    const fingerprint = job?.fingerprint ?? '';
    const isSlow = this.random() < 0.15; // past its lease
    const isOver = (): boolean => worker.isDead;
    if (job !== undefined && !job.hasInput)
      return this.end(recorder, { op: 'fail', id, token, code: 'INPUT_LOST' }, look);
    if (job?.isCancelled === true && !this.has('runs what was cancelled'))
      return this.end(recorder, { op: 'fail', id, token, code: 'CANCELLED' }, look);
    if (this.random() < 0.1)
      return this.end(recorder, { op: 'return', id, token }, () => {
        if (this.random() < 0.5) this.commit(recorder, { id, token, fingerprint }, () => undefined); // too late
        look();
      });
    if (this.random() < 0.1) return this.end(recorder, { op: 'fail', id, token, code: 'INFERENCE_FAILED' }, look);
    if (this.has('completes before it commits') && this.random() < 0.3)
      return this.end(recorder, { op: 'complete', id, token }, look);
    const renew = (): void => {
      if (isOver() || isSlow) return;
      this.call(
        recorder,
        { op: 'renew', id, facts: { token, leaseMs: LEASE_MS } },
        () => {
          if (!this.isHeld(id, token)) return { kind: 'fail', facts: {} };
          this.server.jobs[id]!.untilMs = this.nowMs + LEASE_MS;
          return { kind: 'ok', facts: {} };
        },
        () => undefined,
      );
    };
    this.after(200, renew);
    this.after(isSlow ? 900 : 100 + this.random() * 250, () => {
      if (isOver()) return;
      this.commit(recorder, { id, token, fingerprint }, (outcome) => {
        if (isOver()) return;
        if (outcome === undefined || outcome === 'lease-lost') return this.after(10, look);
        const complete = (then: () => void): void => this.end(recorder, { op: 'complete', id, token }, then);
        complete(() => (this.random() < 0.2 ? complete(look) : look())); // now and then it asks once more
      });
    });
  }

  private commit(
    recorder: Recorder,
    { id, token, fingerprint }: { readonly id: string; readonly token: string; readonly fingerprint: string },
    then: (outcome: string | undefined) => void,
  ): void {
    const digest = `d${++this.names}`;
    this.call(
      recorder,
      { op: 'commit', id, facts: { token, fingerprint, digest } },
      () => {
        const isUnlocked = this.has('commits without looking at the lock');
        if (!isUnlocked && !this.isHeld(id, token)) return { kind: 'fail', facts: { outcome: 'lease-lost' } };
        const there = this.server.results[id];
        if (there !== undefined && !this.has('writes over a result'))
          return there.fingerprint === fingerprint
            ? { kind: 'ok', facts: { outcome: 'already' } }
            : { kind: 'fail', facts: { outcome: 'conflict' } };
        this.server.results[id] = {
          fingerprint: this.has('answers for other input') ? 'other' : fingerprint,
          digest: this.has('writes half a result') ? 'half' : digest,
          got: this.has('mixes rows up') ? `${fingerprint} mixed` : fingerprint,
          isTaken: false,
        };
        return { kind: 'ok', facts: { outcome: 'committed' } };
      },
      ({ outcome }) => then(outcome),
    );
  }

  private end(
    recorder: Recorder,
    {
      op,
      id,
      token,
      code,
    }: { readonly op: EventOp; readonly id: string; readonly token: string; readonly code?: string },
    look: () => void,
  ): void {
    this.call(
      recorder,
      { op, id, facts: { token, ...(code === undefined ? {} : { code }) } },
      () => {
        const isAgain = this.has('ends a job twice') && this.server.jobs[id]?.state === 'completed';
        if (!this.isHeld(id, token) && !isAgain) return { kind: 'fail', facts: {} };
        const job = this.server.jobs[id]!;
        job.token = undefined;
        job.state = op === 'return' ? 'waiting' : op === 'fail' ? 'failed' : 'completed';
        job.code = code;
        if (op === 'complete' && this.has('deletes results at completion')) delete this.server.results[id];
        return { kind: 'ok', facts: {} };
      },
      () => this.after(10, look),
    );
  }

  private isHeld(id: string, token: string): boolean {
    const job = this.server.jobs[id];
    if (job === undefined) return false;
    if (this.has('keeps the old token valid') && job.old.includes(token)) return true;
    return job.state === 'active' && job.token === token && job.untilMs > this.nowMs;
  }

  /** Jobs whose lease is over wait again. */
  private stall(): void {
    for (const job of Object.values(this.server.jobs)) {
      if (job.state !== 'active' || job.untilMs > this.nowMs || this.has('forgets stalled jobs')) continue;
      job.state = 'waiting';
      if (this.has('charges an attempt for a death')) job.attempts++;
      if (this.has('deletes inputs early')) job.hasInput = false;
    }
  }

  private startProducer(id: string): void {
    const recorder = this.recorder(`producer-${id}`);
    this.after(this.random() * 200, () => this.add(recorder, id, `${id}-input`));
  }

  private add(recorder: Recorder, id: string, fingerprint: string): void {
    this.call(
      recorder,
      { op: 'add', id, facts: { fingerprint, want: fingerprint } },
      () => {
        if (this.has('sees conflicts everywhere') && this.random() < 0.1)
          return { kind: 'fail', facts: { outcome: 'conflict' } };
        const job = this.server.jobs[id];
        const isUnread = this.server.results[id]?.isTaken === false;
        if (job?.state === 'waiting' || job?.state === 'active') return { kind: 'ok', facts: { outcome: 'known' } };
        if (isUnread) return { kind: 'ok', facts: { outcome: 'ready' } };
        delete this.server.results[id];
        this.taken.delete(id);
        this.server.jobs[id] = newJob(fingerprint);
        return { kind: 'ok', facts: { outcome: 'added' } };
      },
      ({ isKnown, isOk }) => {
        if (!isKnown || !isOk) return this.after(20, () => this.add(recorder, id, fingerprint));
        if (this.nowMs < QUIET_MS && this.random() < 0.3) return this.cancel(recorder, id, fingerprint);
        this.after(60, () => this.see(recorder, id, fingerprint));
      },
    );
  }

  private cancel(recorder: Recorder, id: string, fingerprint: string): void {
    this.call(
      recorder,
      { op: 'cancel', id },
      () => {
        const job = this.server.jobs[id];
        if (job === undefined) return { kind: 'ok', facts: { outcome: 'unknown' } };
        if (job.state !== 'waiting' && job.state !== 'active') return { kind: 'ok', facts: { outcome: 'finished' } };
        if (job.state === 'active') {
          job.isCancelled = true;
          return { kind: 'ok', facts: { outcome: 'asked' } };
        }
        if (!this.has('runs what was cancelled')) Object.assign(job, { state: 'failed', code: 'CANCELLED' });
        return { kind: 'ok', facts: { outcome: 'cancelled' } };
      },
      () => this.after(60, () => this.see(recorder, id, fingerprint)),
    );
  }

  private see(recorder: Recorder, id: string, fingerprint: string): void {
    const again = (): void => this.after(80, () => this.see(recorder, id, fingerprint));
    this.call(
      recorder,
      { op: 'see', id },
      () => {
        const job = this.server.jobs[id];
        if (job === undefined) return { kind: 'ok', facts: { outcome: 'unknown' } };
        return {
          kind: 'ok',
          facts: { outcome: job.state, attempts: job.attempts, ...(job.code === undefined ? {} : { code: job.code }) },
        };
      },
      ({ outcome, isKnown }) => {
        if (!isKnown || outcome === 'waiting' || outcome === 'active') return again();
        if (outcome === 'completed') return this.fetch(recorder, id, fingerprint);
        // failed or forgotten: once more, or it stays so
        if (outcome === 'unknown' || this.nowMs < QUIET_MS) this.after(50, () => this.add(recorder, id, fingerprint));
      },
    );
  }

  /** Reads and marks, or takes at once. */
  private fetch(recorder: Recorder, id: string, fingerprint: string): void {
    const isTake = this.random() < 0.5;
    const op = isTake ? 'take' : 'read';
    this.call(
      recorder,
      { op, id },
      () => this.give(op, id),
      ({ outcome, isKnown }) => {
        if (!isKnown || outcome !== 'body') {
          if (outcome === 'absent' && this.nowMs > QUIET_MS) return;
          return this.after(50, () => this.add(recorder, id, fingerprint));
        }
        if (isTake) return this.afterwards(recorder, id, fingerprint);
        this.mark(recorder, id, () => this.afterwards(recorder, id, fingerprint));
      },
    );
  }

  private give(op: 'read' | 'take', id: string): { readonly kind: 'ok'; readonly facts: EventFacts } {
    const result = this.server.results[id];
    if (result === undefined) return { kind: 'ok', facts: { outcome: 'absent' } };
    const { isTaken, ...facts } = result;
    const leaks = this.has(op === 'take' ? 'hands out what was taken' : 'shows what was taken');
    if (isTaken && !leaks) return { kind: 'ok', facts: { outcome: 'taken' } };
    if (op === 'take') this.take(id, result);
    return { kind: 'ok', facts: { ...facts, outcome: 'body' } };
  }

  private take(id: string, result: Stored): void {
    result.isTaken = true;
    this.taken.set(id, result);
  }

  private mark(recorder: Recorder, id: string, then: () => void): void {
    this.call(
      recorder,
      { op: 'take', id },
      () => {
        const result = this.server.results[id];
        if (result !== undefined) this.take(id, result);
        return { kind: 'ok', facts: { outcome: 'mark' } };
      },
      ({ isKnown }) => (isKnown ? then() : this.after(10, () => this.mark(recorder, id, then))),
    );
  }

  /** Somebody else looks whether it is still there, or the id gets a new life. */
  private afterwards(recorder: Recorder, id: string, fingerprint: string): void {
    if (this.nowMs > QUIET_MS) return;
    if (this.random() < 0.5) return this.after(100, () => this.add(recorder, id, fingerprint));
    const other = this.recorder(`reader-${++this.names}`);
    const op = this.random() < 0.5 ? 'take' : 'read';
    this.call(
      other,
      { op, id },
      () => this.give(op, id),
      () => undefined,
    );
  }
}

function newJob(fingerprint: string): Job {
  return {
    state: 'waiting',
    fingerprint,
    token: undefined,
    old: [],
    untilMs: 0,
    attempts: 0,
    code: undefined,
    isCancelled: false,
    hasInput: true,
  };
}
