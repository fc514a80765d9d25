// Calls of scripts as they were made by the product's tests and by a program that uses all of BullMQ, on a server that wrote
// down each call with what was stored before it; those of scripts that such a run never calls are written by hand, as the
// product and BullMQ make them (prefix {t-hand}). Each is compared as it is, then changed (mutate.ts).

import { readFileSync } from 'node:fs';
import type { RecordedCall } from './mutate.ts';

/** One call a line. */
export function readCorpus(path: string | URL = new URL('corpus.jsonl', import.meta.url)): RecordedCall[] {
  return readFileSync(path, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as RecordedCall);
}
