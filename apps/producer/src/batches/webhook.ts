// Notices of endings: a POST to the address that the caller gave, signed as Standard Webhooks has it
// (https://www.standardwebhooks.com: HMAC-SHA256 over "id.timestamp.body"), its body as OpenAI's events are, so that
// their clients' `webhooks.unwrap` reads it. Redirects are not followed. What is logged and stored of a failure names no
// address and no secret.

import { createHmac, randomBytes } from 'node:crypto';
import { request as requestHttp } from 'node:http';
import { request as requestHttps } from 'node:https';
import { invalid, type Problem } from '../problem.ts';
import { checkedBody, wrongType } from '../body-fields.ts';
import { PrivateAddress, guardedLookup, isPublic, literalOf } from './addresses.ts';
import { nowSeconds, type WebhookState } from './records.ts';

export interface WebhookOptions {
  /** "whsec_" and base64; of webhooks that bring none of their own. */
  readonly secret: string | undefined;
  /** Whether this machine and its network may be told as well. */
  readonly allowsPrivate: boolean;
}

/** What happened to what: "batch.completed". */
export interface WebhookEvent {
  readonly type: string;
  /** Of the batch or the job. */
  readonly id: string;
}

export interface Delivery {
  readonly isDelivered: boolean;
  /** Undefined where it was taken. */
  readonly error?: string;
}

const TIMEOUT_MS = 15_000;
const MAX_URL = 2_048;
/** 24 to 64 random bytes in base64. */
export const WEBHOOK_SECRET = /^whsec_([A-Za-z0-9+/]{32,}={0,2})$/;
/** Pauses before the second and later attempts, in seconds, as Standard Webhooks proposes; then it is given up. */
export const PAUSES = [5, 60, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];

/** "whsec_" and 24 bytes or more in base64. */
export function isWebhookSecret(text: string): boolean {
  return keyOf(text) !== undefined;
}

/**
 * The field `webhook` of a request: `{ url, secret? }`. Undefined where it is not given. Throws a Problem; that a name
 * leads to a private address is seen when it is told.
 */
export function parseWebhook(
  asked: unknown,
  { secret: common, allowsPrivate }: WebhookOptions,
): WebhookState | undefined {
  if (asked === undefined) return undefined;
  const { url, secret } = checkedBody(asked, ['url', 'secret'], 'webhook');
  if (typeof url !== 'string') throw wrongType('webhook.url', 'an address, https://…', url);
  if (secret !== undefined && (typeof secret !== 'string' || !isWebhookSecret(secret)))
    throw invalid(
      'invalid_value',
      'webhook.secret',
      '"webhook.secret" must be "whsec_" and 24 to 64 random bytes in base64, as Standard Webhooks has it',
    );
  if (secret === undefined && common === undefined)
    throw invalid(
      'missing_required_parameter',
      'webhook.secret',
      'this server has no secret to sign with (its setting webhookSecret): send one of your own as "webhook.secret"',
    );
  checkUrl(url, allowsPrivate);
  return { url, ...(secret !== undefined && { secret }), status: 'pending', attempts: 0 };
}

function checkUrl(text: string, allowsPrivate: boolean): void {
  if (text.length > MAX_URL) throw wrongUrl(`has ${text.length} characters; at most ${MAX_URL} are taken`);
  const url = URL.parse(text);
  if (url === null || !['https:', 'http:'].includes(url.protocol)) throw wrongUrl('must be https://… or http://…');
  if (url.username !== '' || url.password !== '') throw wrongUrl('must not have a user or a password in it');
  const literal = literalOf(url);
  const isLocal =
    literal === undefined
      ? /^localhost$|\.(localhost|local|internal)$/i.test(url.hostname.replace(/\.$/, ''))
      : !isPublic(literal);
  if (isLocal && !allowsPrivate)
    throw wrongUrl(
      `leads to ${url.hostname}, an address of this server's machine or network, which is not asked unless its setting ` +
        'webhookPrivate is "yes"',
    );
}

function wrongUrl(why: string): Problem {
  return invalid('invalid_webhook_url', 'webhook.url', `"webhook.url" ${why}`);
}

/** One attempt. `id` is the same in every attempt, so that whoever is told twice sees it. Never rejects. */
export async function deliver(
  { url, secret }: Pick<WebhookState, 'url' | 'secret'>,
  event: WebhookEvent,
  { secret: common, allowsPrivate }: WebhookOptions,
): Promise<Delivery> {
  const key = secret ?? common;
  if (key === undefined) return { isDelivered: false, error: 'the server has no secret to sign with any more' };
  const id = `evt_${event.id}`;
  const timestamp = nowSeconds();
  const body = JSON.stringify({
    id,
    object: 'event',
    created_at: timestamp,
    type: event.type,
    data: { id: event.id },
  });
  const headers = {
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(body),
    'user-agent': 'shoal',
    'webhook-id': id,
    'webhook-timestamp': String(timestamp),
    'webhook-signature': `v1,${signatureOf(key, id, timestamp, body)}`,
  };
  try {
    const status = await post(new URL(url), headers, body, (address) => allowsPrivate || isPublic(address));
    if (status >= 200 && status < 300) return { isDelivered: true };
    const why = status >= 300 && status < 400 ? ', a redirect, which is not followed' : '';
    return { isDelivered: false, error: `answered with status ${status}${why}` };
  } catch (error) {
    return { isDelivered: false, error: whyNot(error) };
  }
}

/** Base64, without "v1,". Throws where `secret` is none. */
export function signatureOf(secret: string, id: string, timestamp: number, body: string): string {
  const key = keyOf(secret);
  if (key === undefined) throw new TypeError('a webhook secret is "whsec_" and base64');
  return createHmac('sha256', key).update(`${id}.${timestamp}.${body}`).digest('base64');
}

/** A secret that `parseWebhook` takes. */
export function newWebhookSecret(): string {
  return `whsec_${randomBytes(32).toString('base64')}`;
}

function keyOf(secret: string): Buffer | undefined {
  const [, text] = WEBHOOK_SECRET.exec(secret) ?? [];
  const key = text === undefined ? undefined : Buffer.from(text, 'base64');
  return key !== undefined && key.length >= 24 && key.length <= 64 ? key : undefined;
}

/** The status of the answer, whose body nobody reads. */
function post(
  url: URL,
  headers: Readonly<Record<string, string | number>>,
  body: string,
  isAllowed: (address: string) => boolean,
): Promise<number> {
  const literal = literalOf(url); // an address is not looked up, so it is looked at here
  if (literal !== undefined && !isAllowed(literal)) return Promise.reject(new PrivateAddress(literal));
  const request = url.protocol === 'https:' ? requestHttps : requestHttp;
  return new Promise((resolve, reject) => {
    const signal = AbortSignal.timeout(TIMEOUT_MS);
    const options = { method: 'POST', headers, lookup: guardedLookup(isAllowed), agent: false, signal };
    const asked = request(url, options, (answer) => {
      resolve(answer.statusCode ?? 0);
      answer.destroy();
    });
    asked.on('error', reject);
    asked.end(body);
  });
}

/** By its code alone: messages of Node have addresses in them. */
function whyNot(error: unknown): string {
  if (error instanceof PrivateAddress) return "it leads to an address of this server's machine or network";
  const code: unknown = error instanceof Error ? Reflect.get(error, 'code') : undefined;
  if (error instanceof Error && ['TimeoutError', 'AbortError'].includes(error.name))
    return `no answer within ${TIMEOUT_MS / 1_000} s`;
  return `could not be reached (${typeof code === 'string' ? code : 'unknown error'})`;
}
