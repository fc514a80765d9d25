// Callers that send slowly or not at all, read nothing, come in crowds or by names of their own: what they hold is
// bounded, they are let go in time, and everybody else is served meanwhile.

import { request as httpRequest } from 'node:http';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { OpenAI } from 'openai';
import { afterEach, describe, expect, test } from 'vitest';
import { startApp, type AppUnderTest, type AppUnderTestOptions } from './testing/app-under-test.ts';

const MIB = 1024 * 1024;
const apps: AppUnderTest[] = [];
const sockets: Socket[] = [];
const gates: PromiseWithResolvers<void>[] = [];
afterEach(async () => {
  for (const gate of gates.splice(0)) gate.resolve();
  for (const socket of sockets.splice(0)) socket.destroy();
  await Promise.all(apps.splice(0).map((app) => app.stop()));
});

async function start(options?: AppUnderTestOptions): Promise<AppUnderTest> {
  const app = await startApp(options);
  apps.push(app);
  return app;
}

/** Holds requests open until it is resolved, at the latest at the end of the test. */
function heldGate(): PromiseWithResolvers<void> {
  const gate = Promise.withResolvers<void>();
  gates.push(gate);
  return gate;
}

async function connections(app: AppUnderTest, count: number): Promise<Socket[]> {
  const made = await Promise.all(Array.from({ length: count }, () => app.connection()));
  sockets.push(...made);
  return made;
}

const HEAD = 'POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n';
const ok = { model: 'minilm', input: 'a' };

function asking(body: string): string {
  return `${HEAD}content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
}

/** What comes back on a connection until the server closes it. */
async function answerOn(socket: Socket): Promise<{ readonly status: number; readonly head: string; body: unknown }> {
  const [head = '', body = ''] = (await text(socket)).split('\r\n\r\n');
  return { status: Number(head.split(' ')[1]), head, body: body === '' ? undefined : JSON.parse(body) };
}

const shaped = (code: string): object => ({
  error: { message: expect.any(String), type: expect.any(String), param: null, code },
});

describe('bodies', () => {
  test('that stop arriving are answered 408 and closed, and hold nothing any more; others are served meanwhile', async () => {
    const app = await start({ gate: { arrival: { idleMs: 300 }, maxHttpBytes: 64 * MIB } });
    const holding = await connections(app, 3);
    const halted = await connections(app, 1);
    for (const socket of holding) socket.write(`${HEAD}content-length: ${16 * MIB}\r\n\r\n{"model":`);
    halted[0]!.write(`${HEAD}transfer-encoding: chunked\r\n\r\n5\r\n{"mod\r\n`);
    await expect.poll(() => app.value('shoal_http_held_bytes')).toBe(48 * MIB + 5);
    expect((await app.post(ok)).status).toBe(200);
    for (const socket of [...holding, ...halted])
      expect(await answerOn(socket)).toMatchObject({ status: 408, body: shaped('request_timeout') });
    await expect.poll(() => app.value('shoal_http_held_bytes')).toBe(0);
  });

  test('that arrive too slowly as a whole are answered 408, though a byte comes now and then', async () => {
    const app = await start({ gate: { arrival: { wholeMs: 400 } } });
    const [socket] = await connections(app, 1);
    socket!.write(`${HEAD}content-length: 1000\r\n\r\n`);
    const drip = setInterval(() => socket!.write(' '), 20);
    expect(await answerOn(socket!)).toMatchObject({ status: 408, body: shaped('request_timeout') });
    clearInterval(drip);
  });

  test('for which there is no room are 429 with Retry-After before they are read, small ones are not', async () => {
    const app = await start({ gate: { maxHttpBytes: 32 * MIB } });
    const [first] = await connections(app, 1);
    first!.write(`${HEAD}content-length: ${15 * MIB}\r\n\r\n`);
    await expect.poll(() => app.value('shoal_http_held_bytes')).toBe(15 * MIB);
    const [told, chunked] = await connections(app, 2);
    told!.write(`${HEAD}content-length: ${15 * MIB}\r\n\r\n`);
    const large = 'x'.repeat(14 * MIB);
    chunked!.write(`${HEAD}transfer-encoding: chunked\r\n\r\n${large.length.toString(16)}\r\n${large}`);
    for (const socket of [told!, chunked!]) {
      const { status, head, body } = await answerOn(socket);
      expect([status, body]).toEqual([429, shaped('too_many_bytes')]);
      expect(head).toMatch(/\r\nretry-after: \d+\r\n/i);
    }
    expect((await app.post(ok)).status).toBe(200);
    await expect.poll(() => app.value('shoal_http_held_bytes')).toBe(15 * MIB);
  });

  test('whose callers leave hold nothing any more, and are counted as 499', async () => {
    const app = await start();
    const [socket] = await connections(app, 1);
    socket!.write(`${HEAD}content-length: ${MIB}\r\n\r\n{"model":`);
    await expect.poll(() => app.value('shoal_http_held_bytes')).toBe(MIB);
    socket!.resetAndDestroy();
    await expect.poll(() => app.value('shoal_http_held_bytes')).toBe(0);
    await expect.poll(() => app.value('shoal_http_requests_total', { route: '/v1/embeddings', status: '499' })).toBe(1);
  });

  test('of many callers at once, all wrong, are refused one by one, and health is answered between them', async () => {
    const app = await start({ gate: { maxHttpConnections: 400, maxHttpBytes: 256 * MIB } });
    const body = JSON.stringify({ ...ok, input: [...Array.from({ length: 20_000 }, () => 'word word'), 7] });
    const refused = { count: 0 };
    const all = (await connections(app, 60)).map(async (socket) => {
      socket.write(asking(body).replace('\r\n\r\n', '\r\nconnection: close\r\n\r\n'));
      expect((await answerOn(socket)).status).toBe(400);
      refused.count += 1;
    });
    const passed: number[] = []; // refusals that came between a check and its answer
    while (refused.count < 60) {
      const before = refused.count;
      expect((await fetch(`${app.url}/healthz`)).status).toBe(200);
      passed.push(refused.count - before);
    }
    await Promise.all(all);
    expect(passed.length).toBeGreaterThanOrEqual(6);
    expect(Math.max(...passed)).toBeLessThanOrEqual(20);
  });
});

describe('answers', () => {
  const large = asking(JSON.stringify({ model: 'minilm', input: Array.from({ length: 2_048 }, () => 'a') }));

  test('that nobody reads end with their connections, others are served meanwhile, and what was held is given back', async () => {
    const app = await start({
      gate: { maxOpenRequests: 8, maxHttpBytes: 64 * MIB, reading: { stalledMs: 2_000, leastBytesPerSecond: 1 } },
    });
    const deaf = await connections(app, 6);
    for (const socket of deaf) socket.pause().write(large);
    await expect.poll(() => app.value('shoal_http_requests_open')).toBe(6);
    expect((await app.post(ok)).status).toBe(200);
    await expect.poll(() => app.value('shoal_http_requests_open')).toBe(0);
    expect(await app.value('shoal_http_held_bytes')).toBe(0);
    expect(await app.value('shoal_http_requests_total', { route: '/v1/embeddings', status: '499' })).toBe(6);
  });

  test('that are read too slowly end as well, though a little is taken now and then', async () => {
    const app = await start({ gate: { reading: { stalledMs: 400, leastBytesPerSecond: 1_000 * MIB } } });
    const [slow] = await connections(app, 1);
    slow!.pause().write(large);
    const sip = setInterval(() => slow!.read(4_096), 20);
    await expect.poll(() => app.value('shoal_http_requests_total', { route: '/v1/embeddings', status: '499' })).toBe(1);
    clearInterval(sip);
  });

  test('are made in as many turns of the event loop as they have pieces, so that others come between', async () => {
    const app = await start();
    const readers = await connections(app, 2);
    let turns = 0;
    let isOver = false;
    const count = (): void => {
      turns += 1;
      if (!isOver) setImmediate(count);
    };
    setImmediate(count);
    const closing = large.replace('\r\n\r\n', '\r\nconnection: close\r\n\r\n');
    const answers = readers.map((socket) => {
      socket.write(closing);
      return text(socket);
    });
    const bytes = (await Promise.all(answers)).reduce((sum, { length }) => sum + length, 0);
    isOver = true;
    expect(bytes).toBeGreaterThan(20 * MIB);
    expect(turns).toBeGreaterThan((0.8 * bytes) / 65_536);
  });

  test('come whole to who reads them, in pieces and in OpenAI’s shape', async () => {
    const app = await start();
    const answer = await app.post({ model: 'minilm', input: Array.from({ length: 300 }, () => 'a') });
    const body: unknown = await answer.json();
    expect(body).toMatchObject({ object: 'list', model: 'minilm', usage: { prompt_tokens: 900, total_tokens: 900 } });
    expect(body).toHaveProperty('data.length', 300);
    expect(body).toHaveProperty('data.299.embedding.length', 384);
    expect(answer.headers.get('content-type')).toBe('application/json; charset=utf-8');
  });
});

describe('crowds', () => {
  test('wait for their turn: every call of the official client is answered, however many come at once', async () => {
    let most = 0;
    let open = 0;
    const app = await start({
      gate: { maxOpenRequests: 4, maxWaitingRequests: 200 },
      whileOpen: async () => {
        most = Math.max(most, (open += 1));
        for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate);
        open -= 1;
      },
    });
    const client = new OpenAI({ baseURL: `${app.url}/v1`, apiKey: 'none' });
    const answers = await Promise.all(
      Array.from({ length: 150 }, (_, i) => client.embeddings.create({ model: 'minilm', input: `text ${i}` })),
    );
    expect([answers.length, most, app.asked.length]).toEqual([150, 4, 150]);
  });

  test('that are too large are told when to come back, each at another time', async () => {
    const gate = heldGate();
    const app = await start({
      gate: { maxOpenRequests: 1, maxWaitingRequests: 1 },
      whileOpen: () => gate.promise,
    });
    const taken = [app.post(ok), app.post(ok)];
    await expect.poll(() => app.value('shoal_http_requests_waiting')).toBe(1);
    const refused = await Promise.all(Array.from({ length: 40 }, () => app.post(ok)));
    expect(refused.map(({ status }) => status)).toEqual(refused.map(() => 429));
    expect(new Set(refused.map(({ headers }) => headers.get('retry-after'))).size).toBeGreaterThan(1);
    expect(await refused[0]!.json()).toEqual(shaped('too_many_requests'));
    gate.resolve();
    expect((await Promise.all(taken)).map(({ status }) => status)).toEqual([200, 200]);
  });

  test('of idle connections shut out nobody: the idlest are closed, and the log says so once', async () => {
    const warnings: string[] = [];
    const log = {
      error: () => undefined,
      warn: (_: object, said: string) => warnings.push(said),
      info: () => undefined,
      debug: () => undefined,
    };
    const app = await start({ gate: { maxHttpConnections: 20, log: log as never } });
    const idle = await connections(app, 60);
    for (let i = 0; i < 5; i++) {
      const answer = await fetch(`${app.url}/healthz`, { headers: { connection: 'close' } });
      expect(answer.status).toBe(200);
    }
    await expect
      .poll(() => idle.filter(({ readableEnded, destroyed }) => readableEnded || destroyed).length)
      .toBeGreaterThanOrEqual(40);
    expect(warnings).toEqual([expect.stringContaining('idlest')]);
  });

  test('of busy connections leave room for health checks', async () => {
    const gate = heldGate();
    const app = await start({ gate: { maxHttpConnections: 22 }, whileOpen: () => gate.promise });
    const busy = await connections(app, 22);
    for (const socket of busy) socket.write(asking(JSON.stringify(ok)));
    await expect
      .poll(() => app.value('shoal_http_requests_total', { route: '/v1/embeddings', status: '429' }))
      .toBe(16);
    expect((await fetch(`${app.url}/healthz`)).status).toBe(200);
    gate.resolve();
  });
});

describe('requests that are none', () => {
  test.each([
    [
      'of another name',
      'GET /healthz HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n',
      403,
      'host_not_allowed',
      '/healthz',
    ],
    [
      'for another name in full',
      'GET http://evil.example/healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n',
      403,
      'host_not_allowed',
      '/healthz',
    ],
    [
      'by two names',
      'GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\nconnection: close\r\n\r\n',
      400,
      'bad_request',
      '/healthz',
    ],
    ['by no name', 'GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n', 400, 'bad_request', '/healthz'],
    ['for what nobody expects', `${HEAD}expect: tea\r\ncontent-length: 2\r\n\r\n{}`, 417, 'expectation_failed', 'none'],
    ['for a proxy', 'CONNECT example.com:443 HTTP/1.1\r\nhost: localhost\r\n\r\n', 405, 'method_not_supported', 'none'],
    [
      'by a method that is not ours',
      'QUERY /v1/embeddings HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}',
      405,
      'method_not_supported',
      'none',
    ],
    [
      'by another that is not',
      'PROPFIND /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n',
      405,
      'method_not_supported',
      'none',
    ],
  ])('%s are refused in OpenAI’s shape, and counted', async (_, bytes, status, code, route) => {
    const app = await start();
    const [socket] = await connections(app, 1);
    socket!.write(bytes);
    expect(await answerOn(socket!)).toMatchObject({ status, body: shaped(code) });
    await expect.poll(() => app.value('shoal_http_requests_total', { route, status: String(status) })).toBe(1);
  });

  test('of a page of another origin are told that no origin may ask', async () => {
    const app = await start();
    const answer = await fetch(`${app.url}/v1/embeddings`, {
      method: 'OPTIONS',
      headers: {
        origin: 'https://page.example',
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'content-type',
      },
    });
    expect([answer.status, answer.headers.get('access-control-allow-origin')]).toEqual([405, null]);
    expect(await answer.json()).toMatchObject({ error: { message: expect.stringMatching(/CORS.*httpCors/) } });
  });

  test.each(['/v1/batches', '/v1/batches/batch_1', '/v1/files'])('for %s are told what to do instead', async (path) => {
    const app = await start();
    const answer = await fetch(app.url + path, { method: 'POST', body: '{}' });
    expect(answer.status).toBe(404);
    expect(await answer.json()).toMatchObject({
      error: { code: 'unknown_url', message: expect.stringMatching(/no batches.*\/v1\/embeddings/) },
    });
  });

  test('a name of httpHosts is answered, and HTTP/1.0 without any', async () => {
    const app = await start({ gate: { hosts: 'embed.example.com' } });
    const [named, old] = await connections(app, 2);
    named!.write('GET /healthz HTTP/1.1\r\nhost: embed.example.com\r\nconnection: close\r\n\r\n');
    old!.write('GET /healthz HTTP/1.0\r\n\r\n');
    expect([(await answerOn(named!)).status, (await answerOn(old!)).status]).toEqual([200, 200]);
  });

  test.each(['/v1/embeddings/', '//v1/embeddings', '//v1//embeddings//'])(
    'but %s is the path it looks like',
    async (path) => {
      const app = await start();
      const asked = httpRequest({
        port: app.port,
        path,
        method: 'POST',
        headers: { 'content-type': 'application/json' },
      });
      asked.end(JSON.stringify(ok));
      const [answer] = (await once(asked, 'response')) as [{ statusCode: number; resume(): void }];
      answer.resume();
      expect(answer.statusCode).toBe(200);
    },
  );
});
