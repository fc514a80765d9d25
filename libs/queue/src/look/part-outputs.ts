// Where the parts of files go that a lane knows of: of those that run, wait or ended lately. For who looks after the
// places; a sample of each state, because the parts of a run all go to one.

import { keySpace } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';

/** A prefix of a bucket under which vectors are written; empty: of the whole bucket. */
export interface BucketOutput {
  readonly bucket: string;
  readonly prefix: string;
}

/** Of each state. */
const SAMPLE = 50;

/** Each once. Throws as the server does. */
export async function bucketOutputs(
  connection: Redis,
  { prefix, queue }: { readonly prefix: string; readonly queue: string },
): Promise<readonly BucketOutput[]> {
  const key = (name: string): string => keySpace(prefix).job(queue, name);
  const ids = await Promise.all([
    ...['active', 'wait', 'paused'].map((list) => connection.lrange(key(list), 0, SAMPLE - 1)),
    ...['prioritized', 'delayed'].map((set) => connection.zrange(key(set), '0', String(SAMPLE - 1))),
    ...['completed', 'failed'].map((set) => connection.zrange(key(set), '0', String(SAMPLE - 1), 'REV')),
  ]);
  const data = await Promise.all([...new Set(ids.flat())].map((id) => connection.hget(key(id), 'data')));
  const found = data.flatMap((text) => outputIn(text ?? ''));
  return [...new Map(found.map((output) => [`${output.bucket}/${output.prefix}`, output])).values()];
}

/** Whatever somebody has put there. */
function outputIn(text: string): BucketOutput[] {
  const [, output] = /"output":(\{[^{}]*\})/.exec(text) ?? [];
  if (output === undefined) return [];
  try {
    const { kind, bucket, prefix } = JSON.parse(output) as Record<string, unknown>;
    return kind === 's3' && typeof bucket === 'string' && typeof prefix === 'string' ? [{ bucket, prefix }] : [];
  } catch {
    return [];
  }
}
