// Keeps a process running until it is told to stop. Knows nothing of what the process is: how one is started and asked
// to go, and whether its end is final, is for its owner to say.
//
// living:   a process of ours runs, or is being started.
// pausing:  it ended without being asked to. The next one starts after a pause that doubles from death to death, up to
//           a limit, and is short again once a process ran for long enough or its owner says that it works.
// ended:    it was told to stop and is gone, or its owner gave it up. Final.

import { backoffMs, processClock, type Backoff, type Clock } from '@shoal/core/base';

/** `later`: after the longest pause. */
export type AfterDeath = 'again' | 'later' | 'give-up';

export interface KeptProcessOptions<Life> {
  /** Starts a process and resolves with what came of it once it is gone. Asks it to go when `stopping` is aborted. */
  readonly live: (stopping: AbortSignal) => Promise<Life>;
  /**
   * It ended without being asked to, for so many times in a row, from 1. Says what comes next; what it throws ends the
   * keeping, and `run` throws it.
   */
  readonly onDeath: (life: Life, deaths: number) => AfterDeath;
  readonly pause: Backoff;
  /** After a life of so many ms, the next death counts as the first. Left out: however long it lived. */
  readonly steadyMs?: number;
  readonly clock?: Clock;
}

export class KeptProcess<Life> {
  readonly #options: KeptProcessOptions<Life>;
  readonly #clock: Clock;
  readonly #stopping = new AbortController();
  #running: Promise<void> | undefined;
  #deaths = 0;

  constructor(options: KeptProcessOptions<Life>) {
    this.#options = options;
    this.#clock = options.clock ?? processClock; // what is kept is to come back
  }

  /** Resolves when the process is gone and no other will be started. To be called once. */
  run(): Promise<void> {
    this.#running = this.#keep();
    return this.#running;
  }

  /** Whatever ended it before, it works now: the next pause is the shortest again. */
  noteProgress(): void {
    this.#deaths = 0;
  }

  /** Resolves when the process is gone. Safe to call early or twice. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#running?.catch(() => undefined); // whoever called `run` is told
  }

  async #keep(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      const startedMs = this.#clock.nowMs();
      const life = await this.#options.live(signal);
      if (signal.aborted) return;
      const next = this.#options.onDeath(life, ++this.#deaths);
      if (next === 'give-up') return;
      if (this.#clock.nowMs() - startedMs > (this.#options.steadyMs ?? Infinity)) this.#deaths = 1;
      const { pause } = this.#options;
      await pauseFor(this.#clock, next === 'later' ? pause.mostMs : backoffMs(this.#deaths - 1, pause), signal);
    }
  }
}

/** Resolves after `ms`, or as soon as `signal` is aborted. */
async function pauseFor(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return;
  const { promise, resolve } = Promise.withResolvers<void>();
  const wake = (): void => resolve();
  const cancel = clock.after(ms, wake);
  signal.addEventListener('abort', wake, { once: true });
  await promise;
  cancel();
  signal.removeEventListener('abort', wake);
}
