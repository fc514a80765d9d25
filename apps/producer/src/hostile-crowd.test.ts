// 60 callers that ask for the largest answers and read nothing, and 60 that never finish the largest body, all at once
// and with the limits as they come: memory stays within what docs/http.md says, others are served meanwhile, and
// everybody is let go. Takes two minutes of waiting, so it runs at night alone.

import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { describe, expect, test, vi } from 'vitest';
import { AppProcess } from './testing/app-process.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly)
  console.warn('120 callers that neither send nor read take minutes: at night alone (npm run test:nightly)');

const MIB = 1024 * 1024;
const CALLERS = 60;
const MAX_HTTP_BYTES = 256 * MIB;
/** What docs/http.md says: as much again as the budget for parsed JSON and copies, and the process itself. */
const MOST_BYTES = 2 * MAX_HTTP_BYTES + 200 * MIB;
const HEAD = 'POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n';

async function callers(url: string, count = CALLERS): Promise<Socket[]> {
  return Promise.all(
    Array.from({ length: count }, async () => {
      const socket = connect(Number(new URL(url).port), '127.0.0.1');
      socket.on('error', () => undefined).resume(); // being let go is what this is about
      await once(socket, 'connect');
      return socket;
    }),
  );
}

function post(url: string, body: object): Promise<Response> {
  return fetch(`${url}/v1/embeddings`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
}

describe.skipIf(!isNightly)('120 callers that neither send nor read', () => {
  test('are let go, cost no more memory than is said, and nobody else waits for them', async () => {
    const app = await AppProcess.start({
      maxOpenRequests: 256,
      maxWaitingRequests: 4_096,
      maxHttpBytes: MAX_HTTP_BYTES,
      maxHttpConnections: 4_096,
      requestTimeoutMs: 60_000,
    });
    const [deaf, halting] = [await callers(app.url), await callers(app.url)];
    try {
      const { peakBytes: beforeBytes } = await app.standing();
      const large = JSON.stringify({ model: 'minilm', input: Array.from({ length: 2_048 }, () => 'a') });
      const almost = `{"model":"minilm","input":"${'x'.repeat(16 * MIB)}`.slice(0, 16 * MIB - 1);
      for (const socket of deaf) socket.pause().write(`${HEAD}content-length: ${large.length}\r\n\r\n${large}`);
      for (const socket of halting) socket.resume().write(`${HEAD}content-length: ${16 * MIB}\r\n\r\n${almost}`);
      const closed = Promise.all(halting.map((socket) => new Promise((resolve) => socket.once('close', resolve))));
      const slowestMs = await servedUntil(app, async () => {
        const { open, waiting, heldBytes, answered } = await app.standing();
        const refused = answered['408']! + answered['429']! + answered['499']!;
        return open === 0 && waiting === 0 && heldBytes === 0 && refused >= 2 * CALLERS;
      });
      await closed;
      const { peakBytes, answered } = await app.standing();
      console.log(
        `120 callers: resident ${Math.round(beforeBytes / MIB)} → at most ${Math.round(peakBytes / MIB)} MiB, ` +
          `answers ${JSON.stringify(answered)}, another caller's slowest answer ${Math.round(slowestMs)} ms`,
      );
      expect(peakBytes).toBeLessThan(MOST_BYTES);
    } finally {
      for (const socket of [...deaf, ...halting]) socket.destroy();
      await app.stop();
    }
  });
});

describe.skipIf(!isNightly)('a process that may have 200 descriptors', () => {
  test('says that 300 connections are too many, lives on, serves whoever asks meanwhile and afterwards', async () => {
    const limits = { maxOpenRequests: 64, maxWaitingRequests: 64, maxHttpBytes: MAX_HTTP_BYTES };
    const app = await AppProcess.start({ ...limits, maxHttpConnections: 4_096 }, 200);
    const crowd: Socket[] = [];
    try {
      for (let round = 0; round < 10; round++) {
        crowd.push(...(await callers(app.url, 30)));
        const answer = await fetch(`${app.url}/healthz`, { headers: { connection: 'close' } });
        expect(answer.status).toBe(200);
      }
      await vi.waitUntil(
        () => crowd.filter(({ destroyed, readableEnded }) => destroyed || readableEnded).length >= 196,
        { timeout: 20_000 },
      );
      for (let i = 0; i < 20; i++) expect((await post(app.url, { model: 'minilm', input: 'a' })).status).toBe(200);
      expect((await app.standing()).warnings).toEqual([expect.stringContaining('as many connections as there may be')]);
      for (const socket of crowd) socket.destroy();
      expect((await post(app.url, { model: 'minilm', input: 'a' })).status).toBe(200);
      expect(app.hasEnded).toBe(false);
    } finally {
      for (const socket of crowd) socket.destroy();
      await app.stop();
    }
  });
});

/** Asks for one vector five times a second, each of which has to come; the time of the slowest. */
async function servedUntil({ url }: AppProcess, isOver: () => Promise<boolean>): Promise<number> {
  let slowestMs = 0;
  await vi.waitUntil(
    async () => {
      const beganMs = performance.now();
      expect((await post(url, { model: 'minilm', input: 'a' })).status).toBe(200);
      slowestMs = Math.max(slowestMs, performance.now() - beganMs);
      return isOver();
    },
    { interval: 200, timeout: 170_000 },
  );
  return slowestMs;
}
