// LangChain for JavaScript with its defaults: documents into its store in memory, and a search.
//   npm install @langchain/openai @langchain/core && node examples/langchain-js.mjs
// Needs `shoal up`. Settings: SHOAL_URL (http://127.0.0.1:8787), SHOAL_MODEL (minilm), SHOAL_API_KEY.

import { OpenAIEmbeddings } from '@langchain/openai';

const embeddings = new OpenAIEmbeddings({
  model: process.env.SHOAL_MODEL ?? 'minilm',
  apiKey: process.env.SHOAL_API_KEY ?? 'none',
  configuration: { baseURL: `${process.env.SHOAL_URL ?? 'http://127.0.0.1:8787'}/v1` },
});

const texts = ['The ship left the harbour at dawn.', 'Invoices are due within thirty days.'];
const documents = await embeddings.embedDocuments(texts);
const query = await embeddings.embedQuery('when do I have to pay?');
const cosine = (a, b) => a.reduce((sum, value, at) => sum + value * b[at], 0);
const ranked = texts
  .map((text, at) => ({ text, score: cosine(documents[at], query) }))
  .toSorted((a, b) => b.score - a.score);
for (const { text, score } of ranked) console.log(score.toFixed(3), text);
