// Tokenizers of every kind beside the official `tokenizers` package (native code), on one core by processor time, in one
// process: prose (texts of about 400 characters), Markdown (single lines) and texts in many languages, from the packages
// and fixtures of this checkout. Before the clock starts every id is compared with the package's. Each is the least of a
// few passes with what it remembers from before, as in bulk work; "first" is Shoal's with nothing remembered.
// Without --file: the small files of libs/models/fixtures/made. With it: a tokenizer.json, such as a real one.
//   node --conditions=@shoal/source bench/device/tokenizer-kinds.ts [--file PATH] [--quick] [--record]

import { readFileSync, readdirSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import type { Tokenizer } from '@shoal/core';
import tokenizers from 'tokenizers';
import { makeTokenizer } from '../../libs/models/src/tokenizer/make-tokenizer.ts';
import { parseTokenizerJson, type TokenizerFacts } from '../../libs/models/src/tokenizer/tokenizer-json.ts';
import { readArguments } from '../rig/arguments.ts';
import { record } from '../rig/record.ts';
import type { Bar } from '../rig/results.ts';

/** Times the package's speed over the sum of the three corpora; real vocabularies only, small ones are for show. */
const LEAST_RATIO = { WordPiece: undefined, Unigram: 3, 'BPE of bytes': 3, 'BPE of characters': 1.5 };
const REAL_PIECES = 20_000;

const ROOT = new URL('../../', import.meta.url).pathname;
const MADE = join(ROOT, 'libs/models/fixtures/made/tokenizers');
const { quick: isQuick, file } = readArguments(import.meta.url, {
  quick: { type: 'boolean', default: false },
  file: { type: 'string' },
  record: { type: 'boolean', default: false },
});
const passes = isQuick ? 1 : 5;

// batches of the package would go to threads of its own
process.env['TOKENIZERS_PARALLELISM'] = 'false';

const files = file === undefined ? readdirSync(MADE).map((name) => join(MADE, name)) : [file];
const corpora = readCorpora();
for (const path of files) await measureFile(path);

async function measureFile(path: string): Promise<void> {
  const text = JSON.stringify({
    ...(JSON.parse(readFileSync(path, 'utf8')) as object),
    truncation: null,
    padding: null,
  });
  const facts = parseTokenizerJson(text, path);
  const native = tokenizers.Tokenizer.fromString(text);
  const pieces = `${facts.vocabularySize.toLocaleString('en')} pieces`;
  const kind = kindOf(facts);
  const leastRatio = LEAST_RATIO[kind];
  const name = `${kind}, ${pieces}, ${basename(path) === 'tokenizer.json' ? basename(dirname(path)) : basename(path, '.json')}`;
  const sums = { own: 0, native: 0, tokens: 0 };
  for (const [corpus, texts] of Object.entries(corpora)) {
    const ours = makeTokenizer(facts, { hash: '', maxTokens: Number.MAX_SAFE_INTEGER });
    const first = secondsOf(() => encodeAll(ours, texts));
    await checkIds(ours, native, texts);
    const tokens = encodeAll(ours, texts);
    const own = least(await timesOf(async () => void encodeAll(ours, texts)));
    const theirs = least(await timesOf(async () => void (await native.encodeBatch([...texts]))));
    sums.own += own;
    sums.native += theirs;
    sums.tokens += tokens;
    const [rate, firstRate, nativeRate] = [own, first, theirs].map((seconds) => tokens / seconds / 1e6);
    console.log(
      `${name}: ${corpus}, ${texts.length} texts, ${tokens} tokens: ${rate!.toFixed(2)} Mtok/s, first ` +
        `${firstRate!.toFixed(2)}, package ${nativeRate!.toFixed(2)}, ratio ${(theirs / own).toFixed(1)}`,
    );
  }
  const ratio = Math.round((sums.native / sums.own) * 10) / 10;
  const bar: Bar | undefined =
    facts.vocabularySize < REAL_PIECES || leastRatio === undefined
      ? undefined
      : { figure: 'ratio', at_least: leastRatio };
  const rateOf = (seconds: number): number => Math.round((sums.tokens / seconds / 1e6) * 100) / 100;
  const row = record({
    bench: 'tokenizer-kinds',
    case: `${name}: three corpora, processor time of one core`,
    figures: { mtokens_per_s: rateOf(sums.own), package_mtokens_per_s: rateOf(sums.native), ratio },
    ...(bar === undefined ? {} : { bar }),
  });
  console.log(JSON.stringify(row));
}

function kindOf(facts: TokenizerFacts): keyof typeof LEAST_RATIO {
  return facts.kind === 'BPE' ? `BPE of ${facts.words.spelling}` : facts.kind;
}

function encodeAll(tokenizer: Tokenizer, texts: readonly string[]): number {
  let tokens = 0;
  for (const text of texts) tokens += tokenizer.encode(text).ids.length;
  return tokens;
}

async function checkIds(
  ours: Tokenizer,
  native: InstanceType<typeof tokenizers.Tokenizer>,
  texts: readonly string[],
): Promise<void> {
  const expected = await native.encodeBatch([...texts]);
  for (const [at, text] of texts.entries())
    if (String(ours.encode(text).ids) !== String(expected[at]!.getIds()))
      throw new Error(`other ids than the official package for ${JSON.stringify(text)}`);
}

/** Processor time of this process, all its threads. */
function secondsOf(run: () => void): number {
  const start = process.cpuUsage();
  run();
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1e6;
}

async function timesOf(run: () => Promise<void>): Promise<readonly number[]> {
  const times: number[] = [];
  for (let pass = 0; pass < passes; pass++) {
    const start = process.cpuUsage();
    await run();
    const { user, system } = process.cpuUsage(start);
    times.push((user + system) / 1e6);
  }
  return times;
}

function least(times: readonly number[]): number {
  return Math.min(...times);
}

function readCorpora(): Readonly<Record<string, readonly string[]>> {
  const lines = readLines(join(ROOT, 'node_modules'));
  const limit = isQuick ? 300 : 20_000;
  const fixture = JSON.parse(readFileSync(join(ROOT, 'libs/models/fixtures/texts.json'), 'utf8')) as string[];
  const languages = [...fixture, ...readMessages(join(ROOT, 'node_modules/@bull-board/ui/dist/static/locales'))];
  return {
    prose: joinLines(lines.filter(isProse), 400).slice(0, limit),
    Markdown: lines.slice(0, limit),
    languages: languages.slice(0, limit),
  };
}

/** Distinct lines of the Markdown and text files of all packages, in a fixed order. */
function readLines(folder: string): readonly string[] {
  const found = new Set<string>();
  for (const path of readdirSync(folder, { recursive: true, encoding: 'utf8' }).sort()) {
    if (!/\.(md|txt)$/i.test(path) || /^@shoal|(^|\/)\./.test(path)) continue;
    for (const line of readText(join(folder, path)).split('\n')) if (line.length >= 20) found.add(line);
  }
  return [...found];
}

/** What an interface says in twelve languages. */
function readMessages(folder: string): readonly string[] {
  return readdirSync(folder)
    .sort()
    .flatMap((name) => textsIn(JSON.parse(readText(join(folder, name, 'messages.json')))));
}

function textsIn(value: unknown): readonly string[] {
  if (typeof value === 'string') return [value];
  return typeof value === 'object' && value !== null ? Object.values(value).flatMap(textsIn) : [];
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return ''; // a folder named like a file
  }
}

function isProse(line: string): boolean {
  const letters = line.replaceAll(/[^A-Za-z ]/g, '').length;
  return line.length >= 60 && /^[A-Za-z]/.test(line) && letters > 0.94 * line.length;
}

/** Lines put together until a text has `chars` characters. */
function joinLines(parts: readonly string[], chars: number): readonly string[] {
  const texts: string[] = [];
  let text = '';
  for (const part of parts) {
    text = text === '' ? part : `${text} ${part}`;
    if (text.length < chars) continue;
    texts.push(text);
    text = '';
  }
  return texts;
}
