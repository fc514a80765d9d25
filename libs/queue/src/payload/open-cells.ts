// What an executor has open of other cells: opened when one is asked, closed when nobody asked it for a while. Unlike what it
// has at home, which waits for its server, one of these always answers, or is said not to.

import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger, OtherCell } from '@shoal/core';

export interface OpenCellsOptions<One> {
  readonly connect: (cell: OtherCell) => Promise<One>;
  readonly log: Logger;
  /** For tests. Milliseconds. */
  readonly answerMs?: number | undefined;
  readonly restMs?: number | undefined;
}

/** About a lease: what is not written by then may belong to somebody else. */
const ANSWER_MS = 15_000;
const REST_MS = 60_000;

interface OpenOne<One> {
  readonly one: Promise<One>;
  asked: number;
  usedMs: number;
}

export class OpenCells<One extends { stop(): Promise<void> }> {
  private readonly options: OpenCellsOptions<One>;
  /** By address and prefix. */
  private readonly open = new Map<string, OpenOne<One>>();
  private readonly tidying: NodeJS.Timeout;

  constructor(options: OpenCellsOptions<One>) {
    const { restMs = REST_MS } = options;
    this.options = options;
    this.tidying = setInterval(() => this.tidy(restMs), restMs / 4).unref();
  }

  async stop(): Promise<void> {
    clearInterval(this.tidying);
    await Promise.all([...this.open.keys()].map((place) => this.leave(place)));
  }

  /** Undefined where the cell does not answer in time; its connections are closed then, and nothing is written later. */
  async asked<Answer>(
    cell: OtherCell,
    ask: (one: One) => Promise<Answer>,
  ): Promise<{ readonly answer: Answer } | undefined> {
    const { answerMs = ANSWER_MS, log } = this.options;
    const place = placeOf(cell);
    const open = this.openAt(cell, place);
    open.asked++;
    const late = new AbortController();
    const silence = sleep(answerMs, undefined, { signal: late.signal }).catch(() => undefined);
    const answered = open.one
      .then(ask)
      .then((answer) => ({ answer }))
      .catch((error: unknown) => {
        if (!late.signal.aborted) log.debug({ err: error }, 'another cell did not answer');
        return undefined;
      });
    const found = await Promise.race([answered, silence]);
    late.abort();
    open.asked--;
    open.usedMs = performance.now();
    if (found === undefined && this.open.get(place) === open) await this.leave(place);
    return found;
  }

  private openAt(cell: OtherCell, place: string): OpenOne<One> {
    const known = this.open.get(place);
    if (known !== undefined) return known;
    const opened = { one: this.options.connect(cell), asked: 0, usedMs: performance.now() };
    this.open.set(place, opened);
    return opened;
  }

  private async leave(place: string): Promise<void> {
    const open = this.open.get(place);
    this.open.delete(place);
    const stopped = open?.one.then(
      (one) => one.stop(),
      () => undefined,
    );
    await Promise.race([stopped, sleep(1_000, undefined, { ref: false })]); // one that is still being opened closes then
  }

  private tidy(restMs: number): void {
    for (const [place, { asked, usedMs }] of this.open)
      if (asked === 0 && performance.now() - usedMs > restMs) void this.leave(place);
  }
}

function placeOf({ address, prefix = '' }: OtherCell): string {
  return `${prefix} ${address}`;
}
