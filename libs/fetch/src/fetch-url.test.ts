import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { fetchReason } from './fetch-failure.ts';
import { fetchUrl } from './fetch-url.ts';

const BODY = Buffer.alloc(300_000, 'shoal');
const DIGEST = '66b655fdc5b2edb6b0d4ba40e07f6d83dc2a41dbc0dbc08dbe6e7ec8c4ee2d0a';
let server: Server;
let base: string;
let folder: string;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-url-'));
  server = createServer((request, response) => {
    if (request.url === '/missing') response.writeHead(404).end();
    else if (request.url === '/redirect') response.writeHead(302, { location: '/file' }).end();
    else if (request.url === '/stalls')
      response.writeHead(200, { 'content-length': BODY.length }).write(BODY.subarray(0, 10));
    else if (request.url === '/breaks') {
      response.writeHead(200, { 'content-length': BODY.length }).write(BODY.subarray(0, 10));
      setTimeout(() => response.destroy(), 20);
    } else if (request.url !== '/silent') response.writeHead(200, { 'content-length': BODY.length }).end(BODY);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
  rmSync(folder, { recursive: true, force: true });
});

async function reasonOf(url: string, options: Parameters<typeof fetchUrl>[2] = {}): Promise<string> {
  const destination = join(folder, 'failing');
  const error = await fetchUrl(url, destination, options).catch((caught: unknown) => caught);
  expect(existsSync(destination)).toBe(false);
  return `${fetchReason(error)}: ${(error as Error).message}`;
}

test('a file arrives through a redirect with its digest, and progress ends at its size', async () => {
  const seen: (number | undefined)[][] = [];
  const received = await fetchUrl(`${base}/redirect`, join(folder, 'file'), {
    onProgress: (...progress) => seen.push(progress),
  });
  expect(received.bytes).toBe(BODY.length);
  expect(readFileSync(join(folder, 'file')).equals(BODY)).toBe(true);
  expect(seen.at(-1)).toEqual([BODY.length, BODY.length]);
  await expect(fetchUrl(`${base}/file`, join(folder, 'again'), { sha256: received.sha256 })).resolves.toEqual(received);
});

test('other bytes than the pinned ones are deleted and refused', async () => {
  await expect(reasonOf(`${base}/file`, { sha256: DIGEST })).resolves.toMatch(
    /^mismatch: .*should be 66b6.* Nothing was kept/,
  );
});

test('a signal ends it with its own reason, before an answer and in the middle of one, and nothing stays', async () => {
  for (const [path, isBegun] of [
    ['/silent', false],
    ['/stalls', true],
  ] as const) {
    const stopping = new AbortController();
    const fetching = fetchUrl(`${base}${path}`, join(folder, 'stopped'), {
      signal: stopping.signal,
      onProgress: () => stopping.abort('enough'),
    });
    if (!isBegun) setImmediate(() => stopping.abort('enough'));
    await expect(fetching).rejects.toBe('enough');
    expect(existsSync(join(folder, 'stopped'))).toBe(false);
  }
});

test('every way a server can fail ends quickly with a reason', async () => {
  await expect(reasonOf(`${base}/missing`)).resolves.toMatch(/^not-found: .*HTTP 404/);
  await expect(reasonOf('http://127.0.0.1:9/x')).resolves.toMatch(/^unreachable: .*cannot be reached/);
  await expect(reasonOf(`${base}/silent`, { connectTimeoutMs: 50 })).resolves.toMatch(
    /^unreachable: .*no answer within 50 ms/,
  );
  await expect(reasonOf(`${base}/stalls`, { silenceTimeoutMs: 50 })).resolves.toMatch(
    /^unreachable: .*nothing arrived for 50 ms/,
  );
  await expect(reasonOf(`${base}/breaks`)).resolves.toMatch(/^unreachable: /);
});
