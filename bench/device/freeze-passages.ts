// Makes libs/models/calibration/passages.json, the frozen set on which int8 is compared with fp32: passages of this
// checkout's documents and of the READMEs of installed packages under permissive licences, as `shoal try` cuts them,
// spread evenly over all there are. Run once; the result is kept so that figures of different days are about the same
// texts.
//   node --conditions=@shoal/source bench/device/freeze-passages.ts

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readArguments } from '../rig/arguments.ts';
import { readCorpus, type CorpusPassage } from '../../apps/cli/src/search/corpus.ts';

readArguments(import.meta.url, {});
const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const PASSAGES = 450;
const PER_FILE = 12;
/** Characters; a heading alone says too little, and 450 long ones would be more than 150 kB. */
const [LEAST, MOST] = [120, 420];
const PERMISSIVE = new Set(['MIT', 'ISC', 'BSD-2-Clause', 'BSD-3-Clause', 'Apache-2.0', '0BSD']);

interface Frozen {
  readonly from: string;
  readonly text: string;
}

const all = await readCorpus(ROOT, { passages: Infinity, words: Infinity });
const perFile = new Map<string, number>();
const fit = all.flatMap(freeze).filter(({ from }) => {
  perFile.set(from, (perFile.get(from) ?? 0) + 1);
  return perFile.get(from)! <= PER_FILE;
});
const chosen = Array.from({ length: PASSAGES }, (_, at) => fit[Math.floor((at * fit.length) / PASSAGES)]!);
const lines = chosen.map((passage) => JSON.stringify(passage)).join(',\n');
writeFileSync(join(ROOT, 'libs/models/calibration/passages.json'), `[\n${lines}\n]\n`);
process.stdout.write(
  `${chosen.length} of ${fit.length} passages, ${Math.round(lines.length / 1000)} kB, from ` +
    `${new Set(chosen.map(({ from }) => from)).size} sources\n`,
);

function freeze({ file, embedded }: CorpusPassage): Frozen[] {
  const from = sourceOf(file);
  return from === undefined || embedded.length < LEAST || embedded.length > MOST || /npmjs/.test(embedded)
    ? []
    : [{ from, text: embedded }];
}

/** Name, version and licence of the package, or the own document; undefined where the licence is another one. */
function sourceOf(file: string): string | undefined {
  if (!file.startsWith('node_modules/')) return `${file} (Apache-2.0)`;
  const { name, version, license } = JSON.parse(readFileSync(join(ROOT, file, '../../package.json'), 'utf8')) as {
    name: string;
    version: string;
    license?: unknown;
  };
  return typeof license === 'string' && PERMISSIVE.has(license) ? `${name} ${version} (${license})` : undefined;
}
