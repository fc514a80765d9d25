// Notices against real servers of this machine: signatures as OpenAI's client checks them, and addresses that are not
// asked.

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { OpenAI } from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { guardedLookup, isPublic } from './addresses.ts';
import { deliver, isWebhookSecret, newWebhookSecret, parseWebhook } from './webhook.ts';

const SECRET = newWebhookSecret();
const ALLOWED = { secret: SECRET, allowsPrivate: true };
const GUARDED = { secret: SECRET, allowsPrivate: false };
const EVENT = { type: 'batch.completed', id: 'batch_1' };

let server: Server;
let port: number;
const told: { readonly body: string; readonly headers: IncomingMessage['headers'] }[] = [];

beforeAll(async () => {
  server = createServer(async (request, answer) => {
    told.push({ body: await text(request), headers: request.headers });
    if (request.url === '/moved') answer.writeHead(302, { location: '/taken' }).end();
    else if (request.url === '/hangs') return;
    else answer.writeHead(request.url === '/taken' ? 204 : 500).end('no');
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  ({ port } = server.address() as AddressInfo);
});
afterAll(async () => {
  server.closeAllConnections();
  server.close();
  await once(server, 'close');
});

describe('a notice', () => {
  test('is signed so that OpenAI’s client reads it, and no other secret does', async () => {
    told.length = 0;
    expect(await deliver({ url: `http://127.0.0.1:${port}/taken` }, EVENT, ALLOWED)).toEqual({ isDelivered: true });
    const [{ body, headers } = { body: '', headers: {} }] = told;
    const { webhooks } = new OpenAI({ apiKey: 'none' });
    expect(await webhooks.unwrap(body, headers as Record<string, string>, SECRET)).toMatchObject({
      object: 'event',
      type: 'batch.completed',
      data: { id: 'batch_1' },
    });
    expect(headers['webhook-id']).toBe('evt_batch_1');
    await expect(webhooks.unwrap(body, headers as Record<string, string>, newWebhookSecret())).rejects.toThrow(
      /signature/,
    );
    await expect(webhooks.unwrap(`${body} `, headers as Record<string, string>, SECRET)).rejects.toThrow(/signature/);
  });

  test.each([
    ['/refused', 'answered with status 500'],
    ['/moved', 'answered with status 302, a redirect, which is not followed'],
  ])('to %s is not taken: %s', async (path, error) => {
    told.length = 0;
    const url = `http://127.0.0.1:${port}${path}`;
    expect(await deliver({ url, secret: SECRET }, EVENT, ALLOWED)).toEqual({ isDelivered: false, error });
    expect(told).toHaveLength(1);
  });

  test('to nobody says so without the address', async () => {
    const { error } = await deliver({ url: 'http://127.0.0.1:1/secret-path' }, EVENT, ALLOWED);
    expect(error).toBe('could not be reached (ECONNREFUSED)');
  });

  test.each(['127.0.0.1', 'localhost', '[::1]', '[::ffff:127.0.0.1]', '0x7f.1', '2130706433'])(
    'to %s is not sent where private addresses are not allowed',
    async (host) => {
      told.length = 0;
      const found = await deliver({ url: `http://${host}:${port}/taken` }, EVENT, GUARDED);
      expect(found).toEqual({
        isDelivered: false,
        error: "it leads to an address of this server's machine or network",
      });
      expect(told).toHaveLength(0);
    },
  );
});

describe('the field webhook', () => {
  test('is taken with a secret of its own, or the server’s', () => {
    expect(parseWebhook(undefined, GUARDED)).toBeUndefined();
    const webhook = { url: 'https://example.com/x', secret: newWebhookSecret() };
    expect(parseWebhook(webhook, { secret: undefined, allowsPrivate: false })).toEqual({
      ...webhook,
      status: 'pending',
      attempts: 0,
    });
    expect(parseWebhook({ url: webhook.url }, GUARDED)).toEqual({ url: webhook.url, status: 'pending', attempts: 0 });
  });

  test.each([
    [{}, /must be an address/],
    [{ url: 'https://example.com', secret: 'x' }, /whsec_/],
    [{ url: 'https://example.com', retries: 3 }, /"webhook.retries" is not a parameter/],
    [{ url: 'ftp://example.com' }, /must be https/],
    [{ url: 'file:///etc/passwd' }, /must be https/],
    [{ url: 'nonsense' }, /must be https/],
    [{ url: 'https://user:pass@example.com' }, /a user or a password/],
    [{ url: `https://example.com/${'x'.repeat(2_048)}` }, /at most 2048/],
    [{ url: 'http://127.0.0.1/x' }, /webhookPrivate/],
    [{ url: 'http://localhost:3000' }, /webhookPrivate/],
    [{ url: 'http://LOCALHOST./' }, /webhookPrivate/],
    [{ url: 'http://metadata.google.internal/' }, /webhookPrivate/],
    [{ url: 'http://169.254.169.254/latest' }, /webhookPrivate/],
    [{ url: 'http://[fd00::1]/' }, /webhookPrivate/],
    [{ url: 'http://0x7f000001/' }, /webhookPrivate/],
  ])('%j is refused', (asked, words) => {
    expect(() => parseWebhook(asked, GUARDED)).toThrow(words);
  });

  test('without any secret is refused with what to do', () => {
    expect(() => parseWebhook({ url: 'https://example.com' }, { secret: undefined, allowsPrivate: false })).toThrow(
      /webhookSecret/,
    );
    expect(isWebhookSecret('whsec_c2hvcnQ=')).toBe(false);
  });
});

test.each([
  ['8.8.8.8', true],
  ['1.1.1.1', true],
  ['172.15.0.1', true],
  ['172.16.0.1', false],
  ['10.1.2.3', false],
  ['192.168.1.1', false],
  ['100.64.0.1', false],
  ['169.254.169.254', false],
  ['0.0.0.0', false],
  ['224.0.0.1', false],
  ['255.255.255.255', false],
  ['2606:4700:4700::1111', true],
  ['::1', false],
  ['::', false],
  ['fe80::1%eth0', false],
  ['fd00::1', false],
  ['::ffff:8.8.8.8', false],
  ['64:ff9b::7f00:1', false],
  ['2002:7f00:1::', false],
  ['2001:db8::1', false],
  ['ff02::1', false],
  ['localhost', false],
])('%s is an address of the internet: %s', (address, expected) => {
  expect(isPublic(address)).toBe(expected);
});

test('a name that leads to this machine is found when it is connected to', async () => {
  const lookup = guardedLookup(isPublic);
  const found = await new Promise((resolve) => lookup('localhost', { all: true }, (error) => resolve(error)));
  expect(found).toMatchObject({ name: 'PrivateAddress' });
  const allowed = guardedLookup(() => true);
  const address = await new Promise((resolve) => allowed('localhost', {}, (_, one) => resolve(one)));
  expect(['127.0.0.1', '::1']).toContain(address);
});
