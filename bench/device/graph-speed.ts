// How fast each kind of a model's graph is on the CPU provider, without the queue: ragged corpus, micro-batches by the
// worker's rules, tokenizing included. Vectors are compared with fp32's before the clock starts; rounds alternate in
// one process.
//   node --conditions=@shoal/source bench/device/graph-speed.ts [--model minilm] [--texts 400] [--rounds 3] [--threads 1] [--kinds
//   fused-fp32,int8,…] (int8 is right with VNNI alone: leave it out elsewhere)

import { cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { openModel, type GraphKind } from '@shoal/models';
import { readArguments } from '../rig/arguments.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';
import { cacheDir, compareSides, openBare, type Side } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  model: { type: 'string', default: 'minilm' },
  texts: { type: 'string', default: '400' },
  rounds: { type: 'string', default: '3' },
  threads: { type: 'string', default: '1' },
  kinds: { type: 'string', default: 'fused-fp32,int8,int8-unsigned' },
});
/** Lowest cosine to fp32 of one text: texts of random words are the hardest. */
const LEAST: Readonly<Record<string, number>> = { int8: 0.99, 'int8-unsigned': 0.99 };

const [model, quantized] = [
  await openModel(args.model, { cacheDir }),
  await openModel(`${args.model}-int8`, { cacheDir }),
];
// words of minilm, which other vocabularies may cut: its lengths are exact for minilm alone
const { folder } = await openModel('minilm', { cacheDir });
const texts = raggedCorpus(join(folder, 'tokenizer.json'), Number(args.texts)).map(({ text }) => text);
const loadBefore = loadavg()[0]!;
const sides: Side[] = [];
for (const kind of args.kinds.split(','))
  sides.push(
    await openBare(kind, kind.startsWith('int8') ? quantized : model, Number(args.threads), kind as GraphKind),
  );
try {
  const kinds = await compareSides(sides, texts, Number(args.rounds), model.dims, (name) => LEAST[name] ?? 0.9999);
  process.stdout.write(
    `${JSON.stringify({
      bench: 'graph-speed',
      model: args.model,
      cpu: cpus()[0]?.model,
      threads: Number(args.threads),
      texts: texts.length,
      loadBefore: Number(loadBefore.toFixed(2)),
      kinds,
    })}\n`,
  );
} finally {
  for (const side of sides) await side.close();
}
