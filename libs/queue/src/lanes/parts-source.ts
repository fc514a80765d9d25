// Claims for a worker that takes parts of runs of files as well: jobs from where it serves as ever, parts from their own
// lane. Every claim goes back where it came from. Knows nothing of what is in a part.

import type { Announcement, JobSource, RawClaim, SettleResult, Settlement } from '@shoal/core';

export interface PartsSourceOptions {
  /** Of all other jobs. */
  readonly jobs: JobSource;
  readonly parts: JobSource;
}

export class PartsSource implements JobSource {
  private readonly jobs: JobSource;
  private readonly parts: JobSource;

  constructor({ jobs, parts }: PartsSourceOptions) {
    this.jobs = jobs;
    this.parts = parts;
  }

  async start(): Promise<void> {
    try {
      await Promise.all(this.both().map((source) => source.start()));
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  claim(limit: number): Promise<readonly RawClaim[]> {
    return this.jobs.claim(limit);
  }

  claimUrgent(limit: number): Promise<readonly RawClaim[]> {
    return this.jobs.claimUrgent(limit);
  }

  async claimPart(): Promise<readonly RawClaim[]> {
    const claims = await this.parts.claim(1);
    return claims.map((claim) => ({ ...claim, isPart: true as const }));
  }

  settle(claim: RawClaim, settlement: Settlement, announcement?: Announcement): Promise<SettleResult> {
    return (claim.isPart === true ? this.parts : this.jobs).settle(claim, settlement, announcement);
  }

  onLeaseLost(listener: (jobId: string) => void): void {
    for (const source of this.both()) source.onLeaseLost(listener);
  }

  onCancelled(listener: (jobIds: readonly string[]) => void): void {
    for (const source of this.both()) source.onCancelled(listener);
  }

  /** Not the parts: whether jobs are claimed is watched, and a worker with its parts full claims no more of these. */
  claimable(): Promise<number> {
    return this.jobs.claimable();
  }

  async stopClaiming(): Promise<void> {
    await Promise.all(this.both().map((source) => source.stopClaiming()));
  }

  async stop(): Promise<void> {
    await Promise.all(this.both().map((source) => source.stop()));
  }

  private both(): readonly JobSource[] {
    return [this.jobs, this.parts];
  }
}
