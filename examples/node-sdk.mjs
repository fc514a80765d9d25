// Embeds a few texts through the queue with the Node SDK and ranks them by their likeness to a question.
//   node examples/node-sdk.mjs ["a question"]
// Needs a queue server and a worker (`shoal up`). Settings: REDIS_URL, SHOAL_MODEL (minilm).

import { ShoalClient } from '@shoal/client';

const question = process.argv[2] ?? 'when do I have to pay?';
const texts = [
  'The ship left the harbour at dawn.',
  'Invoices are due within thirty days.',
  'Our office is closed on public holidays.',
];

/** Vectors have length 1: their dot product is their cosine. */
const cosine = (a, b) => a.reduce((sum, value, at) => sum + value * b[at], 0);

const client = await ShoalClient.connect({
  redisUrl: process.env.REDIS_URL ?? 'redis://127.0.0.1:6379',
  model: { name: process.env.SHOAL_MODEL ?? 'minilm' },
});
try {
  const { dims, vectors } = await client.embed([question, ...texts]);
  const row = (at) => vectors.subarray(at * dims, (at + 1) * dims);
  const ranked = texts
    .map((text, at) => ({ text, score: cosine(row(0), row(at + 1)) }))
    .toSorted((a, b) => b.score - a.score);
  for (const { text, score } of ranked) console.log(score.toFixed(3), text);
} finally {
  await client.close();
}
