// Fuzzes one reader, or all of them, and prints each finding with the command that shows it again.
//
//   node --conditions=@shoal/source tools/fuzz/main.ts                        every reader, 2,000 cases, a new seed
//     --reader npy        only this one            --cases 2000     how many
//     --seed 7            the same cases again     --from 123       the first one
//     --save folder       each finding's file is kept there

import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { fuzz, type Finding } from './fuzz.ts';
import { KeptProcess } from './kept-process.ts';
import { LIMITS } from './limits.ts';
import { readerNamed, READERS } from './readers.ts';

const { values } = parseArgs({
  options: {
    reader: { type: 'string', multiple: true },
    cases: { type: 'string', default: '2000' },
    seed: { type: 'string', default: String(Date.now() % 2 ** 31) },
    from: { type: 'string', default: '0' },
    save: { type: 'string' },
  },
});

const kept = new KeptProcess(LIMITS);
const readers = values.reader?.map(readerNamed) ?? READERS;
const options = { seed: Number(values.seed), cases: Number(values.cases), from: Number(values.from) };
console.log(`seed ${options.seed}, ${options.cases} cases each`);
for (const reader of readers) {
  const begun = performance.now();
  const { cases, refused, equal, undecided, findings } = await fuzz(reader, kept, options);
  const seconds = ((performance.now() - begun) / 1_000).toFixed(1);
  console.log(
    `${reader.name}: ${cases} cases, ${refused} refused, ${equal} read and compared equal, ${undecided} read and ` +
      `undecided, ${findings.length} findings, ${seconds} s`,
  );
  for (const finding of findings) await show(finding);
  if (findings.length > 0) process.exitCode = 1;
}
await kept.stop();

async function show({ reader, seed, number, what, bytes }: Finding): Promise<void> {
  console.log(`  --reader ${reader} --seed ${seed} --from ${number} --cases 1: ${what}`);
  if (values.save === undefined) return;
  await mkdir(values.save, { recursive: true });
  await writeFile(join(values.save, `${reader}-${seed}-${number}`), bytes);
}
