// The claims a worker holds and the renewal of their leases, at a third of their length, all in few calls. A claim is
// *held* from `hold` to `release`; in between it may be found *lost*: the server says that its lock is no longer ours,
// or we claim the same job again, which only happens after the old lease ran out. A lost claim is reported once and
// forgotten. While the server does not answer nothing is presumed lost: nobody else can claim either, or the commit
// finds a stranger's lock.
//
// Why: docs/decisions/queue.md#leases-are-renewed-by-our-own-timer

import type { Logger } from '@shoal/core';
import { inParts } from '../redis/in-parts.ts';

export interface LeasesOptions {
  readonly leaseMs: number;
  /** Renews locks; resolves to the ids whose lock was not the given token. */
  readonly extend: (jobIds: string[], tokens: string[], leaseMs: number) => Promise<readonly string[]>;
  readonly onLost: (jobId: string) => void;
  readonly log: Logger;
}

interface Lease {
  readonly token: string;
  /** Its ending is on the way: that call finds out by itself whether the lock was still ours. */
  isSettling: boolean;
}

/** Renewing 1,024 locks in one call blocks the server for 2.4 ms, 256 for 0.8 ms (2026-11). */
const RENEWED_PER_CALL = 500;

export class Leases {
  private readonly options: LeasesOptions;
  private readonly held = new Map<string, Lease>();
  private timer: NodeJS.Timeout | undefined;
  private isRenewing = false;

  constructor(options: LeasesOptions) {
    this.options = options;
  }

  start(): void {
    this.timer = setInterval(() => void this.renew(), this.options.leaseMs / 3);
  }

  stop(): void {
    clearInterval(this.timer);
    this.held.clear();
  }

  hold(jobId: string, token: string): void {
    if (this.held.has(jobId)) this.lose(jobId);
    this.held.set(jobId, { token, isSettling: false });
  }

  /** True once per claim: whoever gets it gives the claim its ending. */
  beginSettling(jobId: string, token: string): boolean {
    const lease = this.held.get(jobId);
    if (lease?.token !== token || lease.isSettling) return false;
    lease.isSettling = true;
    return true;
  }

  release(jobId: string, token: string): void {
    if (this.held.get(jobId)?.token === token) this.held.delete(jobId);
  }

  /** A renewal that still waits for its answer is not overtaken by another. */
  private async renew(): Promise<void> {
    if (this.isRenewing || this.held.size === 0) return;
    this.isRenewing = true;
    const leases = [...this.held].map(([jobId, { token }]) => ({ jobId, token }));
    await Promise.all(inParts(leases, RENEWED_PER_CALL).map((chunk) => this.renewChunk(chunk)));
    this.isRenewing = false;
  }

  private async renewChunk(leases: readonly { readonly jobId: string; readonly token: string }[]): Promise<void> {
    const { extend, leaseMs, log } = this.options;
    try {
      const failed = new Set(
        await extend(
          leases.map(({ jobId }) => jobId),
          leases.map(({ token }) => token),
          leaseMs,
        ),
      );
      for (const { jobId, token } of leases) if (failed.has(jobId)) this.find(jobId, token);
    } catch (error) {
      log.warn({ leases: leases.length, err: error }, 'leases could not be renewed, trying again');
    }
  }

  /** The server no longer knows this token for the job. */
  private find(jobId: string, token: string): void {
    const lease = this.held.get(jobId);
    if (lease?.token === token && !lease.isSettling) this.lose(jobId);
  }

  private lose(jobId: string): void {
    const isSettling = this.held.get(jobId)?.isSettling === true;
    this.held.delete(jobId);
    if (!isSettling) this.options.onLost(jobId);
  }
}
