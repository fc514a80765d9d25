// Answers from a folder of Markdown and text files, as retrieval-augmented generation begins: splits the files into
// passages, embeds them and the question, and prints the prompt with the passages that are most like the question.
//   node examples/rag-folder.mjs FOLDER "a question" [passages]
// Needs a queue server and a worker (`shoal up`). Settings: REDIS_URL, SHOAL_MODEL (minilm). For folders that change, or
// with more than some ten thousand passages, keep a collection instead: `shoal index --help`.

import { readFile, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { ShoalClient } from '@shoal/client';

const [folder, question, count = '3'] = process.argv.slice(2);
if (folder === undefined || question === undefined)
  throw new Error('usage: node examples/rag-folder.mjs FOLDER "a question" [passages]');

/** Paragraphs, a heading with the paragraph below it. */
async function* passages() {
  for (const name of (await readdir(folder, { recursive: true })).filter((file) => /\.(md|txt)$/.test(file)).sort()) {
    let heading = '';
    for (const block of (await readFile(join(folder, name), 'utf8')).split(/\n\s*\n/)) {
      const text = block.trim();
      if (/^#+ [^\n]*$/.test(text)) heading = text;
      else if (text !== '') yield { name, text: heading === '' ? text : `${heading}\n${text}` };
    }
  }
}

const client = await ShoalClient.connect({
  redisUrl: process.env.REDIS_URL ?? 'redis://127.0.0.1:6379',
  model: { name: process.env.SHOAL_MODEL ?? 'minilm' },
});
try {
  const { vectors: asked } = await client.embed([question]);
  const best = [];
  // A stream: however many passages there are, few of them are in memory. They come back in blocks, with their items.
  for await (const { kind, items, dims, vectors } of client.embedStream(passages())) {
    if (kind !== 'embedded') continue;
    for (const [at, { name, text }] of items.entries()) {
      const score = asked.reduce((sum, value, i) => sum + value * vectors[at * dims + i], 0);
      best.push({ name, text, score });
    }
    best.sort((a, b) => b.score - a.score).splice(Number(count));
  }
  console.log('Answer from these passages alone, and name the file.\n');
  for (const { name, text, score } of best) console.log(`[${name}, ${score.toFixed(3)}]\n${text}\n`);
  console.log(`Question: ${question}`);
} finally {
  await client.close();
}
