// A queue that takes no more holds back every first add of this client, so that none passes an earlier one. Here is
// until when.

import type { Clock, Logger } from '@shoal/core';
import type { AddResult } from '@shoal/queue';

type Refusal = Extract<AddResult, { outcome: 'refused' }>['error'];

export interface HeldBackParts {
  readonly clock: Clock;
  readonly log: Logger | undefined;
  readonly whenFull: 'wait' | 'fail';
  /**
   * Told when the queue takes no more, with the time until it is asked again, and with undefined once it takes jobs
   * again.
   */
  readonly onHeldBack: ((retryAfterMs: number | undefined) => void) | undefined;
}

export class HeldBack {
  private readonly parts: HeldBackParts;
  /** Nothing is added for the first time before. Undefined while the queue takes jobs. */
  untilMs: number | undefined;

  constructor(parts: HeldBackParts) {
    this.parts = parts;
  }

  /** Learns from the answers to an add whether the queue takes more. */
  learn(results: readonly AddResult[]): void {
    const refused = results.find((result) => result.outcome === 'refused');
    if (refused === undefined) this.taken();
    else this.refused(refused.error);
  }

  private taken(): void {
    const { clock, onHeldBack } = this.parts;
    if (this.untilMs === undefined) return;
    if (this.untilMs > clock.nowMs()) return; // it was on its way before
    this.untilMs = undefined;
    onHeldBack?.(undefined);
  }

  private refused({ fields }: Refusal): void {
    const { clock, log, whenFull, onHeldBack } = this.parts;
    const retryAfterMs = Number(fields['retryAfterMs']);
    const wasHeldBack = this.untilMs !== undefined;
    if (whenFull === 'wait') this.untilMs = clock.nowMs() + retryAfterMs;
    onHeldBack?.(retryAfterMs);
    if (!wasHeldBack)
      log?.info(
        { retryAfterMs, reason: fields['reason'] },
        'the queue takes no more for now, going on at the speed of the workers',
      );
  }
}
