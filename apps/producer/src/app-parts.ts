// What the HTTP interface is put together from, and what its routes are given.

import type { Logger, Tracer } from '@shoal/core';
import type { MetricRegistry, PRODUCER_METRICS } from '@shoal/ops';
import type { QueueReadiness } from '@shoal/queue';
import type { Allowances } from './access/allowances.ts';
import type { Doorman } from './access/doorman.ts';
import type { Batches } from './batches/batches.ts';
import type { Catalogue, Served } from './catalogue.ts';
import type { Gate, GateOptions } from './gate.ts';
import type { KnownCollections } from './known-collections.ts';
import type { PatienceTerms } from './patience.ts';
import type { Reranker } from './reranker.ts';

export interface AppParts {
  /** The first is the one for requests that name none. */
  readonly models: readonly [Served, ...Served[]];
  readonly reranker: Pick<Reranker, 'served' | 'named' | 'rerank'>;
  /** Undefined: there are no files, batches and jobs here. */
  readonly batches?: Pick<Batches, 'addRoutes'> | undefined;
  /** How long answers of the queue `similarity` are waited for. */
  readonly similarity: Omit<PatienceTerms, 'what' | 'timeoutMs'>;
  readonly collections: Pick<KnownCollections, 'all'>;
  readonly metrics: MetricRegistry<typeof PRODUCER_METRICS>;
  /** Rejects when the queue server does not answer; may wait long when it hangs. */
  readonly readiness: () => Promise<QueueReadiness>;
  readonly readyNeedsWorkers: boolean;
  readonly doorman: Pick<Doorman, 'callerOf'>;
  readonly allowances: Pick<Allowances, 'take' | 'spent'>;
  /** Origins of browser pages that may ask: the setting httpCors. */
  readonly corsOrigins?: string | undefined;
  readonly gate: GateOptions;
  readonly version: string;
  /** Makes a span of each request. */
  readonly tracer: Tracer;
  readonly log: Logger;
}

export interface Around extends Omit<AppParts, 'gate'> {
  readonly catalogue: Catalogue;
  readonly gate: Gate;
}
