// Says on the terminal why nothing comes, where somebody has to do something about it, and ends the command when that
// lasts for longer than the person wants to wait. A worker that this command starts itself is no news here; with cells it
// starts one where no cell has any, so that one without workers is news.

import { ShoalError } from '@shoal/contract';
import { systemClock, type Clock } from '@shoal/core';
import type { ClientCounts, Waiting } from '@shoal/client';
import { duration } from '../progress.ts';
import { say, type Terminal } from '../terminal.ts';

export interface WaitingTerms {
  readonly isQuiet: boolean;
  readonly waitLimitMs?: number | undefined;
  /** The queue is spread over cells. */
  readonly hasCells?: boolean;
}

export class WaitingNotice {
  readonly #terminal: Terminal;
  readonly #terms: WaitingTerms;
  readonly #clock: Clock;
  readonly #ending = new AbortController();
  #cancel: (() => void) | undefined;
  #last = '';

  constructor(terminal: Terminal, terms: WaitingTerms, clock: Clock = systemClock) {
    this.#terminal = terminal;
    this.#terms = terms;
    this.#clock = clock;
  }

  /** Aborted when the limit is over. */
  get tooLong(): AbortSignal {
    return this.#ending.signal;
  }

  /** Undefined: results come again. */
  tell(found: Waiting | undefined, counts: Pick<ClientCounts, 'added' | 'known' | 'delivered' | 'failed'>): void {
    if (found === undefined || !isNews(found, counts, this.#terms.hasCells === true)) return this.stop();
    this.#last = found.message;
    if (!this.#terms.isQuiet) say(this.#terminal, `nothing comes: ${found.message}`);
    const { waitLimitMs } = this.#terms;
    if (waitLimitMs !== undefined) this.#cancel ??= this.#clock.after(waitLimitMs, () => this.#giveUp(waitLimitMs));
  }

  stop(): void {
    this.#cancel?.();
    this.#cancel = undefined;
  }

  #giveUp(waitLimitMs: number): void {
    this.#ending.abort(
      new ShoalError(
        'DEADLINE_PASSED',
        `nothing came for ${duration(waitLimitMs / 1_000)}, the limit of --wait-limit: ${this.#last}`,
      ),
    );
  }
}

/** Others' jobs before ours, or something that only a person changes; a device that is slow has its progress. */
function isNews(
  { reason, waiting, active }: Waiting,
  { added, known, delivered, failed }: ClientCounts | Own,
  hasCells: boolean,
): boolean {
  switch (reason) {
    case 'paused':
    case 'drained':
    case 'server-away':
      return true;
    case 'no-worker':
    case 'not-served':
      return hasCells;
    case 'busy':
      return waiting + active > added + known - delivered - failed;
  }
}

type Own = Pick<ClientCounts, 'added' | 'known' | 'delivered' | 'failed'>;
