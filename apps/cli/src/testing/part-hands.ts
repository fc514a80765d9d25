// For tests: somebody who takes parts and does as told, without a model: the object of a part is the bytes of its range.
// The queue, its leases and the list of the run are real.

import { createHash } from 'node:crypto';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  encodePartResult,
  encodeRunEntry,
  parsePart,
  partName,
  partTemporary,
  type Failure,
  type Part,
  type PartJob,
  type PartResult,
} from '@shoal/contract';
import { noLog, type RawClaim } from '@shoal/core';
import { S3Bucket, gathered } from '@shoal/fetch/s3';
import { BullJobSource, WorkerPresence } from '@shoal/queue';
import { PartLedger } from '@shoal/queue/payload';
import { WORKER_FACTS, type TestServer } from '@shoal/queue/testing';

export interface PartHandsOptions {
  readonly server: TestServer;
  readonly prefix: string;
  readonly queue: string;
}

export class PartHands {
  /** What a part fails with; undefined: it is done. */
  fails: (part: PartJob) => Failure | undefined = () => undefined;
  /** Awaited before a part is done. */
  before: (part: PartJob) => Promise<void> = async () => undefined;
  /** Of each part that was done, in order; some perhaps twice. */
  readonly done: number[] = [];
  private readonly source: BullJobSource;
  private readonly ledger: PartLedger;
  private readonly presence: WorkerPresence;
  private loop: Promise<void> | undefined;
  private isStopping = false;

  private constructor(source: BullJobSource, ledger: PartLedger, presence: WorkerPresence) {
    this.source = source;
    this.ledger = ledger;
    this.presence = presence;
  }

  /** Seen by producers, and claims, when it resolves. */
  static async start({ server, prefix, queue }: PartHandsOptions): Promise<PartHands> {
    const own = { redisUrl: server.url, prefix, queue, log: noLog };
    const presence = await WorkerPresence.connect({ ...own, workerId: 'hands', facts: () => WORKER_FACTS });
    await presence.start();
    const source = new BullJobSource({ ...own, leaseMs: 30_000, stalledCheckMs: 10_000 });
    const hands = new PartHands(source, await PartLedger.connect(own), presence);
    await source.start();
    hands.loop = hands.work();
    return hands;
  }

  async stop(): Promise<void> {
    this.isStopping = true;
    await this.source.stopClaiming();
    await this.loop;
    await Promise.all([this.source.stop(), this.ledger.stop()]);
    await this.presence.stop();
  }

  private async work(): Promise<void> {
    while (!this.isStopping) for (const claim of await this.source.claim(1)) await this.doPart(claim);
  }

  private async doPart(claim: RawClaim): Promise<void> {
    const job = parsePart(claim.jobId, claim.name, claim.data);
    await this.before(job);
    const failure = this.fails(job);
    if (failure !== undefined) return void (await this.source.settle(claim, { kind: 'fail', failure }));
    const result = await written(job, claim.token);
    const { part, fingerprint, jobId } = job;
    const pointer = encodePartResult(result, { fingerprint, dtype: part.output.dtype });
    await this.ledger.commit({ jobId, token: claim.token, pointer, ttlMs: job.resultTtlMs });
    if (part.output.kind === 'folder')
      renameSync(join(part.output.folder, result.written), join(part.output.folder, result.name));
    await this.ledger.enter(part.run, part.number, encodeRunEntry(part, result));
    await this.source.settle(claim, { kind: 'complete', value: valueOf(job) });
    this.done.push(part.number);
  }
}

async function written({ part, rows }: PartJob, token: string): Promise<PartResult> {
  const { range, output } = part;
  const all = await sourceOf(part);
  const bytes = range.kind === 'bytes' ? all.subarray(range.from, range.to) : all;
  const name = partTemporary(part, token);
  if (output.kind === 'folder') writeFileSync(join(output.folder, name), bytes);
  else await inBucket(output.bucket, (bucket) => bucket.put(output.prefix + partName(part), bytes));
  return {
    name: partName(part),
    written: name,
    rows,
    dims: 32,
    bytes: bytes.length,
    sha256: createHash('sha256').update(bytes).digest('hex'),
    truncated: 0,
    tokens: rows,
    refused: { rows: 0, first: [] },
  };
}

async function sourceOf({ source }: Part): Promise<Buffer> {
  if (source.kind === 'file') return readFileSync(source.path);
  const { key, etag } = source;
  return inBucket(source.bucket, async (bucket) => gathered((await bucket.get(key, { version: `"${etag}"` }))!.pieces));
}

async function inBucket<Done>(name: string, use: (bucket: S3Bucket) => Promise<Done>): Promise<Done> {
  const bucket = await S3Bucket.open(name);
  try {
    return await use(bucket);
  } finally {
    bucket.close();
  }
}

function valueOf({ jobId, part, rows }: PartJob) {
  return {
    v: 1,
    key: jobId,
    model: part.model.name,
    rows,
    dims: 32,
    dtype: part.output.dtype,
    device: 'cpu',
    precision: 'fp32',
    tokens: rows,
    truncated: 0,
    splits: 0,
    ms: { queued: 0, run: 0 },
  } as const;
}
