// The executor's last verb: a job whose rows are all back gets its result written, if its lease still holds. One pipeline at a
// time; whatever is done meanwhile goes with the next. Knows nothing of pools and devices.

import { toFailure, type Failure } from './errors.ts';
import { conflict } from './fill.ts';
import { encodeBody } from './output-encoding.ts';
import { encodeResult, type ResultHeader } from './result-format.ts';
import type { CommitRequest, CommitResult, InferenceBackend, PayloadStore } from './ports.ts';
import type { EmbedReturn } from './job-schema.ts';
import type { FaultPoints } from './fault-points.ts';
import type { JobOrder, JobOutcome } from './protocol.ts';
import type { OpenJob } from './open-job.ts';

export interface CommitterParts {
  readonly store: PayloadStore;
  readonly backend: Pick<InferenceBackend, 'dims' | 'device' | 'precision'>;
  /** name@revision */
  readonly model: string;
  /** Key of a job's result, for its return value. */
  readonly resultKey: (jobId: string) => string;
  readonly faults: FaultPoints;
  /** Called once for each commit that was answered. */
  readonly onCommitted: (answers: readonly { readonly job: OpenJob; readonly outcome: JobOutcome }[]) => void;
}

export class Committer {
  private readonly parts: CommitterParts;
  private done: OpenJob[] = [];
  private loop: Promise<void> | undefined;

  constructor(parts: CommitterParts) {
    this.parts = parts;
  }

  /** The commits that are under way, or undefined when there are none. */
  get busy(): Promise<void> | undefined {
    return this.loop;
  }

  add(jobs: readonly OpenJob[]): void {
    this.done.push(...jobs);
    this.commitDone();
  }

  /** For a result that somebody committed before: what its header tells. Tokens and times of that run are not known any more. */
  repeatedValue(order: JobOrder, header: ResultHeader): EmbedReturn {
    const { rows, dims } = header;
    return { ...this.commonValue(order), rows, dims, tokens: 0, truncated: header.isTruncated ? 1 : 0, splits: 0, ms: { queued: Math.round(order.queuedMs), run: 0 } };
  }

  /** One loop at a time; looks again when one ends, because a job may be done between its last look and its end. */
  private commitDone(): void {
    if (this.done.length === 0) return;
    this.loop ??= this.commit().finally(() => {
      this.loop = undefined;
      this.commitDone();
    });
  }

  /** Writes the results of every job that is done, one pipeline at a time, until none is left. */
  private async commit(): Promise<void> {
    while (this.done.length > 0) {
      const jobs = this.done.filter((job) => !job.isDropped);
      this.done = [];
      if (jobs.length === 0) return;
      this.parts.faults.reach('before-commit');
      const results = await this.parts.store.commit(jobs.map((job) => this.commitRequest(job)));
      this.parts.faults.reach('after-commit');
      this.parts.onCommitted(jobs.map((job, i) => ({ job, outcome: this.outcomeOf(job, results[i]!) })));
    }
  }

  private commitRequest(job: OpenJob): CommitRequest {
    const { order, fingerprint, rows } = job;
    const { dims, body } = encodeBody(job.vectors, rows, this.parts.backend.dims, order.output);
    const result = encodeResult({ dtype: order.output.dtype, rows, dims, fingerprint, isTruncated: job.truncated > 0 }, body);
    return { jobId: order.jobId, lane: order.lane, token: order.token, fingerprint, result, ttlMs: order.resultTtlMs };
  }

  private outcomeOf(job: OpenJob, result: CommitResult): JobOutcome {
    const { jobId, token } = job.order;
    switch (result) {
      case 'committed': return { kind: 'committed', jobId, token, value: this.valueOf(job) };
      case 'already': return { kind: 'already', jobId, token, value: this.valueOf(job) };
      case 'lease-lost': return { kind: 'lease-lost', jobId, token };
      case 'conflict': return failed(job.order, toFailure(conflict(jobId, 'something else', job.fingerprint)));
    }
  }

  private valueOf(job: OpenJob): EmbedReturn {
    const { order, rows, tokens, truncated, splits, runMs } = job;
    const dims = Math.min(order.output.dimensions ?? this.parts.backend.dims, this.parts.backend.dims);
    return { ...this.commonValue(order), rows, dims, tokens, truncated, splits, ms: { queued: Math.round(order.queuedMs), run: Math.round(runMs) } };
  }

  private commonValue(order: JobOrder): Pick<EmbedReturn, 'v' | 'key' | 'model' | 'dtype' | 'device' | 'precision'> {
    const { backend, model, resultKey } = this.parts;
    return { v: 1, key: resultKey(order.jobId), model, dtype: order.output.dtype, device: backend.device, precision: backend.precision };
  }
}

export function failed(order: JobOrder, failure: Failure): JobOutcome {
  return { kind: 'failed', jobId: order.jobId, token: order.token, failure };
}
