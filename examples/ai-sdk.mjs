// Vercel's AI SDK: one text, many texts, and their cosine by the SDK's own function.
//   npm install ai @ai-sdk/openai-compatible && node examples/ai-sdk.mjs
// Needs `shoal up`. Settings: SHOAL_URL (http://127.0.0.1:8787), SHOAL_MODEL (minilm), SHOAL_API_KEY.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { cosineSimilarity, embed, embedMany } from 'ai';

const shoal = createOpenAICompatible({
  name: 'shoal',
  baseURL: `${process.env.SHOAL_URL ?? 'http://127.0.0.1:8787'}/v1`,
  apiKey: process.env.SHOAL_API_KEY ?? 'none',
});
const model = shoal.textEmbeddingModel(process.env.SHOAL_MODEL ?? 'minilm');

const values = ['The ship left the harbour at dawn.', 'Invoices are due within thirty days.'];
const { embedding: query } = await embed({ model, value: 'when do I have to pay?' });
const { embeddings } = await embedMany({ model, values });
const ranked = values
  .map((text, at) => ({ text, score: cosineSimilarity(query, embeddings[at]) }))
  .toSorted((a, b) => b.score - a.score);
for (const { text, score } of ranked) console.log(score.toFixed(3), text);
