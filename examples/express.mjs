// An Express server with one route: POST /similar { "query": "…", "texts": ["…"] } answers the texts, the most like first.
//   npm install express && node examples/express.mjs
// Needs a queue server and a worker (`shoal up`). Settings: PORT (3000), REDIS_URL, SHOAL_MODEL (minilm).

import express from 'express';
import { ShoalClient, isShoalError } from '@shoal/client';

const client = await ShoalClient.connect({
  redisUrl: process.env.REDIS_URL ?? 'redis://127.0.0.1:6379',
  model: { name: process.env.SHOAL_MODEL ?? 'minilm' },
});
const app = express();
app.use(express.json({ limit: '1mb' }));

app.post('/similar', async (request, response) => {
  const { query, texts } = request.body ?? {};
  if (typeof query !== 'string' || !Array.isArray(texts) || texts.some((text) => typeof text !== 'string'))
    return response.status(400).json({ error: 'send { "query": "…", "texts": ["…"] }' });
  const { dims, vectors } = await client.embed([query, ...texts], { timeoutMs: 20_000 });
  const row = (at) => vectors.subarray(at * dims, (at + 1) * dims);
  const score = (at) => row(0).reduce((sum, value, i) => sum + value * row(at)[i], 0);
  const ranked = texts.map((text, at) => ({ text, score: score(at + 1) })).toSorted((a, b) => b.score - a.score);
  return response.json({ data: ranked });
});

app.use((error, _request, response, _next) => {
  const status = isShoalError(error) ? 503 : (error.status ?? 500);
  response.status(status).json({ error: error.message, ...(isShoalError(error) && { code: error.code }) });
});

const server = app.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () =>
  console.log(`http://127.0.0.1:${server.address().port}`),
);
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => server.close(() => client.close()));
