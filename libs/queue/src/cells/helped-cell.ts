// Another cell as a worker sees it that has nothing to do at home: looked at over one connection, and claimed from
// through a source of its own that is opened when there is something to claim. Both are closed when nothing was asked of
// them for a while. A cell that does not answer is left alone for longer each time; what is held of it is left to the
// source, which finds when it is back that the leases ran out. Nobody waits for that: an ending that is not taken within
// the time of a lease counts as lost, though the source goes on trying for as long as it is open.

import { setTimeout as sleep } from 'node:timers/promises';
import type { Announcement, Cell, Logger, OtherCell, RawClaim, SettleResult, Settlement } from '@shoal/core';
import { backoffMs, type Backoff } from '@shoal/core/base';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import type { QueuePlace } from '../upkeep/queue-keys.ts';
import { needOf, type CellNeed } from './cell-need.ts';

/** Claims bulk jobs of one cell, keeps them and ends them: a BullJobSource that claims bulk alone. */
export interface BulkSource {
  start(): Promise<void>;
  claimBulk(limit: number): Promise<readonly RawClaim[]>;
  settle(claim: RawClaim, settlement: Settlement, announcement?: Announcement): Promise<SettleResult>;
  announce(announcements: readonly Announcement[]): Promise<void>;
  onLeaseLost(listener: (jobId: string) => void): void;
  onCancelled(listener: (jobIds: readonly string[]) => void): void;
  stopClaiming(): Promise<void>;
  stop(): Promise<void>;
}

export interface HelpedCellOptions extends QueuePlace {
  readonly cell: Cell;
  readonly open: (cell: Cell) => BulkSource;
  /** Throws what keeps this worker from claiming there. */
  readonly enter?: ((place: { readonly redisUrl: string; readonly prefix: string }) => Promise<void>) | undefined;
  readonly onLeaseLost: (jobId: string) => void;
  readonly onCancelled: (jobIds: readonly string[]) => void;
  readonly log: Logger;
}

/** Who takes longer is away. */
const ANSWER_MS = 2_000;
/** About a lease. */
const SETTLE_MS = 15_000;
/** Pauses between two looks at a cell that does not answer, or had nothing to give. */
const AWAY: Backoff = { firstMs: 1_000, mostMs: 30_000 };
const NOTHING: Backoff = { firstMs: 500, mostMs: 8_000 };

export class HelpedCell {
  readonly other: OtherCell;
  /** Jobs that were claimed here so far. */
  jobs = 0;
  private readonly options: HelpedCellOptions;
  private connection: Promise<Redis> | undefined;
  private source: BulkSource | undefined;
  private starting: Promise<void> | undefined;
  private claiming: Promise<readonly RawClaim[]> | undefined;
  /** Announcements that are on their way. */
  private readonly telling = new Set<Promise<void>>();
  /** Tokens of claims that have not ended. */
  private readonly held = new Set<string>();
  private nextLookMs = 0;
  private inVain = 0;
  private away = 0;
  private usedMs = performance.now();
  private isClosed = false;

  constructor(options: HelpedCellOptions) {
    const { name, address, prefix } = options.cell;
    this.options = options;
    this.other = { name, address, ...(prefix !== undefined && { prefix }) };
  }

  get isDue(): boolean {
    return performance.now() >= this.nextLookMs && this.claiming === undefined;
  }

  get holds(): number {
    return this.held.size;
  }

  /** For how long nothing was asked of it while nothing was held, ms. */
  get idleMs(): number {
    return this.held.size > 0 || this.claiming !== undefined ? 0 : performance.now() - this.usedMs;
  }

  /** Undefined where it does not answer. */
  async look(): Promise<CellNeed | undefined> {
    const need = await inTime(this.lookNow());
    if (need === undefined) this.isAway();
    else this.away = 0;
    return need;
  }

  /** It was looked at, or asked, and had nothing: it is left alone for a while. */
  hadNothing(): void {
    this.nextLookMs = performance.now() + backoffMs(this.inVain++, NOTHING);
  }

  /**
   * What it has of bulk, up to `limit` jobs; none where it does not answer in time. What comes later goes back unspent.
   */
  async claim(limit: number): Promise<readonly RawClaim[]> {
    this.usedMs = performance.now();
    const asked = this.claimNow(limit);
    this.claiming = asked;
    const late = asked.catch(() => []).finally(() => (this.claiming = undefined));
    let claims: readonly RawClaim[] | undefined;
    try {
      const onFault = (error: unknown): void => {
        if (this.away === 0)
          this.options.log.warn({ cell: this.other.name, err: error }, 'another cell could not be helped');
      };
      claims = await inTime(asked, { onFault });
    } finally {
      this.usedMs = performance.now();
    }
    if (claims === undefined) {
      this.isAway();
      void late.then((came) => this.giveBack(came, 'it came when nobody waited for it any more'));
      return [];
    }
    this.inVain = 0;
    this.jobs += claims.length;
    if (claims.length === 0) this.hadNothing();
    for (const { token } of claims) this.held.add(token);
    return claims.map((claim) => ({ ...claim, cell: this.other }));
  }

  /** Tells the producer as well, where the ending did not: no announcer of another cell can. */
  async settle(claim: RawClaim, settlement: Settlement, announcement?: Announcement): Promise<SettleResult> {
    try {
      const settled = this.source?.settle(claim, settlement, announcement);
      const result = (settled && (await inTime(settled, { withinMs: SETTLE_MS }))) ?? 'lease-lost';
      if (result !== 'settled' || announcement === undefined) return result;
      this.tell(announcement);
      return 'announced';
    } finally {
      this.held.delete(claim.token);
      this.usedMs = performance.now();
    }
  }

  giveBack(claims: readonly RawClaim[], reason: string, delayMs = 0): Promise<unknown> {
    const settlement = { kind: 'return', delayMs, reason } as const;
    // its lease brings it back as well
    return Promise.all(claims.map((claim) => this.settle(claim, settlement).catch(() => undefined)));
  }

  /** Claims nothing more; what is held is kept and settled. */
  async stopClaiming(): Promise<void> {
    await this.source?.stopClaiming();
  }

  /** Safe to call twice. */
  async close(): Promise<void> {
    this.isClosed = true;
    await Promise.race([Promise.all(this.telling), sleep(500, undefined, { ref: false })]);
    const { connection, source } = this;
    [this.connection, this.source, this.starting] = [undefined, undefined, undefined];
    await Promise.all([
      source?.stop(),
      connection?.then(
        (open) => closeConnection(open),
        () => undefined,
      ),
    ]);
  }

  /** Closes what is open; it is opened anew when it is wanted again. */
  async rest(): Promise<void> {
    if (this.connection === undefined && this.source === undefined) return;
    await this.close();
    this.isClosed = false;
  }

  private isAway(): void {
    this.nextLookMs = performance.now() + backoffMs(this.away++, AWAY);
    if (this.away === 1) this.options.log.info({ cell: this.other.name }, 'another cell does not answer');
    // a question would be put in line until it is back, by all who look
    const { connection } = this;
    this.connection = undefined;
    void connection?.then(closeConnection, () => undefined);
  }

  private async lookNow(): Promise<CellNeed> {
    this.usedMs = performance.now();
    const { prefix, queue } = this.options;
    const connection = await (this.connection ??= this.connect());
    return needOf(connection, { prefix, queue });
  }

  private connect(): Promise<Redis> {
    const { prefix, queue } = this.options;
    const connecting = connected({ url: this.other.address, prefix, name: `shoal:help:${queue}` });
    connecting.catch(() => {
      if (this.connection === connecting) this.connection = undefined; // the next look tries again
    });
    return connecting;
  }

  private async claimNow(limit: number): Promise<readonly RawClaim[]> {
    const source = await this.opened();
    return source === undefined ? [] : source.claimBulk(limit);
  }

  /** Undefined once it is closed. */
  private async opened(): Promise<BulkSource | undefined> {
    if (this.isClosed) return undefined;
    if (this.source === undefined) {
      const source = this.options.open(this.options.cell);
      source.onLeaseLost((jobId) => this.options.onLeaseLost(jobId));
      source.onCancelled((jobIds) => this.options.onCancelled(jobIds));
      this.source = source;
      this.starting = this.start(source);
    }
    const { source, starting } = this;
    try {
      await starting;
    } catch (error) {
      if (this.source === source) [this.source, this.starting] = [undefined, undefined];
      throw error;
    }
    return source;
  }

  private async start(source: BulkSource): Promise<void> {
    const { enter, prefix } = this.options;
    await enter?.({ redisUrl: this.other.address, prefix });
    await source.start();
  }

  private tell(announcement: Announcement): void {
    const telling = (this.source?.announce([announcement]) ?? Promise.resolve())
      .catch(() => undefined)
      .finally(() => this.telling.delete(telling));
    this.telling.add(telling);
  }
}

interface InTime {
  readonly withinMs?: number;
  readonly onFault?: (error: unknown) => void;
}

/** Undefined where it fails, or takes longer. */
async function inTime<Answer>(
  work: Promise<Answer>,
  { withinMs = ANSWER_MS, onFault = () => undefined }: InTime = {},
): Promise<Answer | undefined> {
  const late = new AbortController();
  const silence = sleep(withinMs, undefined, { signal: late.signal, ref: false }).catch(() => undefined);
  const answer = work.catch((error: unknown) => {
    if (!late.signal.aborted) onFault(error);
    return undefined;
  });
  try {
    return await Promise.race([answer, silence]);
  } finally {
    late.abort();
  }
}
