// Names of objects of S3, and which objects a pattern means.

import { ShoalError } from '@shoal/contract';
import { S3Bucket, S3Failure, patiently } from '@shoal/fetch/s3';
import { storeReason } from '@shoal/worker/files/object-place';

/** Whether a name that somebody gave is that of an object of S3, and not of a file. */
export function isObjectAddress(name: string): boolean {
  return name.startsWith('s3://');
}

/**
 * Addresses of the objects that a prefix with "/" at its end has directly below it, or that a pattern means: `*` stands for
 * characters of one level, `**` for those of all. In the order of their bytes; what begins with "." or "_" on its level is
 * left out, as whoever reads folders of files does. USAGE, FILE_UNREADABLE.
 */
export async function objectsAt(pattern: string, signal: AbortSignal): Promise<string[]> {
  const [, bucket, asked = ''] = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/(.*))?$/s.exec(pattern) ?? [];
  if (bucket === undefined)
    throw new ShoalError('USAGE', `the input ${pattern} must be s3://BUCKET/KEY or s3://BUCKET/PREFIX/`);
  const wanted = asked.endsWith('/') || asked === '' ? `${asked}*` : asked;
  const prefix = wanted.slice(0, wanted.indexOf('*'));
  const folder = prefix.slice(0, prefix.lastIndexOf('/') + 1);
  const isDeep = wanted.slice(folder.length).includes('/') || wanted.includes('**');
  const isMeant = new RegExp(`^${wanted.split(/(\*+)/).map(partOfPattern).join('')}$`, 's');
  const s3 = await S3Bucket.open(bucket);
  try {
    return await patiently({ signal, onAway: () => undefined }, async () => {
      const found: string[] = [];
      for await (const rest of s3.names(isDeep ? prefix : folder, undefined, { isDeep })) {
        const key = (isDeep ? prefix : folder) + rest;
        const isHidden = key
          .slice(folder.length)
          .split('/')
          .some((one) => /^[._]/.test(one));
        if (!isHidden && !key.endsWith('/') && isMeant.test(key)) found.push(`s3://${bucket}/${key}`);
      }
      return found;
    });
  } catch (error) {
    if (!(error instanceof S3Failure)) throw error;
    const reason = storeReason({ bucket, key: '', name: pattern }, error);
    throw new ShoalError('FILE_UNREADABLE', `cannot list ${pattern}: ${reason}`, { file: pattern }, error);
  } finally {
    s3.close();
  }
}

function partOfPattern(part: string): string {
  if (part === '*') return '[^/]*';
  return /^\*+$/.test(part) ? '.*' : part.replaceAll(/[\\^$.|?+()[\]{}]/g, '\\$&');
}
