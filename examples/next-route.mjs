// A Next.js route handler that embeds: put it at app/api/embed/route.js, and POST { "texts": ["…"] } to /api/embed.
// It runs in Node, as handlers do that do not say otherwise: on the edge there is no TCP, by which the queue is reached.
// The client is opened with the first request and kept. Settings: REDIS_URL, SHOAL_MODEL (minilm).

import { ShoalClient, isShoalError } from '@shoal/client';

const STATUS = { INPUT_TOO_LONG: 413, ADMISSION_REFUSED: 429, DEADLINE_PASSED: 504 };
let opening;

function client() {
  opening ??= ShoalClient.connect({
    redisUrl: process.env.REDIS_URL ?? 'redis://127.0.0.1:6379',
    model: { name: process.env.SHOAL_MODEL ?? 'minilm' },
    whenFull: 'fail', // a user waits: say at once that there is too much
  });
  opening.catch(() => (opening = undefined)); // the next request tries again
  return opening;
}

export async function POST(request) {
  const { texts } = await request.json().catch(() => ({}));
  if (!Array.isArray(texts) || texts.length === 0 || !texts.every((text) => typeof text === 'string' && text !== ''))
    return Response.json({ error: 'send { "texts": ["…"] }' }, { status: 400 });
  try {
    // A user who goes away takes the jobs off the queue.
    const options = { signal: request.signal, timeoutMs: 20_000, truncate: 'error' };
    const { rows, dims, vectors } = await (await client()).embed(texts, options);
    const embeddings = Array.from({ length: rows }, (_, row) => [...vectors.subarray(row * dims, (row + 1) * dims)]);
    return Response.json({ embeddings });
  } catch (error) {
    if (!isShoalError(error)) throw error;
    return Response.json({ error: error.message, code: error.code }, { status: STATUS[error.code] ?? 503 });
  }
}

/** For tests and for hot reloading: closes what the first request opened. */
export async function close() {
  await (await opening)?.close();
  opening = undefined;
}
