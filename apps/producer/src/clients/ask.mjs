// Embeds through the JavaScript clients that people have, each with its defaults. Reads one JSON object from standard
// input, { url, model, requests: [{ client, texts, dimensions?, model? }] }, and writes one JSON line a request:
// { vectors } or { error: { status, message } }. Nothing is set but address, model, key and what the request names;
// retries are off, so that a refusal is seen at once. The packages are those beside the working folder.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { json } from 'node:stream/consumers';

const require = createRequire(join(process.cwd(), 'ask.cjs'));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

const { OpenAI } = await load('openai');
const { OpenAIEmbeddings } = await load('@langchain/openai');
const { embed, embedMany } = await load('ai');
const { createOpenAI } = await load('@ai-sdk/openai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');

const { url, model: usualModel, requests } = await json(process.stdin);

async function openai({ texts, model, dimensions }) {
  const client = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 });
  const answer = await client.embeddings.create({ model, input: texts, ...(dimensions && { dimensions }) });
  return answer.data.map(({ embedding }) => embedding);
}

async function langchain({ texts, model, dimensions }) {
  const client = new OpenAIEmbeddings({
    model,
    apiKey: 'none',
    maxRetries: 0,
    ...(dimensions && { dimensions }),
    configuration: { baseURL: url },
  });
  return texts.length === 1 ? [await client.embedQuery(texts[0])] : client.embedDocuments(texts);
}

async function aiSdk(model, texts) {
  if (texts.length > 1) return (await embedMany({ model, values: texts, maxRetries: 0 })).embeddings;
  return [(await embed({ model, value: texts[0], maxRetries: 0 })).embedding];
}

const CLIENTS = {
  'openai (npm)': openai,
  'LangChain (JavaScript)': langchain,
  'AI SDK, OpenAI': ({ texts, model }) =>
    aiSdk(createOpenAI({ baseURL: url, apiKey: 'none' }).textEmbeddingModel(model), texts),
  'AI SDK, compatible': ({ texts, model }) =>
    aiSdk(createOpenAICompatible({ name: 'shoal', baseURL: url }).textEmbeddingModel(model), texts),
};

async function answerTo(request) {
  try {
    const vectors = await CLIENTS[request.client]({ model: usualModel, ...request });
    return { vectors: vectors.map((vector) => [...vector]) };
  } catch (error) {
    return { error: { status: error.status ?? error.statusCode ?? null, message: String(error.message) } };
  }
}

for (const request of requests) process.stdout.write(`${JSON.stringify(await answerTo(request))}\n`);
