// Whether a bucket deletes by itself what nobody deleted below a prefix, and the rule to add where it does not. S3 has no
// time to live, so what a process that died left lies there for ever otherwise, and is paid for.

import type { S3Bucket } from '@shoal/fetch/s3';
import type { Remark } from './bodies.ts';

export interface LeftOvers {
  readonly bucket: string;
  /** Of what may be left; empty: the bucket is for that alone. */
  readonly prefix: string;
  /** The ID of a rule for it. */
  readonly id: string;
}

/** Longer than anything is wanted. */
const KEPT_DAYS = 2;

/** Nothing where all is well. Never rejects: what may not be looked at is a remark. */
export async function remarksOnRules(
  s3: Pick<S3Bucket, 'expiries' | 'keepsVersions'>,
  leftOvers: LeftOvers,
  signal: AbortSignal,
): Promise<readonly Remark[]> {
  const { bucket, prefix } = leftOvers;
  try {
    const [all, keepsVersions] = await Promise.all([s3.expiries({ signal }), s3.keepsVersions({ signal })]);
    const rules = all.filter((rule) => prefix.startsWith(rule.prefix));
    const cure = `${ruleFor(leftOvers, keepsVersions)}; a set of rules that is put replaces the one that is there`;
    if (!rules.some(({ days }) => days !== undefined))
      return [
        {
          found: `no lifecycle rule of ${bucket} deletes objects of ${prefix === '' ? 'the whole bucket' : `the prefix ${prefix}`}`,
          cure: `add the rule ${cure}`,
        },
      ];
    if (!keepsVersions || rules.some(({ replacedDays }) => replacedDays !== undefined)) return [];
    return [
      {
        found: `${bucket} keeps versions: nothing that is deleted there is gone`,
        cure: `expire noncurrent versions by the same rule (${cure}), or take a bucket without versions`,
      },
    ];
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    return [
      {
        found: `nobody can tell whether a lifecycle rule deletes what is left there (${signal.aborted ? 'no answer in time' : reason})`,
        cure:
          `make sure of the rule ${ruleFor(leftOvers, false)}; s3:GetLifecycleConfiguration and ` +
          's3:GetBucketVersioning let doctor look',
      },
    ];
  }
}

/** As `aws s3api put-bucket-lifecycle-configuration` takes it among `Rules`. */
function ruleFor({ id, prefix }: LeftOvers, keepsVersions: boolean): string {
  return JSON.stringify({
    ID: id,
    Filter: { Prefix: prefix },
    Status: 'Enabled',
    Expiration: { Days: KEPT_DAYS },
    ...(keepsVersions && { NoncurrentVersionExpiration: { NoncurrentDays: 1 } }),
  });
}
