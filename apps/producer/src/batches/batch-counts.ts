// What files, batches and notices do, as metrics. Each process counts what it did itself: a batch that goes on elsewhere
// after a kill has its lines counted where they were answered.

import type { MetricRegistry, PRODUCER_METRICS } from '@shoal/ops';
import type { BatchStatus, Ending, FileRecord } from './records.ts';

/** Of batches that are worked on. */
const OPEN = ['validating', 'in_progress', 'finalizing', 'cancelling'] as const;

export class BatchCounts {
  private readonly metrics: MetricRegistry<typeof PRODUCER_METRICS>;

  constructor(metrics: MetricRegistry<typeof PRODUCER_METRICS>) {
    this.metrics = metrics;
  }

  /** `statuses`: of the batches that this process works on, whenever somebody asks. */
  watch(statuses: () => readonly BatchStatus[]): void {
    this.metrics.onScrape(() => {
      const now = statuses();
      for (const state of OPEN)
        this.metrics.set('shoal_batches', { state }, now.filter((status) => status === state).length);
    });
  }

  stored({ purpose, bytes }: Pick<FileRecord, 'purpose' | 'bytes'>): void {
    this.metrics.count('shoal_batch_files_total', { purpose });
    this.metrics.count('shoal_batch_file_bytes_total', { purpose }, bytes);
  }

  lines(outcome: 'completed' | 'failed' | Exclude<Ending['as'], 'completed'>, count: number): void {
    if (count > 0) this.metrics.count('shoal_batch_lines_total', { outcome }, count);
  }

  ended(status: 'failed' | Ending['as']): void {
    this.metrics.count('shoal_batches_ended_total', { status });
  }

  /** `pending`: not taken, and it is sent again. */
  notice(state: 'delivered' | 'failed' | 'pending'): void {
    const outcome = state === 'delivered' ? 'delivered' : state === 'failed' ? 'given_up' : 'not_taken';
    this.metrics.count('shoal_webhook_deliveries_total', { outcome });
  }
}
