// Addresses of objects of S3, and what its stores say, for a person.

import { ShoalError } from '@shoal/contract';
import { S3Failure, s3Place, type S3Place } from '@shoal/fetch/s3';

/** The object that an address names; undefined where it is none of S3's. USAGE for one that is not whole. */
export function objectPlace(address: string, what: 'input' | 'output'): S3Place | undefined {
  try {
    return s3Place(address);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new ShoalError(
      'USAGE',
      `the ${what} ${address} ${error.message}; an object is called s3://BUCKET/KEY, for example ` +
        's3://bucket/vectors.parquet',
    );
  }
}

/** What a store says that refuses something, for a person. */
export function storeReason({ bucket }: S3Place, error: unknown): string {
  const code = error instanceof S3Failure ? error.code : undefined;
  if (code === 'NoSuchBucket') return `there is no bucket ${bucket}`;
  if (code === 'CredentialsProviderError')
    return 'no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE';
  const message = error instanceof Error ? error.message : String(error);
  return message === 'HTTP 403' ? 'these credentials may not do that there (403)' : message;
}
