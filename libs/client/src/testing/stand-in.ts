// For tests: a stand-in for a worker that keeps to the public contract (docs/jobs.md) and can be told to misbehave.
// Vectors are a function of each row's bytes, so that a lost, doubled or swapped row is seen.

import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { UnrecoverableError, Worker, type Job } from 'bullmq';
import { Redis } from 'ioredis';
import {
  decodeInput,
  decodeResultHeader,
  encodeBody,
  encodeResult,
  encodeTexts,
  failedReason,
  fingerprintOf,
  keySpace,
  parseJob,
  type ErrorCode,
  type KeySpace,
} from '@shoal/contract';

export const DIMS = 8;

export interface StandInOptions {
  /** Out-of-order completion: each job takes this long. */
  readonly delayMs?: (jobId: string) => number;
  readonly isSilent?: boolean;
  readonly failure?: (jobId: string) => { code: ErrorCode; message: string } | undefined;
  /** Called after the result was written and before the job completes. */
  readonly tamper?: (jobId: string, outKey: string, times: number) => Promise<void>;
  readonly concurrency?: number;
}

export interface StandInPlace {
  readonly url: string;
  readonly prefix: string;
}

export class QueueStandIn {
  readonly runs = new Map<string, number>();
  rows = 0;
  private readonly worker: Worker;
  private readonly connection: Redis;
  private readonly queue: string;
  private readonly keys: KeySpace;
  private readonly options: StandInOptions;

  constructor(queue: string, { url, prefix }: StandInPlace, options: StandInOptions = {}) {
    this.queue = queue;
    this.keys = keySpace(prefix);
    this.options = options;
    this.connection = new Redis(url, { maxRetriesPerRequest: null });
    this.connection.on('error', () => undefined);
    this.worker = new Worker(queue, (job) => this.run(job), {
      prefix,
      connection: this.connection,
      concurrency: options.concurrency ?? 16,
      removeOnComplete: { count: 1000 },
      removeOnFail: { count: 5000 },
      lockDuration: 5_000,
      stalledInterval: 1_000,
      maxStalledCount: 100,
    });
    this.worker.on('error', () => undefined);
    this.worker.on('completed', (job) => void this.announce(job, 'completed').catch(() => undefined));
    this.worker.on('failed', (job) => job && void this.announce(job, 'failed').catch(() => undefined));
  }

  async close(): Promise<void> {
    await this.worker.close(true);
    this.connection.disconnect();
  }

  private async run(job: Job): Promise<unknown> {
    const jobId = job.id!;
    const order = parseJob(jobId, job.name, job.data);
    const [inKey, outKey] = [this.keys.input(this.queue, jobId), this.keys.output(this.queue, jobId)];
    const head = decodeResultHeader((await this.connection.getrangeBuffer(outKey, 0, 31)) as Buffer);
    if (head !== undefined && (order.fingerprint ?? head.fingerprint) === head.fingerprint)
      return { v: 1, key: outKey, already: true };
    const times = (this.runs.get(jobId) ?? 0) + 1;
    this.runs.set(jobId, times);
    const failure = this.options.failure?.(jobId);
    await sleep(this.options.delayMs?.(jobId) ?? 0);
    if (failure) throw new UnrecoverableError(failedReason(failure));
    const input =
      order.input.form === 'inline' ? encodeTexts(order.input.texts) : await this.connection.getBuffer(inKey);
    if (input === null) throw new UnrecoverableError('INPUT_LOST: no input');
    const model = `${this.queue.slice('embed-'.length)}@r1`;
    const fingerprint = fingerprintOf(
      { model, prompt: order.prompt, truncate: order.truncate, output: order.output },
      input,
    );
    if (order.fingerprint !== undefined && order.fingerprint !== fingerprint)
      throw new UnrecoverableError(`FINGERPRINT_MISMATCH: ${fingerprint}`);
    const decoded = decodeInput(input);
    const rows: readonly (string | ArrayLike<number>)[] = decoded.form === 'texts' ? decoded.texts : decoded.rows;
    const vectors = Float32Array.from(rows.flatMap((row) => vectorOf(row)));
    const { dims, body } = encodeBody(vectors, rows.length, DIMS, order.output);
    await this.connection.set(
      outKey,
      encodeResult({ dtype: order.output.dtype, rows: rows.length, dims, fingerprint, isTruncated: false }, body),
      'PX',
      order.resultTtlMs,
    );
    await this.options.tamper?.(jobId, outKey, times);
    this.rows += rows.length;
    return { v: 1, key: outKey, model, rows: rows.length, dims, device: 'stand-in' };
  }

  private async announce(job: Job, outcome: 'completed' | 'failed'): Promise<void> {
    const reply: unknown = job.data.reply;
    const pipeline = this.connection.pipeline().del(this.keys.input(this.queue, job.id!));
    const isRepeated = (job.returnvalue as { already?: boolean } | null)?.already === true;
    if (typeof reply === 'string' && this.options.isSilent !== true && !isRepeated)
      pipeline.publish(reply, JSON.stringify({ v: 1, queue: this.queue, [outcome]: [job.id] }));
    await pipeline.exec();
  }
}

/** A function of the row's bytes. */
export function vectorOf(row: string | ArrayLike<number>): number[] {
  const hash = createHash('sha256')
    .update(typeof row === 'string' ? row : Uint32Array.from(row))
    .digest();
  const values = Array.from({ length: DIMS }, (_, i) => hash.readInt16LE(2 * i) / 32_768);
  const norm = Math.hypot(...values);
  return values.map((value) => Math.fround(value / norm));
}
