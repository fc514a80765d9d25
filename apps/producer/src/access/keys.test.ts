// API keys as callers meet them: who is let in and who is not, whose jobs a request makes, what a key may use, and that
// no key is ever shown.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { ShoalError } from '@shoal/contract';
import { makeApiKey, noLog, type Logger, type NewApiKey } from '@shoal/core';
import { processClock } from '@shoal/core/base';
import { ManualClock } from '@shoal/core/testing';
import { AccessLink, FileApiKeys } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { startApp, type AppUnderTest, type AppUnderTestOptions } from '../testing/app-under-test.ts';
import { Allowances } from './allowances.ts';
import { Doorman, type DoormanOptions } from './doorman.ts';

const MASTER = 'correct-horse-battery-staple';
const BODY = { model: 'minilm', input: ['a', 'b'] };

let folder: string;
let server: TestServer;
let link: AccessLink;
let count = 0;
const apps: AppUnderTest[] = [];
const tenants: string[] = [];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-doorman-'));
  server = await startTestServer();
  link = await AccessLink.connect({ redisUrl: server.url });
});
afterEach(async () => {
  await Promise.all(apps.splice(0).map((app) => app.stop()));
  tenants.length = 0;
});
afterAll(async () => {
  await link.close();
  await server.stop();
  await rm(folder, { recursive: true, force: true });
});

function newStore(): FileApiKeys {
  return new FileApiKeys(join(folder, `keys-${++count}.json`));
}

async function newKey(store: FileApiKeys, wanted: Partial<NewApiKey> = {}): Promise<{ text: string; id: string }> {
  const { text, kept } = makeApiKey({ name: 'test', tenant: 'acme', ...wanted }, Date.now());
  await store.add(kept);
  return { text, id: kept.id };
}

function post(options: Partial<DoormanOptions> & Pick<DoormanOptions, 'store'>): Promise<Doorman> {
  return Doorman.post({ mode: 'auto', host: '127.0.0.1', clock: processClock, log: noLog, ...options });
}

async function appWith(doorman: Doorman, { parts = {} }: AppUnderTestOptions = {}): Promise<AppUnderTest> {
  const app = await startApp({
    parts: { doorman, allowances: new Allowances(link, noLog), ...parts },
    whileOpen: async ({ tenant }) => void tenants.push(tenant),
  });
  apps.push(app);
  return app;
}

const bearer = (key: string): Record<string, string> => ({ authorization: `Bearer ${key}` });

async function codeOf(answer: Response): Promise<unknown> {
  const { error } = (await answer.json()) as { readonly error: { readonly code: string } };
  return [answer.status, error.code];
}

async function commands(): Promise<readonly string[]> {
  const stats = String(await server.command('INFO', 'commandstats'));
  return [...stats.matchAll(/^cmdstat_(?!info|ping)(\S+):calls=(\d+)/gm)].map(([, name, calls]) => `${name} ${calls}`);
}

describe('a caller', () => {
  test('is not asked for a key while there are none, and from the first one on is', async () => {
    const [store, clock] = [newStore(), new ManualClock()];
    const doorman = await post({ store, clock });
    const app = await appWith(doorman);
    expect((await app.post(BODY)).status).toBe(200);
    const { text } = await newKey(store);
    await clock.advance(2_000);
    await expect.poll(() => doorman.asksForKeys).toBe(true);
    expect(await codeOf(await app.post(BODY))).toEqual([401, 'missing_api_key']);
    expect((await app.post(BODY, bearer(text))).status).toBe(200);
    expect(tenants).toEqual(['default', 'acme']);
  });

  test('is known by either header, and the jobs are those of its key’s tenant', async () => {
    const store = newStore();
    const { text } = await newKey(store);
    const other = await newKey(store, { tenant: 'other' });
    const app = await appWith(await post({ store, masterKey: MASTER }));
    expect((await app.post(BODY, bearer(text))).status).toBe(200);
    expect((await app.post(BODY, { 'x-api-key': other.text })).status).toBe(200);
    expect((await app.post(BODY, { 'x-api-key': other.text, authorization: 'Basic abc' })).status).toBe(200);
    expect((await app.post(BODY, bearer(MASTER))).status).toBe(200);
    expect(tenants).toEqual(['acme', 'other', 'other', 'default']);
  });

  test('with a wrong, revoked or expired key is 401, and asks nothing of the queue server', async () => {
    const [store, clock] = [newStore(), new ManualClock()];
    const revoked = await newKey(store);
    const expired = await newKey(store, { expiresMs: Date.now() - 1 });
    const { text } = await newKey(store);
    const app = await appWith(await post({ store, clock }));
    expect((await app.post(BODY, bearer(revoked.text))).status).toBe(200);
    await store.revoke(revoked.id, Date.now());
    await clock.advance(2_000);
    await expect.poll(async () => (await app.post(BODY, bearer(revoked.text))).status).toBe(401);
    const before = await commands();
    for (const wrong of ['none', `${text}x`, `${text.slice(0, -1)}~`, revoked.text, expired.text, `x${MASTER}`]) {
      const answer = await app.post(BODY, bearer(wrong));
      expect(answer.headers.get('www-authenticate')).toBe('Bearer realm="shoal"');
      expect(await codeOf(answer)).toEqual([401, 'invalid_api_key']);
    }
    const two = await app.post(BODY, { ...bearer(text), 'x-api-key': expired.text });
    expect(await codeOf(two)).toEqual([401, 'invalid_api_key']);
    expect(await commands()).toEqual(before);
  });

  test('needs the scope of what it asks for; health needs no key', async () => {
    const store = newStore();
    const { text } = await newKey(store, { scopes: ['rerank'] });
    const admin = await newKey(store, { scopes: ['admin'] });
    const app = await appWith(await post({ store }));
    const get = async (path: string, key?: string): Promise<number> =>
      (await fetch(app.url + path, key === undefined ? {} : { headers: bearer(key) })).status;
    expect(await codeOf(await app.post(BODY, bearer(text)))).toEqual([403, 'missing_scope']);
    expect((await app.post(BODY, bearer(admin.text))).status).toBe(200);
    expect(await get('/v1/models', text)).toBe(200);
    expect([await get('/metrics', text), await get('/metrics', admin.text)]).toEqual([403, 200]);
    expect([await get('/v1/models'), await get('/strange'), await get('/metrics')]).toEqual([401, 401, 401]);
    for (const path of ['/healthz', '/livez', '/health', '/readyz', '/openapi.json', '/docs'])
      expect(await get(path)).toBe(200);
  });

  test('names its own users: their jobs are its tenant’s, each with turns of its own among them', async () => {
    const store = newStore();
    const { text } = await newKey(store);
    const app = await appWith(await post({ store }));
    for (const user of ['alice@example.com', 'Zoë / ops', '', null])
      expect((await app.post({ ...BODY, user }, bearer(text))).status).toBe(200);
    expect(tenants).toEqual([
      'acme/alice@example.com',
      expect.stringMatching(/^acme\/sha256-[0-9a-f]{16}$/),
      'acme',
      'acme',
    ]);
    const refused = await app.post({ ...BODY, user: 'x'.repeat(513) }, bearer(text));
    expect(await refused.json()).toMatchObject({ error: { code: 'string_above_max_length', param: 'user' } });
  });

  test('of a batch waits until its key has something left, and is counted as others are', async () => {
    const [asked, ended]: [unknown[], AbortController] = [[], new AbortController()];
    const answers = [{ waitMs: 5 }, new ShoalError('QUEUE_UNREACHABLE', 'away'), { waitMs: 0 }];
    const allowances = new Allowances(
      {
        use: async (key, use, isAsked) => {
          asked.push([key.keyId, use, isAsked]);
          const answer = answers.shift();
          if (answer instanceof ShoalError) throw answer;
          return { waitMs: answer?.waitMs ?? 60_000, left: { requests: 0, texts: 0, tokens: 0 } };
        },
      },
      noLog,
    );
    const key = { keyId: 'k1', limits: { texts: 60, tokens: 600 } };
    await allowances.wait(key, 64, ended.signal);
    allowances.spentBy(key, 320);
    allowances.spentBy(undefined, 320);
    const texts = ['k1', { requests: 0, texts: 64, tokens: 0 }, true];
    expect(asked).toEqual([texts, texts, texts, ['k1', { requests: 0, texts: 0, tokens: 320 }, false]]);
    const waiting = allowances.wait(key, 64, ended.signal);
    ended.abort(new Error('the batch was cancelled'));
    await expect(waiting).rejects.toThrow('the batch was cancelled');
  });

  test('has as many texts a minute as its key, and is told how many are left', async () => {
    const store = newStore();
    const { text } = await newKey(store, { limits: { texts: 3, tokens: 100 } });
    const app = await appWith(await post({ store }));
    const first = await app.post(BODY, bearer(text));
    expect([first.status, first.headers.get('x-ratelimit-remaining-texts')]).toEqual([200, '1']);
    expect((await app.post(BODY, bearer(text))).status).toBe(200);
    const refused = await app.post(BODY, bearer(text));
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(15);
    expect(refused.headers.get('x-ratelimit-limit-texts')).toBe('3');
    expect(await codeOf(refused)).toEqual([429, 'rate_limit_exceeded']);
    await expect
      .poll(async () => Number((await app.post(BODY, bearer(text))).headers.get('x-ratelimit-remaining-tokens')))
      .toBeLessThan(100); // two requests of six tokens, counted after their answers
  });
});

describe('a server', () => {
  test('does not listen beyond loopback without keys, unless it is told to', async () => {
    const store = newStore();
    await expect(post({ store, host: '0.0.0.0' })).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringMatching(/httpHost 0\.0\.0\.0 .*shoal key create.*SHOAL_HTTP_ACCESS=open/s),
    });
    (await post({ store, host: '0.0.0.0', mode: 'open' })).stop();
    (await post({ store, host: '0.0.0.0', masterKey: MASTER })).stop();
    (await post({ store, host: '::', mode: 'keys' })).stop();
    await newKey(store);
    (await post({ store, host: 'embed.example.com' })).stop();
  });

  test.each([
    [{ masterKey: 'short' }, /must have at least 16 characters/],
    [{ masterKey: MASTER, mode: 'open' as const }, /unset one of them/],
  ])('refuses a master key that guards nothing: %j', async (options, words) => {
    await expect(post({ store: newStore(), ...options })).rejects.toThrow(words);
  });

  test('whose keys are lost or all revoked stays closed', async () => {
    const [store, clock] = [newStore(), new ManualClock()];
    const { id } = await newKey(store);
    const doorman = await post({ store, clock });
    await store.revoke(id, Date.now());
    await clock.advance(2_000);
    await rm(store.place);
    await clock.advance(2_000);
    expect(doorman.asksForKeys).toBe(true);
    expect((await post({ store, clock, mode: 'keys' })).asksForKeys).toBe(true);
  });
});

test('a collection of another tenant looks as if it were not there', async () => {
  const store = newStore();
  const [acme, other, admin] = [
    await newKey(store),
    await newKey(store, { tenant: 'other' }),
    await newKey(store, { tenant: 'other', scopes: ['admin'] }),
  ];
  const app = await appWith(await post({ store }));
  const names = async ({ text }: { readonly text: string }): Promise<unknown> => {
    const answer = await fetch(`${app.url}/v1/collections`, { headers: bearer(text) });
    return ((await answer.json()) as { data: { id: string; owner: string | null }[] }).data.map(({ id }) => id);
  };
  expect([await names(acme), await names(other), await names(admin)]).toEqual([
    ['notes', 'private'],
    ['notes'],
    ['notes', 'private'],
  ]);
  const messages = await Promise.all(
    ['private', 'strange'].map(async (name) => {
      const answer = await fetch(`${app.url}/v1/collections/${name}`, { headers: bearer(other.text) });
      return [answer.status, (await answer.text()).replaceAll(name, 'NAME')];
    }),
  );
  expect(messages[0]).toEqual(messages[1]);
  const search = { collection: 'private@1', queries: 'a', k: 1 };
  const asked = await app.post(search, bearer(other.text), '/v1/similarity/topk');
  expect(await codeOf(asked)).toEqual([404, 'collection_unknown']);
});

test('a key is in no log line, no metric and no answer, wherever a caller puts it', async () => {
  const store = newStore();
  const { text, id } = await newKey(store, { limits: { requests: 3 } });
  const lines: string[] = [];
  const say = (...said: unknown[]): void =>
    void lines.push(JSON.stringify(said, (_, value: unknown) => (value instanceof Error ? `${value.stack}` : value)));
  const log: Logger = { ...noLog, debug: say, info: say, warn: say, error: say };
  const app = await appWith(await post({ store, log, masterKey: MASTER }), {
    parts: { log, readiness: async () => Promise.reject(new Error('away')) },
  });
  const seen: string[] = [];
  for (const key of [text, MASTER, `${text.slice(0, -1)}-`, `${MASTER}-wrong`])
    for (const headers of [
      bearer(key),
      { 'x-api-key': key },
      { authorization: key },
      { 'x-request-id': 'mine', ...bearer(key) },
    ])
      for (const path of ['/v1/embeddings', '/readyz', '/strange', '/metrics', `/v1/models?api_key=${key}`]) {
        const answer = await fetch(app.url + path, {
          headers: { 'content-type': 'application/json', ...headers },
          ...(path === '/v1/embeddings' ? { method: 'POST', body: '{"model": "minilm", "input": []}' } : {}),
        });
        seen.push(JSON.stringify([...answer.headers]), await answer.text());
      }
  const all = [...lines, ...seen].join('\n');
  expect(lines.length).toBeGreaterThan(0);
  expect(seen.join('')).toContain('shoal_http_requests_total');
  for (const secret of [text.slice('shoal_'.length + id.length + 1), MASTER]) expect(all).not.toContain(secret);
});
