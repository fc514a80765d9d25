// How much a worker claims. Room is counted in real tokens: what is to wait in the executor's pool and what the device
// runs meanwhile (prefetch.ts), less what has been claimed already. It becomes a number of jobs by the sizes seen so
// far. The room claims nothing itself, knows no job by name, and is told the time by whoever asks.

import { ROWS_EVERY_WORKER_TAKES } from '@shoal/contract';
import { Prefetch } from './prefetch.ts';

export interface RoomLimits {
  /** Real tokens that claims keep waiting at the executor. */
  readonly poolTokens: number;
  /** Most that is claimed beyond them for what the device eats meanwhile. Left out: nothing. */
  readonly aheadTokens?: number;
}

/** The size of a claimed job. */
export interface ClaimSize {
  readonly rows: number;
  /** Real tokens: the expected number until the executor has counted them. */
  tokens: number;
  /** Whether the executor has said that its rows are in the pool. */
  isFilled: boolean;
  /**
   * When its claim began, until it is filled. Undefined for a claim that waited for jobs to come, and for a job that
   * has been at another executor.
   */
  askedMs: number | undefined;
}

/**
 * BullMQ removes a completed job from the active list in time linear to its length: 2,000 claims measured harmless
 * (2026-11).
 */
const MAX_CLAIMS = 2_000;
/** Expected tokens of a row before any has been seen: the mean of the standard length mix. */
const FIRST_TOKENS_PER_ROW = 64;
/** Weight of the newest job in the mean of tokens a row. */
const NEWEST_WEIGHT = 0.05;
/**
 * A claim asks for at most so many jobs or for as many as are held. Nobody knows how large a job is before it is
 * claimed: a worker that has seen jobs of one row would else take the work of minutes in one claim, and keep it from
 * the others.
 */
const FIRST_CLAIM = 8;
/**
 * A job is open until its last row has run, and most of its rows have run long before; so claims follow what waits in
 * the pool, and open jobs are bounded only to keep memory in sight: by so many pools and what is claimed ahead.
 */
const MAX_OPEN_POOLS = 4;
/**
 * Less room than this share of what may be claimed ahead is not worth a claim. Jobs of 256 texts for a deep pool were
 * claimed 8 at a time then, not 3, and claims with their orders took 44 µs of the server's one thread a job, not 69 (a
 * simulated device, two cores, 2026-11).
 */
const LEAST_CLAIM_SHARE = 1 / 8;
/**
 * An interactive job does not wait for the pool to have room: so many more may be claimed at a look, into as much room
 * again.
 */
const URGENT_CLAIMS = 16;
/**
 * How often a worker whose pool is full looks for interactive jobs, while there are some and while none came lately. A
 * look takes the server about 40 µs, so 3 ms are 1.3 % of its thread a worker (5 ms: half the interactive jobs 1 ms
 * later; 2026-11). A pool that is full for longer than a run is looked after with each run as well.
 */
const URGENT_LOOK_MS = 3;
const IDLE_LOOK_MS = 50;
const URGENT_LATELY_MS = 1_000;

export class ClaimRoom {
  private readonly limits: RoomLimits;
  private readonly report: (claims: number, pooledTokens: number) => void;
  private readonly prefetch = new Prefetch();
  private readonly held = new Set<ClaimSize>();
  /** Tokens of all that is held, rows that ran already included. */
  private tokensInFlight = 0;
  /** Tokens that wait in the executor's pool, as it said last. */
  private pooledTokens = 0;
  /** Tokens of jobs whose rows are not known to be in the pool yet. */
  private unfilledTokens = 0;
  private tokensPerRow = FIRST_TOKENS_PER_ROW;
  /** The mean of those held, or of the last that were; before any was seen, the largest that most producers make. */
  private tokensPerJob = ROWS_EVERY_WORKER_TAKES * FIRST_TOKENS_PER_ROW;
  private lastUrgentMs = Number.NEGATIVE_INFINITY;
  private lastLookMs = Number.NEGATIVE_INFINITY;

  /** `report` is told of every change, with the number of claims and the tokens in the pool. */
  constructor(limits: RoomLimits, report: (claims: number, pooledTokens: number) => void) {
    this.limits = limits;
    this.report = report;
  }

  // ---- how much may be claimed ----------------------------------------------------------------------------------

  /**
   * How many jobs fill the pool up to its target and what comes to it for what the device eats meanwhile, by the sizes
   * seen so far. `settling`: claims that were ended here and that the queue still lists.
   */
  limit(nowMs: number, settling: number): number {
    const room = this.tokensFree(nowMs);
    if (room <= (this.limits.aheadTokens ?? 0) * LEAST_CLAIM_SHARE) return 0;
    const claims = this.held.size;
    if (claims > 0) this.tokensPerJob = this.tokensInFlight / claims;
    const jobs = Math.ceil(room / this.tokensPerJob);
    return Math.min(jobs, Math.max(FIRST_CLAIM, claims), MAX_CLAIMS - claims - settling);
  }

  /** How many interactive jobs may be claimed although the pool is full. */
  urgentLimit(nowMs: number, settling: number): number {
    return this.tokensFree(nowMs, 1) <= 0 ? 0 : Math.min(URGENT_CLAIMS, MAX_CLAIMS - this.held.size - settling);
  }

  /** How long it is until interactive jobs are to be looked for again; 0 or less: now. */
  untilUrgentLookMs(nowMs: number): number {
    const isLately = nowMs - this.lastUrgentMs < URGENT_LATELY_MS;
    return this.lastLookMs + (isLately ? URGENT_LOOK_MS : IDLE_LOOK_MS) - nowMs;
  }

  /** Interactive jobs are being looked for. */
  looked(nowMs: number): void {
    this.lastLookMs = nowMs;
  }

  /** Interactive jobs were claimed. */
  urgentCame(nowMs: number): void {
    this.lastUrgentMs = nowMs;
  }

  /** Real tokens that may be claimed. `pools`: how many pools are kept waiting beyond the first. */
  private tokensFree(nowMs: number, pools = 0): number {
    const { poolTokens, aheadTokens = 0 } = this.limits;
    const more = pools * poolTokens + Math.min(aheadTokens, this.prefetch.tokens(nowMs));
    return Math.min(
      poolTokens + more - this.pooledTokens - this.unfilledTokens,
      MAX_OPEN_POOLS * poolTokens + more - this.tokensInFlight,
    );
  }

  // ---- what is held ---------------------------------------------------------------------------------------------

  /** Counts a claimed job in. `tokens`: what it takes, where the job says so. */
  hold(rows: number, tokens: number | undefined, askedMs: number | undefined): ClaimSize {
    const size = { rows, tokens: tokens ?? Math.ceil(rows * this.tokensPerRow), isFilled: false, askedMs };
    this.held.add(size);
    this.tokensInFlight += size.tokens;
    this.unfilledTokens += size.tokens;
    this.tell();
    return size;
  }

  /** The rows of a job are in the pool, and have so many tokens together. */
  filled(size: ClaimSize, tokens: number, nowMs: number): void {
    this.tokensInFlight += tokens - size.tokens;
    if (!size.isFilled) this.unfilledTokens -= size.tokens;
    if (size.askedMs !== undefined) this.prefetch.filled(nowMs - size.askedMs);
    size.askedMs = undefined;
    size.isFilled = true;
    size.tokens = tokens;
    this.tell();
    this.tokensPerRow += NEWEST_WEIGHT * (tokens / size.rows - this.tokensPerRow);
  }

  /** The executor said how many tokens wait in its pool. */
  pooled(poolTokens: number): void {
    this.pooledTokens = poolTokens;
    this.tell();
  }

  /** The device ran so many tokens. */
  ran(tokens: number, nowMs: number): void {
    this.prefetch.ran(tokens, nowMs);
  }

  /** Counts a job out: it has its ending, or belongs to somebody else by now. */
  leave(size: ClaimSize): void {
    this.held.delete(size);
    this.tokensInFlight -= size.tokens;
    if (!size.isFilled) this.unfilledTokens -= size.tokens;
    // its rows may have left the pool without a run that would tell
    this.pooledTokens = Math.min(this.pooledTokens, this.tokensInFlight);
    this.tell();
  }

  /** Another executor is up and has nothing yet: every claimed job is to be filled again. */
  emptied(): void {
    this.pooledTokens = 0;
    this.unfilledTokens = this.tokensInFlight;
    for (const size of this.held) {
      size.isFilled = false;
      size.askedMs = undefined;
    }
  }

  private tell(): void {
    this.report(this.held.size, this.pooledTokens);
  }
}
