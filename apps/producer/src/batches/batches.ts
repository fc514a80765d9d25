// Files, batches and jobs put together: the storage opened, the routes, and the runner behind them.

import type { FastifyInstance } from 'fastify';
import { ShoalError } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import type { MetricRegistry, PRODUCER_METRICS } from '@shoal/ops';
import type { Allowances } from '../access/allowances.ts';
import type { Around } from '../app-parts.ts';
import { addBatchRoutes } from './batch-routes.ts';
import { BatchCounts } from './batch-counts.ts';
import type { PartTiming } from './batch-parts.ts';
import { BatchStore } from './batch-store.ts';
import type { Calls } from './calls.ts';
import { DiskStorage } from './disk-storage.ts';
import { addFileRoutes } from './file-routes.ts';
import { addJobRoutes } from './job-routes.ts';
import type { PartClients } from './part-clients.ts';
import { Runner } from './runner.ts';
import { S3Storage, parseS3 } from './s3-storage.ts';
import { StorageFailure, type Storage } from './storage.ts';
import type { WebhookOptions } from './webhook.ts';

export interface BatchSettings {
  /** A folder, or s3://BUCKET/FOLDER. */
  readonly place: string;
  /** Nobody chose it. */
  readonly isDefaultPlace?: boolean | undefined;
  /** Of a server that speaks S3's protocol and is not AWS. */
  readonly s3Endpoint?: string | undefined;
  readonly maxFileBytes: number;
  readonly maxLines: number;
  /** Of one tenant. */
  readonly maxOpenBatches: number;
  readonly maxOpenJobs: number;
  /** After their end, and of files after their upload; 0: for good. */
  readonly retentionDays: number;
  readonly jobsInFlight: number;
  /** Lines of a part of a batch that workers read by themselves; 0: they read none. */
  readonly partLines: number;
  /** Rows of a job. Default 64. */
  readonly jobTexts?: number | undefined;
  readonly webhooks: WebhookOptions;
  /** For tests. */
  readonly leaseMs?: number | undefined;
  readonly lookMs?: number | undefined;
  readonly partTiming?: PartTiming | undefined;
}

/** What batches and jobs are made of. */
export interface BatchParts {
  readonly calls: Calls;
  readonly allowances: Pick<Allowances, 'wait' | 'spentBy'>;
  readonly partClients: PartClients;
  readonly metrics: MetricRegistry<typeof PRODUCER_METRICS>;
  readonly log: Logger;
}

const DAY_SECONDS = 86_400;

function openStorage({ place, s3Endpoint }: BatchSettings): Promise<Storage> {
  return place.startsWith('s3://') ? S3Storage.open(parseS3(place, s3Endpoint)) : DiskStorage.open(place);
}

export class Batches {
  private readonly settings: BatchSettings;
  private readonly store: BatchStore;
  private readonly calls: Calls;
  private readonly counts: BatchCounts;
  private readonly runner: Runner;

  private constructor(settings: BatchSettings, storage: Storage, parts: BatchParts) {
    const { calls, allowances, partClients: clients, metrics, log } = parts;
    this.settings = settings;
    this.store = new BatchStore(storage);
    this.calls = calls;
    const { webhooks, jobsInFlight, jobTexts, maxLines, partLines: lines, partTiming, leaseMs, lookMs } = settings;
    const { store, keptSeconds } = this;
    this.counts = new BatchCounts(metrics);
    const { counts } = this;
    const limits = { jobsInFlight, jobTexts, maxLines, keptSeconds, leaseMs, lookMs };
    const partsOf = lines === 0 ? undefined : { clients, lines, ...(partTiming && { timing: partTiming }) };
    this.runner = new Runner({ store, calls, allowances, counts, webhooks, partsOf, ...limits, log });
  }

  /**
   * Throws CONFIG_INVALID where nothing can be stored in the place that was chosen. Undefined where that is so of the
   * default one, as in a container that may write nothing: then there are no files, batches and jobs.
   */
  static async open(settings: BatchSettings, parts: BatchParts): Promise<Batches | undefined> {
    try {
      return new Batches(settings, await openStorage(settings), parts);
    } catch (error) {
      if (!(error instanceof StorageFailure)) throw error;
      const cure = 'set batchDir to a folder that HTTP may write, or to s3://BUCKET/FOLDER';
      if (!settings.isDefaultPlace)
        throw new ShoalError(
          'CONFIG_INVALID',
          `files of batches cannot be stored: ${error.message}; ${cure}`,
          {},
          error,
        );
      parts.log.warn(
        { err: error },
        `there are no /v1/files, /v1/batches and /v1/jobs: nothing can be stored; ${cure}`,
      );
      return undefined;
    }
  }

  /** Takes up what was left, and what comes. */
  start(): void {
    this.runner.start();
  }

  /** Lets go of what it works on, for another process to go on with. */
  stop(): Promise<void> {
    return this.runner.stop();
  }

  async addRoutes(app: FastifyInstance, { gate, allowances }: Pick<Around, 'gate' | 'allowances'>): Promise<void> {
    const { store, calls, counts, settings, keptSeconds } = this;
    const { webhooks, maxFileBytes: maxBytes, maxOpenBatches, maxOpenJobs } = settings;
    const common = { webhooks, kick: (id?: string) => this.runner.kick(id) };
    await addFileRoutes(app, store, gate, { maxBytes, keptSeconds, counts });
    addBatchRoutes(app, store, { ...common, maxOpen: maxOpenBatches });
    addJobRoutes(app, store, gate, { ...common, maxOpen: maxOpenJobs, calls, allowances });
  }

  private get keptSeconds(): number | undefined {
    const { retentionDays } = this.settings;
    return retentionDays === 0 ? undefined : retentionDays * DAY_SECONDS;
  }
}
