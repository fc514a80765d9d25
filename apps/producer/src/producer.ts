// The HTTP producer put together: a client of the queue, metrics, and the HTTP interface in front. Constructs and
// connects.

import type { AddressInfo } from 'node:net';
import { ShoalClient } from '@shoal/client';
import { SIMILARITY_QUEUE, mainQueue } from '@shoal/contract';
import { noTracer, type Logger, type Tokenizer, type Tracer } from '@shoal/core';
import { processClock } from '@shoal/core/base';
import { openDecoder, type StoredModel } from '@shoal/models';
import { PRODUCER_METRICS, createMetrics, listenFailure, tellProcess, type MetricRegistry } from '@shoal/ops';
import {
  AccessLink,
  FileApiKeys,
  QueueGauge,
  ServerWatch,
  processCounts,
  type AdmissionLimits,
  type QueueService,
} from '@shoal/queue';
import { Allowances } from './access/allowances.ts';
import { Doorman, type AccessMode } from './access/doorman.ts';
import { createApp } from './app.ts';
import { Batches, type BatchSettings } from './batches/batches.ts';
import { BulkClients } from './batches/bulk-clients.ts';
import { Calls } from './batches/calls.ts';
import { PartClients } from './batches/part-clients.ts';
import { Catalogue, type Served } from './catalogue.ts';
import { closer } from './close-app.ts';
import { Embedder } from './embedder.ts';
import { isModel } from './embeddings-request.ts';
import type { GateOptions } from './gate.ts';
import { KnownCollections } from './known-collections.ts';
import { RefusedWrites } from './refused-writes.ts';
import { Reranker } from './reranker.ts';
import { rowEndsOf, type TokenRows } from './token-rows.ts';

type HttpModel = Pick<
  StoredModel,
  'folder' | 'name' | 'revision' | 'dims' | 'prompts' | 'defaultPrompt' | 'isNormalized'
>;

export interface ProducerOptions {
  readonly redisUrl: string;
  /** As the setting. Jobs of texts and of rerankers are spread over them; keys and similarity are at `redisUrl`. */
  readonly cells?: string | undefined;
  readonly prefix: string;
  readonly model: HttpModel;
  readonly tokenizer: Tokenizer;
  /** What requests may call the model besides its name. */
  readonly aliases?: readonly string[];
  /** Models besides that one, each with its own queue. */
  readonly others?: readonly {
    readonly model: HttpModel;
    readonly tokenizer: Tokenizer;
    readonly aliases?: readonly string[];
  }[];
  /** Whom the server asks for a key. Default "auto". */
  readonly access?: AccessMode;
  readonly masterKey?: string | undefined;
  /** Keys in a file, instead of those on the queue server. */
  readonly keyFile?: string | undefined;
  /** Origins of browser pages that may ask. */
  readonly corsOrigins?: string | undefined;
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
  /** Texts of a job. Default 64. */
  readonly jobTexts?: number;
  /** Undefined: there are no files, batches and jobs. */
  readonly batches?: BatchSettings | undefined;
  readonly version: string;
  /** Left out: nothing is traced. */
  readonly tracer?: Tracer | undefined;
  /** As the setting lists them. Left out: everything goes by the queue server. */
  readonly payloadServers?: string | undefined;
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

/**
 * Listens once the queue server answers. Throws QUEUE_UNREACHABLE, and CONFIG_INVALID when it cannot listen there, or
 * would answer everybody beyond loopback without anybody having said so.
 */
export async function createProducer(options: ProducerOptions): Promise<Producer> {
  const closers: Closer[] = [];
  try {
    return await openProducer(options, closers);
  } catch (error) {
    await closeAll(closers);
    throw error;
  }
}

type Closer = () => Promise<void> | void;

/** In the reverse order: what was opened later needs what was opened before. */
async function closeAll(closers: readonly Closer[]): Promise<void> {
  for (const close of closers.toReversed()) await close();
}

/** Notes what is to be closed as it opens it. */
async function openProducer(options: ProducerOptions, closers: Closer[]): Promise<Producer> {
  const { redisUrl, prefix, host, port, requestTimeoutMs, maxOpenRequests, version, log } = options;
  const closed = <Part extends { close(): Promise<void> }>(part: Part): Part => {
    closers.push(() => part.close());
    return part;
  };
  const link = closed(await AccessLink.connect({ redisUrl, prefix, log }));
  const doorman = await Doorman.post({
    mode: options.access ?? 'auto',
    store: options.keyFile === undefined ? link.keys : new FileApiKeys(options.keyFile),
    masterKey: options.masterKey,
    host,
    clock: processClock,
    log,
  });
  closers.push(() => doorman.stop());
  const gaugeOf = async (queue: string): Promise<QueueGauge> =>
    closed(await QueueGauge.connect({ redisUrl, prefix, queue, log }));
  const similarityGauge = await gaugeOf(SIMILARITY_QUEUE);
  const gauge = await gaugeOf(mainQueue(options.model.name));
  const metrics = createMetrics(PRODUCER_METRICS);
  const refusedWrites = new RefusedWrites({ ask: () => gauge.writeRefusal(), clock: processClock });
  const openModel = async (one: Named, itsGauge: QueueGauge): Promise<Open> => {
    const embedder = closed(await openEmbedder(options, one, itsGauge, refusedWrites));
    return { model: servedModel(one, options), embedder, service: recently(itsGauge) };
  };
  const first = await openModel(options, gauge);
  const models: [Open, ...Open[]] = [first];
  for (const one of options.others ?? []) {
    const itsGauge = await gaugeOf(mainQueue(one.model.name));
    models.push(await openModel(one, itsGauge));
  }
  const reranker = new Reranker({
    client: first.embedder.textClient,
    served: () => gauge.rerankers(),
    isEmbedder: (asked) => models.some(({ model }) => isModel(asked, model)),
    refusedWrites,
    clock: processClock,
  });
  const server = tellOfItself(metrics, options);
  closers.push(() => server.stop());
  const bulk = bulkClients(options);
  closers.push(() => bulk.close());
  const calls = new Calls({ catalogue: new Catalogue(models), bulk, reranker });
  const allowances = new Allowances(link, log);
  const partClients = closed(new PartClients({ redisUrl, prefix, limits: options.limits ?? {}, log }));
  const batchParts = { calls, allowances, partClients, metrics, log };
  const batches = options.batches && (await Batches.open(options.batches, batchParts));
  if (batches !== undefined) closers.push(() => batches.stop());
  const app = await createApp({
    models,
    reranker,
    batches,
    collections: new KnownCollections(() => similarityGauge.collections(), processClock),
    similarity: { refusedWrites, backlog: () => backlogInWords(similarityGauge) },
    metrics,
    readiness: () => gauge.readiness(),
    readyNeedsWorkers: options.readyNeedsWorkers ?? false,
    doorman,
    allowances,
    corsOrigins: options.corsOrigins,
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
    tracer: options.tracer ?? noTracer,
    log,
  });
  closers.push(closer(app)); // requests that are open need the rest
  try {
    await app.listen({ host, port });
  } catch (error) {
    throw listenFailure(error, { host, port, what: 'the HTTP producer', setting: 'httpPort' });
  }
  batches?.start();
  let stopping: Promise<void> | undefined;
  return {
    url: addressOf(app.server.address(), host),
    stop: () => (stopping ??= closeAll(closers)),
  };
}

type Named = Pick<ProducerOptions, 'model' | 'tokenizer' | 'aliases'>;

interface Open extends Served {
  readonly embedder: Embedder;
}

function servedModel(
  { model, tokenizer, aliases = [] }: Named,
  { tokenRows = 'whole', truncate = 'error' }: ProducerOptions,
): Served['model'] {
  return {
    name: model.name,
    revision: model.revision,
    aliases,
    dims: model.dims,
    vocabularySize: tokenizer.vocabularySize,
    maxTokens: tokenizer.maxTokens,
    rowEnds: rowEndsOf(tokenizer),
    tokenRows,
    truncate,
    prompts: model.prompts,
    isNormalized: model.isNormalized,
    ...(model.defaultPrompt !== undefined && { defaultPrompt: model.defaultPrompt }),
  };
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

/** They wait where the queue is full or away: a batch has hours. */
function bulkClients({
  redisUrl,
  cells,
  prefix,
  jobTexts,
  limits = {},
  tracer,
  log,
  ...options
}: ProducerOptions): BulkClients {
  const named: readonly Named[] = [options, ...(options.others ?? [])];
  return new BulkClients(named, (model, tokenizer) =>
    ShoalClient.connect({
      redisUrl,
      cells,
      prefix,
      model,
      tokenizer,
      jobTexts,
      log,
      tracer,
      limits,
      notServedAfterMs: Number.POSITIVE_INFINITY,
    }),
  );
}

function openEmbedder(
  { redisUrl, cells, prefix, requestTimeoutMs, jobTexts, limits = {}, payloadServers, tracer, log }: ProducerOptions,
  { model, tokenizer }: Named,
  gauge: QueueGauge,
  refusedWrites: RefusedWrites,
): Promise<Embedder> {
  return Embedder.connect({
    tokenizer,
    prompts: model,
    openDecoder: () => openDecoder(model),
    refusedWrites,
    backlog: () => backlogInWords(gauge),
    connect: (rowTokenizer) =>
      ShoalClient.connect({
        redisUrl,
        cells,
        prefix,
        model,
        tokenizer: rowTokenizer,
        payloadServers,
        jobTexts,
        log,
        tracer,
        limits,
        whenFull: 'fail',
        giveUpAfterMs: Math.min(QUEUE_OUTAGE_MS, requestTimeoutMs / 2),
      }),
  });
}

function addressOf(address: AddressInfo | string | null, host: string): string {
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
}

const COUNTED_CLASSES = PRODUCER_METRICS.shoal_jobs_added_total.labels.class;
const PAYLOADS = PRODUCER_METRICS.shoal_payloads_total.labels.outcome;
const REFUSALS = PRODUCER_METRICS.shoal_admission_refused_total.labels.reason;

/** What this process is, how the queue server answers it, and what it added there. Resolves to what ends with it. */
function tellOfItself(
  metrics: MetricRegistry<typeof PRODUCER_METRICS>,
  { redisUrl, prefix, version }: Pick<ProducerOptions, 'redisUrl' | 'prefix' | 'version'>,
): ServerWatch {
  const server = ServerWatch.open({ redisUrl, prefix });
  const { roundTrip } = tellProcess(metrics, { process: 'producer', server, version });
  server.onRoundTrip(roundTrip);
  metrics.onScrape(() => {
    const { added, refused, payloads } = processCounts();
    for (const one of COUNTED_CLASSES) metrics.countTo('shoal_jobs_added_total', { class: one }, added[one]);
    for (const outcome of PAYLOADS) metrics.countTo('shoal_payloads_total', { outcome }, payloads[outcome]);
    for (const reason of REFUSALS) metrics.countTo('shoal_admission_refused_total', { reason }, refused[reason]);
  });
  return server;
}

async function backlogInWords(gauge: QueueGauge): Promise<string | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => (timer = setTimeout(resolve, BACKLOG_MS, undefined)));
  const found = await Promise.race([gauge.whyWaiting().catch(() => undefined), late]).finally(() =>
    clearTimeout(timer),
  );
  return found?.message;
}
