// Whether the queue server refuses to write while somebody waits for an answer. Its clients try again and again, because
// a server that fails over or loads is back in a moment; a full disk is not, and whoever waits is told the server's own
// words after two looks instead of its whole time-out later. Asks only while somebody waits.

import type { Clock } from '@shoal/core';

export interface RefusedWritesParts {
  /** The server's own words; undefined where it writes. Rejects where it does not answer, which others see to. */
  readonly ask: () => Promise<string | undefined>;
  readonly clock: Clock;
}

/** A failover is over in a second or two. */
const LOOK_MS = 1_000;
const LOOKS = 2;

export class RefusedWrites {
  private readonly parts: RefusedWritesParts;
  private readonly waiting = new Set<(words: string) => void>();
  private cancelLook: (() => void) | undefined;
  private refused = 0;

  constructor(parts: RefusedWritesParts) {
    this.parts = parts;
  }

  /** Calls `onRefused` once the server has refused for a while. The returned function ends that. */
  whileWaiting(onRefused: (words: string) => void): () => void {
    this.waiting.add(onRefused);
    this.lookLater();
    return () => {
      this.waiting.delete(onRefused);
      if (this.waiting.size > 0) return;
      this.cancelLook?.();
      this.cancelLook = undefined;
      this.refused = 0;
    };
  }

  private lookLater(): void {
    this.cancelLook ??= this.parts.clock.after(LOOK_MS, () => void this.look());
  }

  private async look(): Promise<void> {
    const words = await this.parts.ask().catch(() => undefined);
    this.cancelLook = undefined;
    this.refused = words === undefined ? 0 : this.refused + 1;
    if (words !== undefined && this.refused >= LOOKS) for (const tell of this.waiting) tell(words);
    if (this.waiting.size > 0) this.lookLater();
  }
}
