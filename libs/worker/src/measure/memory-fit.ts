// Measures the memory law of this graph once it may: never before the first batch that somebody waits for, and beside
// the work, not in its way. Until then the budget goes by its preset. Nothing here is needed: whatever goes wrong is a
// line in the log.
//
// *waiting* for the device to be idle, or to have ended a first run; *measuring* in processes of their own; *over*.

import { toFailure } from '@shoal/contract';
import type { Clock, FromExecutor, Logger, MemoryLaw, MemoryProbe } from '@shoal/core';

export interface MemoryFitOptions {
  readonly clock: Clock;
  readonly log: Logger;
  readonly host: MemoryProbe;
  /** What this process holds with the open graph. */
  readonly loadedBytes: number;
  /** Ends early when the signal is aborted. */
  readonly measure: (signal: AbortSignal) => Promise<MemoryLaw>;
  readonly onLaw: (law: MemoryLaw) => Promise<void>;
}

/** A command that embeds a few texts and leaves is gone by then. */
const FIRST_LOOK_MS = 2_000;
const LOOK_EVERY_MS = 250;
/** The probes open the graph once more and run it: 2.4 times what is loaded for the widest shape of minilm. */
const NEEDED = 3;

export class MemoryFit {
  private readonly options: MemoryFitOptions;
  private readonly abort = new AbortController();
  private cancelLook: () => void;
  private begun = 0;
  private ended = 0;

  constructor(options: MemoryFitOptions) {
    this.options = options;
    this.cancelLook = options.clock.after(FIRST_LOOK_MS, () => this.look());
  }

  /** What the executor says to its claimer, to know what the device does. */
  hear({ kind }: FromExecutor): void {
    if (kind === 'began') this.begun++;
    if (kind === 'ran' || kind === 'split') this.ended++;
  }

  stop(): void {
    this.cancelLook();
    this.abort.abort();
  }

  private look(): void {
    const isAllowed = this.begun === 0 || this.ended > 0;
    if (isAllowed) void this.measure();
    else this.cancelLook = this.options.clock.after(LOOK_EVERY_MS, () => this.look());
  }

  private async measure(): Promise<void> {
    const { clock, log, host, loadedBytes, measure, onLaw } = this.options;
    const memory = await host.read();
    if (memory === undefined || memory.freeBytes < NEEDED * loadedBytes)
      return log.info(
        { freeBytes: memory?.freeBytes, loadedBytes },
        'too little memory is free to measure this model, going on with the preset',
      );
    const startedMs = clock.nowMs();
    try {
      await onLaw(await measure(this.abort.signal));
      log.info({ durationMs: Math.round(clock.nowMs() - startedMs) }, 'memory of this model measured');
    } catch (error) {
      if (!this.abort.signal.aborted)
        log.warn(
          { code: toFailure(error).code, reason: toFailure(error).message },
          'memory of this model could not be measured, going on with the preset',
        );
    }
  }
}
