// `shoal try`: the whole path of Shoal on text that everybody has: the Markdown of this checkout. Passages go through
// the queue to a worker; their vectors are kept by content, so that the second time only the question is embedded.

import { createInterface } from 'node:readline/promises';
import { fileURLToPath } from 'node:url';
import { join } from 'node:path';
import type { EmbedOptions } from '@shoal/client';
import { ShoalError, modelSlug, promptText, sidePrompt } from '@shoal/contract';
import { cacheFolder, type Settings } from '@shoal/core';
import { expectEmbedder, type StoredModel } from '@shoal/models';
import { duration, rowProgress } from '../progress.ts';
import { readCorpus, type CorpusLimits, type CorpusPassage } from '../search/corpus.ts';
import { topK, type Hit } from '../search/top-k.ts';
import { VectorStore } from '../search/vector-store.ts';
import { fetchModel } from '../processes/fetch-model.ts';
import type { Session } from '../processes/session.ts';
import { refuseOtherVectors } from '../processes/vectors-origin.ts';
import { settingsOf } from '../settings.ts';
import { columnsOf, hasColor, print, say, type Terminal } from '../terminal.ts';

export interface TryFlags {
  readonly top: number;
  readonly all?: boolean;
  /** Milliseconds. */
  readonly waitLimit?: number;
  readonly json?: boolean;
  readonly quiet?: boolean;
}

/** Two cores embed about 7,000 tokens a second (2026-11, DESIGN §10): so many words are read in under a minute. */
const LIMITS: CorpusLimits = { passages: 3_000, words: 150_000 };
const NO_LIMITS: CorpusLimits = { passages: Number.POSITIVE_INFINITY, words: Number.POSITIVE_INFINITY };

export async function tryOut(terminal: Terminal, query: readonly string[], flags: TryFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  const question = query.join(' ').trim();
  const isTyped = terminal.stdin.isTTY === true && terminal.stderr.isTTY === true;
  if (question === '' && !isTyped)
    throw new ShoalError(
      'USAGE',
      'nothing to look for: give a query, for example: shoal try "how are stalled jobs recovered"',
    );
  const passages = await readCorpus(projectRoot(), flags.all === true ? NO_LIMITS : LIMITS);
  const options = { settings, isQuiet: flags.quiet === true, waitLimitMs: flags.waitLimit };
  const model = expectEmbedder(await fetchModel(terminal, settings.model, options));
  if (!options.isQuiet) say(terminal, modelInWords(model));
  const { withSession } = await import('../processes/session.ts');
  await withSession(terminal, { ...options, model }, async (session) => {
    const matrix = await vectorsOf(terminal, session, { passages, settings, flags });
    const search = (text: string): Promise<readonly Hit[]> => nearest(session, matrix, text, flags.top);
    const reply = async (asked: string): Promise<void> =>
      answer(terminal, passages, await search(asked), { flags, query: asked, model });
    if (question === '') await promptLoop(terminal, session, reply);
    else await reply(question);
  });
}

/** Which model answers, and what it wants before a question and before what is searched. */
function modelInWords(model: StoredModel): string {
  const before = (side: 'query' | 'passage'): string => promptText(model, sidePrompt(model, side).prompt) ?? '';
  const sides = [before('query'), before('passage')];
  const [query, passage] = sides.map((text) => (text === '' ? 'nothing' : JSON.stringify(text)));
  return (
    `searching with ${nameOf(model)}` +
    (sides.every((text) => text === '') ? '' : `, which has ${query} before a question and ${passage} before a passage`)
  );
}

function nameOf({ name, revision }: StoredModel): string {
  return `${name}@${revision}`;
}

/** The root of this checkout, seen from apps/cli/src/commands or apps/cli/dist/commands. */
function projectRoot(): string {
  return fileURLToPath(new URL('../../../../', import.meta.url));
}

interface TryRequest {
  readonly passages: readonly CorpusPassage[];
  readonly settings: Settings;
  readonly flags: TryFlags;
}

/** One row per passage. Passages whose vectors are not kept yet are embedded; an interrupted run keeps what it got. */
async function vectorsOf(
  terminal: Terminal,
  session: Session,
  { passages, settings, flags }: TryRequest,
): Promise<Float32Array> {
  const { name, revision, dims } = session.model;
  const kind = session.isTrial ? 'simulated' : 'vectors';
  const store = await VectorStore.open(
    join(cacheFolder(settings.cacheDir, terminal.environment), 'try', `${modelSlug(name)}-${revision}.${kind}`),
    dims,
  );
  const missing = passages.filter((passage) => store.get(passage.key) === undefined);
  try {
    if (missing.length > 0) await embedMissing(terminal, session, { missing, passages, store, flags });
  } finally {
    await store.save(new Set(passages.map((passage) => passage.key)));
  }
  const matrix = new Float32Array(passages.length * dims);
  for (const [row, passage] of passages.entries()) matrix.set(store.get(passage.key) ?? [], row * dims);
  return matrix;
}

interface Missing {
  readonly missing: readonly CorpusPassage[];
  readonly passages: readonly CorpusPassage[];
  readonly store: VectorStore;
  readonly flags: TryFlags;
}

async function embedMissing(
  terminal: Terminal,
  session: Session,
  { missing, passages, store, flags }: Missing,
): Promise<void> {
  const isQuiet = flags.quiet === true;
  const files = new Set(passages.map((passage) => passage.file)).size;
  if (!isQuiet)
    say(
      terminal,
      `embedding ${missing.length.toLocaleString('en')} of ${passages.length.toLocaleString('en')} passages ` +
        `from ${files} Markdown files; their vectors are kept for the next time`,
    );
  const bar = rowProgress(terminal, !isQuiet);
  const startedMs = performance.now();
  try {
    const items = missing.map((passage) => ({ text: passage.embedded, key: passage.key }));
    for await (const block of session.client.embedStream(items, {
      signal: session.signal,
      ...askedFor(session, 'passage'),
    })) {
      if (block.kind === 'skipped') continue;
      session.noteProgress();
      refuseOtherVectors(session, block);
      for (const [row, item] of block.items.entries())
        store.set(item.key, block.vectors.subarray(row * block.dims, (row + 1) * block.dims));
      bar.update(block.first + block.rows, missing.length);
    }
  } finally {
    bar.stop();
  }
  if (!isQuiet) say(terminal, `embedded in ${duration((performance.now() - startedMs) / 1_000)}`);
}

/** The prompt of this side, where the model has one, and vectors of length 1: their dot product is the cosine. */
function askedFor({ model }: Session, side: 'query' | 'passage'): Pick<EmbedOptions<'f32'>, 'prompt' | 'output'> {
  return { ...sidePrompt(model, side), ...(!model.isNormalized && { output: { normalize: true } }) };
}

async function nearest(session: Session, matrix: Float32Array, query: string, k: number): Promise<readonly Hit[]> {
  const embedded = await session.client.embed([query], {
    class: 'interactive',
    ...askedFor(session, 'query'),
    signal: session.signal,
  });
  refuseOtherVectors(session, embedded);
  return topK(matrix, embedded.vectors, k);
}

/** Searches typed in, until an empty line, Ctrl-D or Ctrl-C. */
async function promptLoop(
  terminal: Terminal,
  session: Session,
  search: (query: string) => Promise<void>,
): Promise<void> {
  say(terminal, 'type what you look for; an empty line or Ctrl-D ends');
  const reader = createInterface({ input: terminal.stdin, output: terminal.stderr, prompt: 'search: ' });
  const end = (): void => reader.close();
  reader.on('SIGINT', end); // readline has the terminal, so Ctrl-C comes here and not as a signal
  session.signal.addEventListener('abort', end, { once: true });
  try {
    reader.prompt();
    for await (const line of reader) {
      if (line.trim() === '') break;
      await search(line.trim());
      reader.prompt();
    }
  } finally {
    reader.close();
  }
  session.signal.throwIfAborted();
}

async function answer(
  terminal: Terminal,
  passages: readonly CorpusPassage[],
  hits: readonly Hit[],
  { flags, query, model }: { readonly flags: TryFlags; readonly query: string; readonly model: StoredModel },
): Promise<void> {
  const answers = hits.map(({ row, score }, at) => {
    const { file, headings, text } = passages[row]!;
    return { rank: at + 1, score: Number(score.toFixed(4)), file, heading: headings.join(' › '), passage: text };
  });
  if (flags.json === true)
    await print(terminal, `${JSON.stringify({ model: nameOf(model), query, answers }, null, 1)}\n`);
  else await print(terminal, answers.map((one) => showAnswer(one, columnsOf(terminal), hasColor(terminal))).join('\n'));
}

interface Answer {
  readonly rank: number;
  readonly score: number;
  readonly file: string;
  readonly heading: string;
  readonly passage: string;
}

function showAnswer({ rank, score, file, heading, passage }: Answer, columns: number, isColored: boolean): string {
  const bold = (text: string): string => (isColored ? `\u001B[1m${text}\u001B[22m` : text);
  const lines = passage
    .split('\n')
    .flatMap((line) => wrap(line, columns - 3))
    .map((line) => `   ${line}`);
  return `${rank}. ${bold(file)}${heading === '' ? '' : `  ${heading}`}  (${score.toFixed(3)})\n${lines.join('\n')}\n`;
}

/** Lines of at most `columns` characters, broken between words; what stands before a line's first word is repeated. */
export function wrap(text: string, columns: number): readonly string[] {
  const indent = /^\s*/.exec(text)![0].slice(0, columns / 2);
  const lines: string[] = [];
  let open = '';
  for (const word of text.trim().split(/\s+/)) {
    if (open !== '' && indent.length + open.length + 1 + word.length > columns) {
      lines.push(indent + open);
      open = word;
    } else open = open === '' ? word : `${open} ${word}`;
  }
  return [...lines, indent + open];
}
