// The queue of a model as its producer opens it.

import { DEFAULT_PREFIX } from '@shoal/contract';
import type { Logger, Tracer } from '@shoal/core';
import { Queue } from '../bullmq/package.ts';
import type { AdmissionLimits } from '../admission/admission.ts';
import type { PayloadServers } from '../payload/payload-servers.ts';
import type { ServerAddress } from '../redis/given-connection.ts';
import type { Redis } from '../redis/connection.ts';

export interface ProducerOptions {
  readonly redisUrl: ServerAddress;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  /** The main lane of a model, e.g. embed-minilm. */
  readonly queue: string;
  /** How much the queue takes; see admission.ts. */
  readonly limits?: Partial<AdmissionLimits> | undefined;
  /** Where inputs and results of jobs may lie that say so. Left out: on the queue server. */
  readonly payloads?: PayloadServers | undefined;
  readonly log?: Logger | undefined;
  /** Makes spans of jobs whose trace is followed. Left out: none. */
  readonly tracer?: Tracer | undefined;
}

/** Events are read by nobody here; the stream would otherwise keep 10,000 entries with every return value. */
const EVENTS_KEPT = 100;

export function openQueue({ prefix = DEFAULT_PREFIX, queue: name, log }: ProducerOptions, connection: Redis): Queue {
  const queue = new Queue(name, { prefix, connection, streams: { events: { maxLen: EVENTS_KEPT } } });
  queue.on('error', (error) => log?.debug({ queue: name, reason: error.message }, 'queue reported an error'));
  return queue;
}
