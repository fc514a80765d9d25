// OpenAI's client for Node, unchanged, with Shoal behind it.
//   npm install openai && node examples/openai-npm.mjs
// Needs `shoal up`. Settings: SHOAL_URL (http://127.0.0.1:8787), SHOAL_MODEL (minilm), SHOAL_API_KEY.

import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: `${process.env.SHOAL_URL ?? 'http://127.0.0.1:8787'}/v1`,
  apiKey: process.env.SHOAL_API_KEY ?? 'none',
});

for await (const { id } of await client.models.list()) console.log(`served: ${id}`);
const { data, usage } = await client.embeddings.create({
  model: process.env.SHOAL_MODEL ?? 'minilm',
  input: ['The ship left the harbour at dawn.', 'Invoices are due within thirty days.'],
});
for (const { index, embedding } of data)
  console.log(`${index}: ${embedding.length} dimensions, ${embedding.slice(0, 4).map((value) => value.toFixed(4))} …`);
console.log(`${usage.total_tokens} tokens`);
