// The HTTP producer put together: a client of the queue, metrics, and the HTTP interface in front. Constructs and
// connects.

import type { AddressInfo } from 'node:net';
import { ShoalClient } from '@shoal/client';
import { SIMILARITY_QUEUE, mainQueue } from '@shoal/contract';
import type { Logger, Tokenizer } from '@shoal/core';
import { processClock } from '@shoal/core/base';
import type { StoredModel } from '@shoal/models';
import { PRODUCER_METRICS, createMetrics, listenFailure, type MetricRegistry } from '@shoal/ops';
import { QueueGauge, type AdmissionLimits, type QueueDepth, type QueueService } from '@shoal/queue';
import { createApp } from './app.ts';
import { closer } from './close-app.ts';
import { Embedder } from './embedder.ts';
import type { GateOptions } from './gate.ts';
import { RefusedWrites } from './refused-writes.ts';
import { Reranker } from './reranker.ts';
import { rowEndsOf, type TokenRows } from './token-rows.ts';

export interface ProducerOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly model: Pick<StoredModel, 'name' | 'revision' | 'dims' | 'prompts' | 'defaultPrompt' | 'isNormalized'>;
  readonly tokenizer: Tokenizer;
  readonly host: string;
  /** 0: any free port. */
  readonly port: number;
  readonly requestTimeoutMs: number;
  readonly maxOpenRequests: number;
  /** Requests that wait for their turn. Default 4,096. */
  readonly maxWaitingRequests?: number;
  /** Of bodies and answers. Default 256 MiB. */
  readonly maxHttpBytes?: number;
  /** Default 4,096. */
  readonly maxHttpConnections?: number;
  /** Names besides those of loopback: the setting httpHosts. */
  readonly hosts?: string | undefined;
  /** For tests: how long senders and readers may take. */
  readonly timing?: Pick<GateOptions, 'arrival' | 'reading'>;
  /** Whether /readyz is 503 while nobody would compute. Default: it is 200 as long as jobs are accepted and kept. */
  readonly readyNeedsWorkers?: boolean;
  /** What becomes of a text that is too long where the request does not say. Default "error". */
  readonly truncate?: 'error' | 'end';
  /** Default "whole". */
  readonly tokenRows?: TokenRows;
  /** How much the queue takes; requests beyond are answered with 429 and the time to come back. */
  readonly limits?: Partial<AdmissionLimits>;
  readonly version: string;
  readonly log: Logger;
}

export interface Producer {
  /** http://127.0.0.1:8787 */
  readonly url: string;
  /** Takes no new requests, answers those that are open, and leaves nothing running. Safe to call twice. */
  stop(): Promise<void>;
}

/** A restart of the server takes about two seconds; a request that has waited this long should hear of the outage. */
const QUEUE_OUTAGE_MS = 10_000;
/** What a time-out's answer may add is not worth more. */
const BACKLOG_MS = 500;
const KNOWN_SERVICE_MS = 1_000;

/** Listens once the queue server answers. Throws QUEUE_UNREACHABLE, and CONFIG_INVALID when it cannot listen there. */
export async function createProducer(options: ProducerOptions): Promise<Producer> {
  const { redisUrl, prefix, model, tokenizer, host, port, requestTimeoutMs, maxOpenRequests, version, log } = options;
  const gauge = await QueueGauge.connect({ redisUrl, prefix, queue: mainQueue(model.name), log });
  const similarityGauge = await QueueGauge.connect({ redisUrl, prefix, queue: SIMILARITY_QUEUE, log }).catch(
    (error: unknown) => closeAndThrow([gauge], error),
  );
  const gauges = [gauge, similarityGauge];
  const metrics = createMetrics(PRODUCER_METRICS);
  const refusedWrites = new RefusedWrites({ ask: () => gauge.writeRefusal(), clock: processClock });
  const embedder = await openEmbedder(options, gauge, refusedWrites).catch((error: unknown) =>
    closeAndThrow(gauges, error),
  );
  const served = {
    name: model.name,
    revision: model.revision,
    dims: model.dims,
    vocabularySize: tokenizer.vocabularySize,
    maxTokens: tokenizer.maxTokens,
    rowEnds: rowEndsOf(tokenizer),
    tokenRows: options.tokenRows ?? 'whole',
    truncate: options.truncate ?? 'error',
    prompts: model.prompts,
    isNormalized: model.isNormalized,
    ...(model.defaultPrompt !== undefined && { defaultPrompt: model.defaultPrompt }),
  };
  const reranker = new Reranker({
    client: embedder.textClient,
    served: () => gauge.rerankers(),
    embedder: model.name,
    refusedWrites,
    clock: processClock,
  });
  collect(metrics, gauges, async () => Promise.all((await reranker.queues()).map((queue) => gauge.readOther(queue))));
  const app = await createApp({
    model: served,
    embedder,
    reranker,
    similarity: { refusedWrites, backlog: () => backlogInWords(similarityGauge) },
    metrics,
    readiness: () => gauge.readiness(),
    readyNeedsWorkers: options.readyNeedsWorkers ?? false,
    service: recently(gauge),
    gate: {
      host,
      hosts: options.hosts,
      maxOpenRequests,
      maxWaitingRequests: options.maxWaitingRequests ?? 4_096,
      maxHttpBytes: options.maxHttpBytes ?? 256 * 1024 * 1024,
      maxHttpConnections: options.maxHttpConnections ?? 4_096,
      requestTimeoutMs,
      metrics,
      log,
      ...options.timing,
    },
    version,
    log,
  });
  const closeApp = closer(app);
  let stopping: Promise<void> | undefined;
  const stop = (): Promise<void> => (stopping ??= stopAll(closeApp, embedder, gauges));
  try {
    await app.listen({ host, port });
  } catch (error) {
    await stop();
    throw listenFailure(error, { host, port, what: 'the HTTP producer', setting: 'httpPort' });
  }
  return { url: addressOf(app.server.address(), host), stop };
}

/** Asked anew after a second: a trial ends, and another may begin. What nobody knows yet is asked each time. */
function recently(gauge: QueueGauge): () => Promise<QueueService | undefined> {
  let known: QueueService | undefined;
  let sinceMs = Number.NEGATIVE_INFINITY;
  return async () => {
    if (known !== undefined && performance.now() - sinceMs < KNOWN_SERVICE_MS) return known;
    const found = await gauge.service().catch(() => known); // while the server is away, what it said last
    [known, sinceMs] = [found, performance.now()];
    return found;
  };
}

function openEmbedder(
  { redisUrl, prefix, model, tokenizer, requestTimeoutMs, limits = {}, log }: ProducerOptions,
  gauge: QueueGauge,
  refusedWrites: RefusedWrites,
): Promise<Embedder> {
  return Embedder.connect({
    tokenizer,
    refusedWrites,
    backlog: () => backlogInWords(gauge),
    connect: (rowTokenizer) =>
      ShoalClient.connect({
        redisUrl,
        prefix,
        model,
        tokenizer: rowTokenizer,
        log,
        limits,
        whenFull: 'fail',
        giveUpAfterMs: Math.min(QUEUE_OUTAGE_MS, requestTimeoutMs / 2),
      }),
  });
}

async function closeAndThrow(gauges: readonly QueueGauge[], error: unknown): Promise<never> {
  await Promise.all(gauges.map((gauge) => gauge.close()));
  throw error;
}

/** Requests first: they need the client. */
async function stopAll(
  closeApp: () => Promise<void>,
  embedder: Embedder,
  gauges: readonly QueueGauge[],
): Promise<void> {
  await closeApp();
  await Promise.all([embedder.close(), ...gauges.map((gauge) => gauge.close())]);
}

function addressOf(address: AddressInfo | string | null, host: string): string {
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
}

/** Rerankers are asked beside the others, which are told of whether or not that succeeds. */
function collect(
  metrics: MetricRegistry<typeof PRODUCER_METRICS>,
  gauges: readonly QueueGauge[],
  rerankers: () => Promise<readonly QueueDepth[]>,
): void {
  metrics.onScrape(() =>
    metrics.set('shoal_process_resident_bytes', { process: 'producer' }, process.memoryUsage.rss()),
  );
  metrics.onScrape(async () => {
    for (const name of ['shoal_queue_jobs', 'shoal_queue_oldest_waiting_seconds', 'shoal_queue_workers'] as const)
      metrics.forget(name);
    for (const depth of await Promise.all(gauges.map((gauge) => gauge.read()))) tellDepth(metrics, depth);
  });
  metrics.onScrape(async () => {
    const depths = await rerankers(); // later than the collector before this one has forgotten the last values
    for (const depth of depths) tellDepth(metrics, depth);
  });
}

function tellDepth(
  metrics: MetricRegistry<typeof PRODUCER_METRICS>,
  { queue, jobs, oldestWaitingMs, workers }: QueueDepth,
): void {
  for (const state of ['waiting', 'active', 'delayed', 'completed', 'failed', 'cancelled'] as const)
    metrics.set('shoal_queue_jobs', { queue, state }, jobs[state]);
  for (const one of ['interactive', 'bulk'] as const)
    metrics.set('shoal_queue_oldest_waiting_seconds', { queue, class: one }, oldestWaitingMs[one] / 1_000);
  metrics.set('shoal_queue_workers', { queue }, workers);
}

async function backlogInWords(gauge: QueueGauge): Promise<string | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => (timer = setTimeout(resolve, BACKLOG_MS, undefined)));
  const found = await Promise.race([gauge.whyWaiting().catch(() => undefined), late]).finally(() =>
    clearTimeout(timer),
  );
  return found?.message;
}
