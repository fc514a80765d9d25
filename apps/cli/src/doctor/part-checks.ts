// What `shoal doctor` says of buckets into which workers write vectors of files: whether each deletes by itself what
// workers that died left below `_temporary/`. Which prefixes these are is told by the parts that the queue knows of, and
// where there are none by the partFolders of workers and of the settings. Nothing is lost either way: a warning at most.

import { S3Bucket } from '@shoal/fetch/s3';
import { remarksOnRules, type BucketOutput } from '@shoal/queue';
import type { Finding } from '@shoal/worker';
import type { QueueSeen } from './fleet-checks.ts';

const ANSWER_MS = 5_000;

/** `outputs`: where parts go that the queue knows of. None without a bucket. */
export async function checkPartBuckets(
  partFolders: string | undefined,
  queues: readonly QueueSeen[],
  outputs: readonly BucketOutput[],
): Promise<Finding[]> {
  const checked = await Promise.all(placesOf(partFolders, queues, outputs).map(findingOf));
  return checked.flat();
}

/** Prefixes that end with a slash, or are empty; each once. A folder of parts under which some are written is told by those. */
function placesOf(
  partFolders: string | undefined,
  queues: readonly QueueSeen[],
  outputs: readonly BucketOutput[],
): readonly BucketOutput[] {
  const told = queues.flatMap(({ view }) => view.workers.flatMap(({ facts }) => facts?.partFolders ?? []));
  const listed = [...(partFolders ?? '').split(','), ...told.map(String)].flatMap((folder) => {
    const [, bucket, prefix = ''] = /^s3:\/\/([^/]+)\/?(.*)$/.exec(folder.trim()) ?? [];
    return bucket === undefined ? [] : [slashed({ bucket, prefix })];
  });
  const written = outputs.map(slashed);
  const unused = listed.filter(
    (one) => !written.some(({ bucket, prefix }) => bucket === one.bucket && prefix.startsWith(one.prefix)),
  );
  return [...new Map([...written, ...unused].map((one) => [`${one.bucket}/${one.prefix}`, one])).values()];
}

function slashed({ bucket, prefix }: BucketOutput): BucketOutput {
  return { bucket, prefix: prefix === '' || prefix.endsWith('/') ? prefix : `${prefix}/` };
}

async function findingOf({ bucket, prefix }: BucketOutput): Promise<Finding[]> {
  const about = `parts of files in s3://${bucket}/${prefix}`;
  const left = `${prefix}_temporary/`;
  let s3: S3Bucket | undefined;
  try {
    s3 = await S3Bucket.open(bucket);
    const leftOvers = { bucket, prefix: left, id: 'shoal-parts' };
    const remarks = await remarksOnRules(s3, leftOvers, AbortSignal.timeout(ANSWER_MS));
    if (remarks.length === 0) return [{ about, state: 'ok', found: `what is left below ${left} is deleted by a rule` }];
    return remarks.map(({ found, cure }): Finding => ({ about, state: 'warning', found, cure }));
  } catch (error) {
    const found = error instanceof Error ? error.message : String(error);
    return [{ about, state: 'warning', found, cure: 'give this command what the workers have of AWS’s variables' }];
  } finally {
    s3?.close();
  }
}
