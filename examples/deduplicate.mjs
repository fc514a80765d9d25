// Takes near-duplicates out of a file with one text a line: prints each line that is not nearly the same as one printed
// before, and says on standard error what it left out.
//   node examples/deduplicate.mjs FILE [least cosine of duplicates, 0.9] > unique.txt
// Needs a queue server and a worker (`shoal up`). Settings: REDIS_URL, SHOAL_MODEL (minilm). It compares with every line
// that was kept: for files of up to some ten thousand lines. For more, make a collection: `shoal index --help`.

import { createReadStream } from 'node:fs';
import { createInterface } from 'node:readline';
import { ShoalClient } from '@shoal/client';

const [file, least = '0.9'] = process.argv.slice(2);
if (file === undefined) throw new Error('usage: node examples/deduplicate.mjs FILE [least cosine]');

async function* lines() {
  for await (const text of createInterface({ input: createReadStream(file) })) if (text.trim() !== '') yield { text };
}

const client = await ShoalClient.connect({
  redisUrl: process.env.REDIS_URL ?? 'redis://127.0.0.1:6379',
  model: { name: process.env.SHOAL_MODEL ?? 'minilm' },
});
const cosine = (a, b) => a.reduce((sum, value, at) => sum + value * b[at], 0);
const kept = [];
try {
  for await (const { kind, items, dims, vectors } of client.embedStream(lines())) {
    if (kind !== 'embedded') continue;
    for (const [at, { text }] of items.entries()) {
      const vector = vectors.slice(at * dims, (at + 1) * dims);
      const same = kept.find((one) => cosine(one.vector, vector) >= Number(least));
      if (same === undefined) {
        kept.push({ text, vector });
        console.log(text);
      } else console.error(`left out: ${text} (like: ${same.text})`);
    }
  }
} finally {
  await client.close();
}
