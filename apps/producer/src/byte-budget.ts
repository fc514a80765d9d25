// How many bytes this process holds for its callers: bodies from their first byte, answers from the start of their
// computing until they are written. One budget for both, because whoever sends slowly and whoever reads slowly holds
// memory in the same way. An eighth of it is kept for what is small, so that a few large requests of callers that
// neither send nor read shut out nobody else.

export interface ByteBudgetOptions {
  readonly totalBytes: number;
  /** Told after bytes were given back. */
  readonly onRoom?: (() => void) | undefined;
}

/** What asks for no more than this may have the last eighth. */
const SMALL_SHARE = 1 / 256;
const KEPT_SHARE = 1 / 8;

export class ByteBudget {
  readonly totalBytes: number;
  private readonly onRoom: () => void;
  private used = 0;

  constructor({ totalBytes, onRoom = () => undefined }: ByteBudgetOptions) {
    this.totalBytes = totalBytes;
    this.onRoom = onRoom;
  }

  get usedBytes(): number {
    return this.used;
  }

  /** What one request holds, of nothing yet. */
  open(): Hold {
    return new Hold({ take: (bytes, held) => this.take(bytes, held), give: (bytes) => this.give(bytes) });
  }

  private take(bytes: number, held: number): boolean {
    const isSmall = held + bytes <= this.totalBytes * SMALL_SHARE;
    const mostBytes = isSmall ? this.totalBytes : this.totalBytes * (1 - KEPT_SHARE);
    // what is larger than the budget may go alone: it is bounded by the limits of one request
    if (this.used + bytes > mostBytes && this.used > held) return false;
    this.used += bytes;
    return true;
  }

  private give(bytes: number): void {
    if (bytes === 0) return;
    this.used -= bytes;
    this.onRoom();
  }
}

interface HoldParts {
  readonly take: (bytes: number, held: number) => boolean;
  readonly give: (bytes: number) => void;
}

export class Hold {
  private readonly parts: HoldParts;
  private held = 0;
  private isReleased = false;

  constructor(parts: HoldParts) {
    this.parts = parts;
  }

  /** False where there is no room. */
  take(bytes: number): boolean {
    if (this.isReleased) return true; // its caller is gone, and so will be what it is for
    const isTaken = this.parts.take(bytes, this.held);
    if (isTaken) this.held += bytes;
    return isTaken;
  }

  /** Gives everything back. Safe to call twice. */
  release(): void {
    this.isReleased = true;
    this.parts.give(this.held);
    this.held = 0;
  }
}
