// The corpus as a file, for the loops in Python: the same texts, the same token ids.
//
//   corpus.ts [--scratch /tmp] [--model minilm] [--small]

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { openCorpus, partArguments, row, scratch } from './kit.ts';

partArguments(import.meta.url, {});
const { model, texts, rows, tokens } = await openCorpus();
writeFileSync(
  join(scratch, 'corpus.json'),
  JSON.stringify({ folder: model.folder, texts, rows: rows.map((ids) => Array.from(ids)) }),
);
row({ part: 'corpus', texts: texts.length, tokens, meanTokens: Math.round(tokens / texts.length) });
