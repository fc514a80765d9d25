// One seeded scheduler under processes that all live in this one. A *step* is one macrotask of one of them (a timer, an
// immediate, bytes that arrive, a message, a fault) and all the microtasks and ticks that follow from it; nothing else
// happens meanwhile, and the event loop of Node is never returned to, so that the machine decides nothing. Time stands
// still within a step and jumps to the next event between two.
//
// What the seed decides: how long everything takes. Bytes travel for a time of their own, a step takes its process some
// time, a process may stand still for long; whatever is due first comes next. So two processes interleave in any order,
// while the order that Node promises inside of one (timers by due time, immediates as they came, bytes of a connection
// as they were sent) is kept.
//
// A process that was killed does nothing any more: what is due for it is dropped, nobody hears what it sends. Its
// promises stay pending for ever and are garbage. Within a step it may be killed at any call into the world.

import { invariant } from '@shoal/contract';
import { EventHeap, type Due } from './event-heap.ts';
import { Random } from './random.ts';
import { Trace } from './trace.ts';

/** 2026-01-01T00:00:00Z, where the server's clock begins. */
export const EPOCH_MS = 1_767_225_600_000;

export interface Process {
  readonly id: number;
  readonly name: string;
  readonly random: Random;
  readonly startedMs: number;
  isAlive: boolean;
  /** What its wall clock is ahead of the true time. */
  wallOffsetMs: number;
  /** It computes, or stands still, until then. */
  freeAtMs: number;
  /** Called once, when it dies. */
  readonly onDeath: (() => void)[];
}

export interface WorldEvent extends Due {
  readonly kind: string;
  readonly process: Process;
  readonly run: () => void;
  isCancelled: boolean;
  /** What moves by it, for the trace. */
  readonly bytes: Uint8Array | undefined;
}

export interface WorldOptions {
  readonly seed: string;
  /** How long a step takes its process on average, in ms of virtual time. Default 0.05. */
  readonly stepMs?: number;
  readonly onLine?: ((line: string) => void) | undefined;
}

/** An error that nobody caught: in a process of its own it would have ended it. */
export interface Crash {
  readonly process: string;
  readonly atMs: number;
  readonly error: unknown;
}

/** Runs ticks and microtasks until none is left; only where no microtask is running already. */
const drain = Reflect.get(process, '_tickCallback') as () => void;

export class World {
  readonly random: Random;
  readonly trace: Trace;
  readonly crashes: Crash[] = [];
  /** The world itself: faults, and what stands outside of all processes. */
  readonly outside: Process;
  /** Whose step it is. */
  current: Process;
  nowMs = 0;
  private readonly stepMs: number;
  private readonly events = new EventHeap<WorldEvent>();
  private readonly stepTimes: Random;
  private readonly afterStep: (() => void)[] = [];
  private orders = 0;
  private readonly processes: Process[] = [];

  constructor({ seed, stepMs = 0.05, onLine }: WorldOptions) {
    this.random = new Random(seed);
    this.stepTimes = this.random.fork('steps');
    this.stepMs = stepMs;
    this.trace = new Trace(onLine);
    this.outside = this.newProcess('world');
    this.current = this.outside;
  }

  // ---- processes ------------------------------------------------------------------------------------------------

  newProcess(name: string, { wallOffsetMs = 0 }: { readonly wallOffsetMs?: number } = {}): Process {
    const id = this.processes.length;
    const process: Process = {
      id,
      name: `${name}#${id}`,
      random: this.random.fork(`process ${id}`),
      startedMs: this.nowMs,
      isAlive: true,
      wallOffsetMs,
      freeAtMs: this.nowMs,
      onDeath: [],
    };
    this.processes.push(process);
    return process;
  }

  /** The process of this id, dead or alive. */
  processOf(id: number): Process | undefined {
    return this.processes[id];
  }

  /** As by SIGKILL. */
  kill(process: Process): void {
    if (!process.isAlive) return;
    process.isAlive = false;
    this.trace.add('killed', process.name, this.nowMs);
    for (const listener of process.onDeath.splice(0)) listener();
  }

  /** As by SIGSTOP, and SIGCONT so much later. */
  pause(process: Process, ms: number): void {
    process.freeAtMs = Math.max(process.freeAtMs, this.nowMs + ms);
  }

  /** Epoch ms by the wall clock of a process, whole as Date has it. */
  wallMs(process: Process): number {
    return Math.floor(EPOCH_MS + this.nowMs + process.wallOffsetMs);
  }

  // ---- events ---------------------------------------------------------------------------------------------------

  /** Something happens to a process at a time, unless it is cancelled or the process is dead by then. */
  at(process: Process, dueMs: number, kind: string, run: () => void, bytes?: Uint8Array): WorldEvent {
    const event: WorldEvent = {
      dueMs: Math.max(dueMs, this.nowMs),
      order: this.orders++,
      kind,
      process,
      run,
      isCancelled: false,
      bytes,
    };
    this.events.push(event);
    return event;
  }

  after(process: Process, delayMs: number, kind: string, run: () => void, bytes?: Uint8Array): WorldEvent {
    return this.at(process, this.nowMs + delayMs, kind, run, bytes);
  }

  /** Called once at the end of this step, when nothing more comes of it. */
  atStepEnd(run: () => void): void {
    this.afterStep.push(run);
  }

  /** Runs something as the first thing that a process does. */
  start(process: Process, run: () => Promise<void> | void): void {
    this.after(process, 0, 'start', () => {
      void run();
    });
  }

  // ---- the loop -------------------------------------------------------------------------------------------------

  /**
   * Runs until `isOver`, `untilMs`, or nothing is left to happen; at most `mostSteps`. To be called where no microtask is
   * running: from a real immediate or timer.
   */
  run({ isOver, untilMs, mostSteps }: { isOver: () => boolean; untilMs: number; mostSteps: number }): RunEnd {
    const onRejection = (error: unknown): void => this.crashed(error);
    process.on('unhandledRejection', onRejection);
    try {
      for (;;) {
        if (isOver()) return 'over';
        const event = this.events.peek();
        if (event === undefined || event.dueMs > untilMs) {
          this.nowMs = untilMs; // nothing happens until then, and what waits for an hour has it
          return isOver() ? 'over' : event === undefined ? 'idle' : 'late';
        }
        if (this.trace.steps >= mostSteps) return 'long';
        this.events.pop();
        if (!event.isCancelled && event.process.isAlive) this.take(event);
      }
    } finally {
      process.off('unhandledRejection', onRejection);
      this.current = this.outside;
    }
  }

  private take(event: WorldEvent): void {
    const { process } = event;
    if (process.freeAtMs > event.dueMs && process !== this.outside) {
      event.dueMs = process.freeAtMs; // behind what waits for it already, by its order
      this.events.push(event);
      return;
    }
    this.nowMs = Math.max(this.nowMs, event.dueMs);
    this.trace.add(event.kind, process.name, this.nowMs, undefined, event.bytes);
    this.current = process;
    try {
      event.run();
    } catch (error) {
      this.crashed(error);
    }
    drain();
    this.current = this.outside;
    if (this.afterStep.length > 0) for (const run of this.afterStep.splice(0)) run();
    process.freeAtMs = Math.max(process.freeAtMs, this.nowMs + this.stepTimes.longTailed(this.stepMs));
  }

  private crashed(error: unknown): void {
    if (!this.current.isAlive) return;
    this.crashes.push({ process: this.current.name, atMs: this.nowMs, error });
    this.kill(this.current);
  }
}

/** Why a run ended: as it should; nothing left to happen; its time is over; too many steps. */
export type RunEnd = 'over' | 'idle' | 'late' | 'long';

/** The world whose time and chance this process has, if any. */
let present: World | undefined;

export function presentWorld(): World | undefined {
  return present;
}

/** From now on the sources of time and chance are this world's. */
export function enter(world: World | undefined): void {
  invariant(world === undefined || present === undefined, 'there is one world at a time');
  present = world;
}
