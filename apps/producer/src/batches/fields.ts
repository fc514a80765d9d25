// Fields that requests about files, batches and jobs have in common, each checked and refused by name.

import { checkedBody, missing, oneOf, shown, shortened, wholeNumber, wrongType } from '../body-fields.ts';
import { invalid, type Problem } from '../problem.ts';
import { ENDPOINTS, type Endpoint, type Kind } from './records.ts';

/** Of all routes here: what a key has to be for. */
export const config = { scope: 'batches' } as const;

export const MAX_METADATA = 16;
export const MAX_METADATA_KEY = 64;
export const MAX_METADATA_VALUE = 512;
/** OpenAI's: an hour to thirty days. */
export const EXPIRES = { from: 3_600, to: 2_592_000 };
/** Seconds that a job may take: a minute to two weeks. */
export const JOB_EXPIRES = { from: 60, to: 1_209_600 };
/** Of /v1/batches, as OpenAI has it, and of /v1/jobs. */
export const MAX_PAGE = 100;
/** Of /v1/files, as OpenAI has it. */
export const MAX_FILES_PAGE = 10_000;

/** Up to 16 pairs of texts. */
export function parseMetadata(asked: unknown): Readonly<Record<string, string>> | null {
  if (asked === undefined) return null;
  if (typeof asked !== 'object' || asked === null || Array.isArray(asked))
    throw wrongType('metadata', 'an object of texts', asked);
  const pairs = Object.entries(asked as Readonly<Record<string, unknown>>);
  if (pairs.length > MAX_METADATA)
    throw invalid(
      'invalid_value',
      'metadata',
      `"metadata" has ${pairs.length} fields; at most ${MAX_METADATA} are kept`,
    );
  for (const [key, value] of pairs) {
    const param = `metadata.${shortened(key)}`;
    if (key.length > MAX_METADATA_KEY)
      throw invalid(
        'invalid_value',
        param,
        `"${param}" is longer than the ${MAX_METADATA_KEY} characters that a name may have`,
      );
    if (typeof value !== 'string') throw wrongType(param, 'a text', value);
    if (value.length > MAX_METADATA_VALUE)
      throw invalid(
        'invalid_value',
        param,
        `"${param}" has ${value.length} characters; at most ${MAX_METADATA_VALUE} are kept`,
      );
  }
  return Object.fromEntries(pairs) as Readonly<Record<string, string>>;
}

/** `{ anchor: "created_at", seconds }`, in seconds. */
export function parseExpiresAfter(name: string, asked: unknown): number | undefined {
  if (asked === undefined) return undefined;
  const { anchor, seconds } = checkedBody(asked, ['anchor', 'seconds'], name);
  if (anchor === undefined) throw missing(`${name}.anchor`, '"created_at"');
  oneOf(`${name}.anchor`, anchor, ['created_at']);
  if (seconds === undefined) throw missing(`${name}.seconds`, `${EXPIRES.from} to ${EXPIRES.to}`);
  return wholeNumber(`${name}.seconds`, seconds, EXPIRES);
}

export function parseEndpoint(asked: unknown): Endpoint {
  if (asked === undefined) throw missing('endpoint', ENDPOINTS.map((one) => `"${one}"`).join(' or '));
  return oneOf('endpoint', asked, ENDPOINTS as readonly [Endpoint, ...Endpoint[]]);
}

/** What a list is asked with. */
export interface ListQuery {
  readonly limit: number;
  readonly after: string | undefined;
  readonly order: 'asc' | 'desc';
  readonly purpose: string | undefined;
}

/** `most`: as many as one page may have; `names`: what may be asked beside `limit` and `after`. */
export function parseListQuery(
  query: unknown,
  {
    most,
    byDefault,
    names = [],
  }: { readonly most: number; readonly byDefault: number; readonly names?: readonly ('order' | 'purpose')[] },
): ListQuery {
  const { limit, after, order, purpose } = checkedBody(query, ['limit', 'after', ...names]) as {
    readonly [Name in keyof ListQuery]?: unknown;
  };
  if (after !== undefined && typeof after !== 'string') throw wrongType('after', 'one id', after);
  if (purpose !== undefined && typeof purpose !== 'string') throw wrongType('purpose', 'one purpose', purpose);
  const number = typeof limit === 'string' && /^\d{1,9}$/.test(limit) ? Number(limit) : limit;
  return {
    limit: number === undefined ? byDefault : wholeNumber('limit', number, { from: 1, to: most }),
    after,
    order: oneOf('order', order, ['desc', 'asc']),
    purpose,
  };
}

/** Unknown, expired and another tenant's look alike. */
export function noSuch(kind: Kind, id: string, param = `${kind}_id`): Problem {
  return invalid(`${kind}_not_found`, param, `there is no ${kind} ${shown(id)} here; it may have expired`, 404);
}
