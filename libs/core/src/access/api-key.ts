// Keys by which callers of the HTTP interface are told from one another: what a key looks like, what is kept of it, and
// whether one that a caller sends is the one that was made. The key itself is shown once, when it is made; kept is its
// SHA-256 digest. It holds 256 random bits, so nothing slower than SHA-256 is needed to guard a digest that was read.

import { createHash, randomBytes, randomInt, timingSafeEqual } from 'node:crypto';
import { z } from 'zod';
import { DEFAULT_TENANT, ShoalError } from '@shoal/contract';

/** Of keys of the dashboard: who has it may look, or act as well. */
export const DASHBOARD_SCOPES = ['view', 'operate'] as const;
/** What a key may be used for. "admin" is everything, and what other tenants submitted. */
export const SCOPES = ['embed', 'rerank', 'similarity', 'batches', 'metrics', 'admin', ...DASHBOARD_SCOPES] as const;
export type Scope = (typeof SCOPES)[number];

/** Of a key that is made without naming any: everything that an application asks for. */
export const DEFAULT_SCOPES: readonly Scope[] = ['embed', 'rerank', 'similarity', 'batches'];

const limit = z.int().min(1).max(Number.MAX_SAFE_INTEGER).optional();

const apiKeySchema = z.strictObject({
  id: z.string().regex(/^[a-z0-9]{10}$/, 'must be 10 of a-z and 0-9'),
  /** For people: what or who uses it. */
  name: z.string().min(1).max(100),
  /** SHA-256 of the whole key, hexadecimal. */
  digest: z.string().regex(/^[0-9a-f]{64}$/, 'must be 64 lower-case hex digits'),
  tenant: z.string().regex(/^[^:~/]{1,64}$/, 'must have 1 to 64 characters without ":", "~" and "/"'),
  scopes: z.array(z.enum(SCOPES)).min(1),
  /** A minute; what is left out is not limited. */
  limits: z.strictObject({ requests: limit, texts: limit, tokens: limit }),
  /** Epoch milliseconds, like the two below. */
  createdMs: z.int().min(0),
  expiresMs: z.int().min(0).optional(),
  /** Revoked keys are kept: an id never comes back, and a server whose keys are all revoked asks for one all the same. */
  revokedMs: z.int().min(0).optional(),
});

/** What is kept of a key. */
export type ApiKey = Readonly<z.infer<typeof apiKeySchema>>;

/** What may be used a minute. */
export type KeyLimits = ApiKey['limits'];

export interface NewApiKey {
  readonly name: string;
  readonly tenant?: string | undefined;
  readonly scopes?: readonly Scope[] | undefined;
  readonly limits?: KeyLimits | undefined;
  readonly expiresMs?: number | undefined;
}

/** The variable that HTTP's master key comes from; there is no flag, because everybody may read those. */
export const MASTER_KEY_VARIABLE = 'SHOAL_HTTP_MASTER_KEY';

const SECRET_BYTES = 32;
const ID_LETTERS = 'abcdefghijklmnopqrstuvwxyz0123456789';
const FORM = /^shoal_([a-z0-9]{10})_[A-Za-z0-9_-]{43}$/;

/** A new key: its text, which nobody can show again, and what is kept. Throws USAGE for a name or tenant that cannot be. */
export function makeApiKey(wanted: NewApiKey, nowMs: number): { readonly text: string; readonly kept: ApiKey } {
  const id = Array.from({ length: 10 }, () => ID_LETTERS[randomInt(ID_LETTERS.length)]).join('');
  const text = `shoal_${id}_${randomBytes(SECRET_BYTES).toString('base64url')}`;
  const { name, tenant = DEFAULT_TENANT, scopes = DEFAULT_SCOPES, limits = {}, expiresMs } = wanted;
  const kept = {
    id,
    name,
    digest: digestOf(text).toString('hex'),
    tenant,
    scopes: [...new Set(scopes)],
    limits,
    createdMs: nowMs,
    ...(expiresMs !== undefined && { expiresMs }),
  };
  const parsed = apiKeySchema.safeParse(kept);
  if (!parsed.success) throw new ShoalError('USAGE', `such a key cannot be: ${told(parsed.error)}`);
  return { text, kept: parsed.data };
}

/** What was kept of a key, from where it was kept. Throws CONFIG_INVALID; `where` names the place. */
export function readApiKey(found: unknown, where: string): ApiKey {
  const parsed = apiKeySchema.safeParse(found);
  if (parsed.success) return parsed.data;
  throw new ShoalError('CONFIG_INVALID', `${where} is not what is kept of a key: ${told(parsed.error)}`);
}

/** The public part of a key's text; undefined where the text has another form. */
export function apiKeyId(text: string): string | undefined {
  return FORM.exec(text)?.[1];
}

export function digestOf(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

/** Whether the text is the one with this digest, in a time that does not depend on how much of it agrees. */
export function isDigestOf(digest: Buffer, text: string): boolean {
  return timingSafeEqual(digest, digestOf(text));
}

function told({ issues }: z.ZodError): string {
  return issues
    .map(({ path, message, ...rest }) =>
      rest.code === 'unrecognized_keys'
        ? `there is no field ${rest.keys.map((key) => `"${key}"`).join(', ')}`
        : `${path.join('.') || 'it'}: ${message}`,
    )
    .join('; ');
}
