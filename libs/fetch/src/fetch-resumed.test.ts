import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ask } from './ask.ts';
import { fetchReason } from './fetch-failure.ts';
import { fetchResumed, type ResumedOptions } from './fetch-resumed.ts';

const BODY = Buffer.alloc(100_000, 'shoal');
const PROMISED = {
  bytes: BODY.length,
  digest: { algorithm: 'sha256', hex: createHash('sha256').update(BODY).digest('hex') },
} as const;

let server: Server;
let base: string;
let folder: string;
let serve: (request: IncomingMessage, response: ServerResponse) => void;
let ranges: (string | undefined)[];

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-resumed-'));
  ranges = [];
  server = createServer((request, response) => {
    ranges.push(request.headers.range);
    serve(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterEach(() => {
  server.closeAllConnections();
  server.close();
  rmSync(folder, { recursive: true, force: true });
});

const fetchIt = (options: Partial<ResumedOptions> = {}, promised = PROMISED as Parameters<typeof fetchResumed>[2]) =>
  fetchResumed(`${base}/file`, join(folder, 'file'), promised, {
    retries: { attempts: 2, firstDelayMs: 1, longestWaitMs: 50 },
    refusal: () => undefined,
    ...options,
  });

test('a server that knows no ranges is read from its first byte again', async () => {
  writeFileSync(join(folder, 'file.part'), BODY.subarray(0, 1_000));
  serve = (_, response) => response.end(BODY);
  await fetchIt();
  expect(ranges).toEqual(['bytes=1000-']);
  expect(readFileSync(join(folder, 'file')).equals(BODY)).toBe(true);
  expect(readdirSync(folder)).toEqual(['file']);
});

test('a server that answers with another part than was asked for, or with more, is refused', async () => {
  serve = (_, response) =>
    response.writeHead(206, { 'content-range': 'bytes 500-99999/100000' }).end(BODY.subarray(500));
  await expect(fetchIt()).rejects.toThrow(/was asked from 0 and answers from 500/);
  serve = (_, response) => response.end(Buffer.concat([BODY, BODY]));
  await expect(fetchIt()).rejects.toThrow(/has more than the 100000 bytes/);
});

test('a part that is longer than the file is thrown away', async () => {
  writeFileSync(join(folder, 'file.part'), Buffer.concat([BODY, BODY]));
  serve = (_, response) => response.end(BODY);
  await fetchIt();
  expect(readFileSync(join(folder, 'file')).equals(BODY)).toBe(true);
});

test('a file of no bytes is a file', async () => {
  serve = (_, response) => response.end();
  const hex = createHash('sha1').update('blob 0\0').digest('hex');
  await fetchIt({}, { bytes: 0, digest: { algorithm: 'git-sha1', hex } });
  expect(readFileSync(join(folder, 'file'))).toHaveLength(0);
});

test('a signal ends a wait with its own reason, and what has arrived stays', async () => {
  const stopping = new AbortController();
  serve = (_, response) => response.writeHead(503, { 'retry-after': '30' }).end();
  const fetching = fetchIt({
    signal: stopping.signal,
    retries: { attempts: 3, firstDelayMs: 1, longestWaitMs: 60_000 },
    onWait: () => stopping.abort('enough'),
  });
  await expect(fetching).rejects.toBe('enough');
});

test('a wait that the server asks for is kept to, and one beyond the bound is not waited', async () => {
  const waits: number[] = [];
  serve = (_, response) =>
    response.writeHead(429, { 'retry-after': new Date(Date.now() + 3_600_000).toUTCString() }).end();
  const failure = await fetchIt({ onWait: (__, waitMs) => waits.push(waitMs) }).catch((error: unknown) => error);
  expect(fetchReason(failure)).toBe('unreachable');
  expect(waits).toEqual([]);
  serve = (_, response) => response.writeHead(429, { 'retry-after': '0' }).end();
  await expect(fetchIt({ onWait: (__, waitMs) => waits.push(waitMs) })).rejects.toThrow(/HTTP 429/);
  expect(waits).toEqual([0]);
});

test('secret headers stay with the host that was asked, also after it sends there and back', async () => {
  const seen: (string | undefined)[] = [];
  const other = `http://localhost:${new URL(base).port}`;
  serve = (request, response) => {
    seen.push(`${request.headers.host?.split(':')[0]} ${request.url} ${request.headers.authorization}`);
    const next = { '/a': '/b', '/b': `${other}/c`, '/c': `${base}/d` }[request.url ?? ''];
    if (next === undefined) response.end('here');
    else response.writeHead(302, { location: next }).end();
  };
  const answer = await ask(`${base}/a`, { secretHeaders: { authorization: 'Bearer x' } });
  expect(await answer.text(10)).toBe('here');
  expect(seen).toEqual([
    '127.0.0.1 /a Bearer x',
    '127.0.0.1 /b Bearer x',
    'localhost /c undefined',
    '127.0.0.1 /d undefined',
  ]);
});

test('redirects without end, and those that lead to other protocols, are refused; signatures are not repeated', async () => {
  serve = (_, response) => response.writeHead(302, { location: '/again' }).end();
  await expect(ask(`${base}/a?Signature=secret`)).rejects.toThrow(/^(?!.*secret).*more than 5 redirects/s);
  serve = (_, response) => response.writeHead(302, { location: 'file:///etc/passwd' }).end();
  await expect(ask(`${base}/a`)).rejects.toThrow(/redirects to file:/);
  serve = (_, response) => response.end('far too much');
  await expect((await ask(`${base}/a`)).text(3)).rejects.toThrow(/more than 3 bytes/);
});
