// How fast texts become token ids on one core: prose (texts of about 90 tokens) and Markdown (single lines), both from
// the packages of this checkout. Before the clock starts every id is compared with the official `tokenizers` package,
// and the ids of the frozen fixture with a recorded hash. Prints the first pass (empty word cache) and the median of
// the others.
//   node --conditions=@shoal/source bench/device/tokenizer.ts [--quick]

import { createHash } from 'node:crypto';
import { readFileSync, readdirSync } from 'node:fs';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { cacheFolder, type Tokenizer } from '@shoal/core';
import { openModel, openTokenizer } from '@shoal/models';
import tokenizers from 'tokenizers';
import { readArguments } from '../rig/arguments.ts';

/**
 * sha256 over the ids of libs/models/fixtures/texts.json, u32 little-endian, minilm, 256 tokens: `tokenizers` 0.23.2
 * gives the same.
 */
const GOLDEN = 'c96d87256faf9aca77db6c761a34859f02f458d3c48384b53e1b69842a18a9e6';

const ROOT = new URL('../../', import.meta.url).pathname;
const { quick: isQuick } = readArguments(import.meta.url, { quick: { type: 'boolean', default: false } });
const passes = isQuick ? 3 : 15;

const model = await openModel('minilm', { cacheDir: cacheFolder(process.env['SHOAL_CACHE_DIR']) });
const tokenizerJson = readFileSync(join(model.folder, 'tokenizer.json'), 'utf8');

checkGolden(await openTokenizer(model));
const lines = readLines(join(ROOT, 'node_modules'));
const corpora = { prose: joinLines(lines.filter(isProse), 400), Markdown: lines };
for (const [name, texts] of Object.entries(corpora)) {
  await checkIds(await openTokenizer(model), texts);
  measure(name, await openTokenizer(model), texts);
}
console.log(`${cpus()[0]?.model}, one core, Node ${process.versions.node}, ${new Date().toISOString().slice(0, 10)}`);

function checkGolden(tokenizer: Tokenizer): void {
  const hash = createHash('sha256');
  const texts = JSON.parse(readFileSync(join(ROOT, 'libs/models/fixtures/texts.json'), 'utf8')) as string[];
  for (const text of texts) hash.update(new Uint8Array(Uint32Array.from(tokenizer.encode(text).ids).buffer));
  const found = hash.digest('hex');
  if (found !== GOLDEN) throw new Error(`the ids of the fixture are not the recorded ones: ${found}`);
}

async function checkIds(tokenizer: Tokenizer, texts: readonly string[]): Promise<void> {
  const reference = tokenizers.Tokenizer.fromString(tokenizerJson);
  reference.disablePadding();
  reference.setTruncation(tokenizer.maxTokens);
  const expected = await reference.encodeBatch([...texts]);
  for (const [at, text] of texts.entries()) {
    if (String(tokenizer.encode(text).ids) !== String(expected[at]!.getIds()))
      throw new Error(`other ids than the official package for ${JSON.stringify(text)}`);
  }
}

function measure(name: string, tokenizer: Tokenizer, texts: readonly string[]): void {
  const rates: number[] = [];
  let tokens = 0;
  for (let pass = 0; pass <= passes; pass++) {
    tokens = 0;
    const start = performance.now();
    for (const text of texts) tokens += tokenizer.encode(text).ids.length;
    rates.push(tokens / (performance.now() - start) / 1_000);
  }
  const [first = 0, ...later] = rates;
  const median = later.toSorted((a, b) => a - b)[later.length >> 1] ?? 0;
  const perText = tokens / texts.length;
  console.log(
    `${name}: ${texts.length} texts, ${perText.toFixed(1)} tokens each: first pass ${first.toFixed(1)}, then ` +
      `${median.toFixed(1)} Mtok/s (${Math.round((median * 1_000) / perText)} k texts/s); all: ` +
      `${later.map((rate) => rate.toFixed(1)).join(' ')}`,
  );
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
    if (text.length >= chars) {
      texts.push(text);
      text = '';
    }
  }
  return texts;
}
