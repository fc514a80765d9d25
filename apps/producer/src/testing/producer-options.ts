// What tests ask of a whole producer, on a free port of this machine.

import { noLog } from '@shoal/core';
import type { ProducerOptions } from '../producer.ts';

/** The options that tests have in common, and those that are given. */
export function producerOptions(
  given: Pick<ProducerOptions, 'redisUrl' | 'model' | 'tokenizer'> & Partial<ProducerOptions>,
): ProducerOptions {
  return {
    prefix: '{shoal}',
    host: '127.0.0.1',
    port: 0,
    requestTimeoutMs: 20_000,
    maxOpenRequests: 64,
    version: '0.0.0',
    log: noLog,
    ...given,
  };
}
