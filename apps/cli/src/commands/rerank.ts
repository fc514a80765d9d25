// `shoal rerank`: a question and the texts of files, which come out by how well they answer it. The story is that of
// `embed`: check what can be checked, read the texts, open the session, ask. All texts are held, because the last one
// may be the best; nothing is kept of a run that does not end.

import { rename, rm, writeFile } from 'node:fs/promises';
import { ShoalError } from '@shoal/contract';
import { storeFolders, type Settings } from '@shoal/core';
import type { RerankResult } from '@shoal/client';
import { listModels, type StoredModel } from '@shoal/models';
import { refuseFieldsWithoutEffect, withInputs, type Input } from '../input/files.ts';
import { withRecords } from '../input/record-reader.ts';
import { placeIn, type TextFormat, type TextRecord } from '@shoal/worker/files/record';
import { writeFailure } from '@shoal/worker/files/write-failure';
import { checkTarget, type FileTarget } from '../output/target.ts';
import { duration, rowProgress } from '../progress.ts';
import { fetchModel } from '../processes/fetch-model.ts';
import { settingsOf } from '../settings.ts';
import { columnsOf, hasColor, print, say, type Terminal } from '../terminal.ts';
import { wrap } from './try.ts';

export interface RerankFlags {
  /** A setting, which is here as well to tell what was asked for in this call from what is set for all. */
  readonly model?: string;
  /** Undefined: 10 for people, all for programs. */
  readonly top?: number;
  readonly output?: string;
  readonly format?: TextFormat;
  readonly textField?: string;
  readonly idField?: string;
  readonly delimiter?: string;
  /** False: --no-header. */
  readonly header: boolean;
  readonly onError: 'fail' | 'skip';
  readonly truncate: 'end' | 'error';
  readonly tenant?: string;
  /** Milliseconds. */
  readonly waitLimit?: number;
  /** JSON lines on standard output. */
  readonly json?: boolean;
  readonly quiet?: boolean;
}

const SHOWN = 10;
/** Lines of a text that are shown. */
const SHOWN_LINES = 3;

export async function rerank(
  terminal: Terminal,
  question: string,
  files: readonly string[],
  flags: RerankFlags,
): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  const query = question.trim();
  const example = 'for example: shoal rerank "how are stalled jobs recovered" notes.md';
  if (query === '') throw new ShoalError('USAGE', `nothing to weigh the texts against: give a question, ${example}`);
  if (files.length === 0 && terminal.stdin.isTTY === true)
    throw new ShoalError('USAGE', `nothing to rerank: name files, pipe text in, or give - to type it; ${example}`);
  await withInputs(files, flags.format, (inputs) => rerankInputs(terminal, settings, { query, inputs, flags }));
}

async function rerankInputs(
  terminal: Terminal,
  settings: Settings,
  { query, inputs, flags }: { readonly query: string; readonly inputs: readonly Input[]; readonly flags: RerankFlags },
): Promise<void> {
  refuseFieldsWithoutEffect(inputs, flags);
  const target = flags.output === undefined ? undefined : await checkLines(flags.output, inputs);
  const { records, notes } = await withRecords(terminal, inputs, { flags, hasOneColumn: false }, async (reader) => {
    const all: TextRecord[] = [];
    if (!(await reader.isEmpty())) for await (const record of reader.from(0, undefined)) all.push(record);
    return { records: all, notes: reader.notes };
  });
  if (flags.quiet !== true) for (const line of notes.lines) say(terminal, line.replace(/same vector$/, 'same score'));
  const model = await rerankerFor(terminal, settings, flags);
  // a worker that is started here serves this model, whatever is set
  const here = { ...settings, model: model.name };
  const options = { settings: here, isQuiet: flags.quiet === true, waitLimitMs: flags.waitLimit };
  const { withSession } = await import('../processes/session.ts');
  const startedMs = performance.now();
  const result =
    records.length === 0
      ? { ranked: [], scores: new Float32Array(), model: `${model.name}@${model.revision}`, truncated: 0 }
      : await withSession(terminal, { ...options, model }, async ({ client, signal, noteProgress }) => {
          const bar = rowProgress(terminal, flags.quiet !== true);
          try {
            return await client.rerank({
              query,
              documents: records.map(({ text }) => text),
              truncate: flags.truncate,
              signal,
              onProgress: (done) => {
                noteProgress();
                bar.update(done, records.length);
              },
              ...(flags.tenant === undefined ? {} : { tenant: flags.tenant }),
            });
          } finally {
            bar.stop();
          }
        });
  await tell(terminal, { records, result, target, flags, seconds: (performance.now() - startedMs) / 1_000 });
}

/** The model that was asked for, or the only reranker that is stored; never one that gives vectors. */
async function rerankerFor(terminal: Terminal, settings: Settings, flags: RerankFlags): Promise<StoredModel> {
  const options = { settings, isQuiet: flags.quiet === true, waitLimitMs: flags.waitLimit };
  const models = await listModels(storeFolders(settings, terminal.environment));
  const rerankers = models.filter(({ kind, isStored }) => kind === 'reranker' && isStored);
  const [only, ...others] = rerankers;
  const isAsked = flags.model !== undefined || terminal.environment['SHOAL_MODEL'] !== undefined;
  const isEmbedder = models.some(({ name, kind }) => name === settings.model && kind === 'embedder');
  if (!isAsked && isEmbedder && only !== undefined && others.length === 0) {
    if (flags.quiet !== true)
      say(terminal, `by ${only.name}, the only reranker that is stored (--model names another)`);
    return fetchModel(terminal, only.name, options);
  }
  if (!isEmbedder) {
    const model = await fetchModel(terminal, settings.model, options);
    if (model.kind === 'reranker') return model;
  }
  const there =
    rerankers.length === 0
      ? 'none is stored yet; --model ORG/NAME fetches one, for example cross-encoder/ms-marco-MiniLM-L6-v2'
      : `--model names one; stored ${others.length === 0 ? 'is' : 'are'} ${rerankers.map(({ name }) => name).join(', ')}`;
  throw new ShoalError(
    'USAGE',
    `the model ${settings.model} gives vectors and no scores, and reranking needs a reranker (a cross-encoder): ${there}`,
    { model: settings.model },
  );
}

/** Looked at before anything is read. */
async function checkLines(output: string, inputs: Parameters<typeof checkTarget>[1]): Promise<FileTarget | undefined> {
  const target = await checkTarget(output, inputs);
  if (target.kind === 'stdout') return undefined;
  if (target.kind !== 'file') throw new ShoalError('USAGE', `the output ${output} is a device or a pipe; name a file`);
  if (!output.endsWith('.jsonl'))
    throw new ShoalError(
      'USAGE',
      `the output ${output} is not called .jsonl, which is the one form that it is written in`,
    );
  return target;
}

interface Told {
  readonly records: readonly TextRecord[];
  readonly result: Pick<RerankResult, 'ranked' | 'scores' | 'model' | 'truncated'>;
  readonly target: FileTarget | undefined;
  readonly flags: RerankFlags;
  readonly seconds: number;
}

async function tell(terminal: Terminal, { records, result, target, flags, seconds }: Told): Promise<void> {
  const { ranked, scores, model, truncated } = result;
  const isForPrograms = flags.json === true || flags.output !== undefined;
  const shown = ranked.slice(0, flags.top ?? (isForPrograms ? ranked.length : SHOWN));
  if (isForPrograms) {
    const lines = shown.map((index, at) => lineOf(records[index]!, at + 1, scores[index]!)).join('');
    if (target === undefined) await print(terminal, lines);
    else await writeWhole(target, lines);
  } else {
    const [columns, isColored] = [columnsOf(terminal), hasColor(terminal)];
    const passages = shown.map((index, at) => passageOf(records[index]!, at + 1, scores[index]!, columns, isColored));
    await print(terminal, passages.join('\n'));
  }
  if (flags.quiet === true) return;
  const counts = `${ranked.length.toLocaleString('en')} ${ranked.length === 1 ? 'text' : 'texts'}`;
  const best = shown.length < ranked.length ? `, the best ${shown.length} are shown` : '';
  const cut = truncated === undefined || truncated === 0 ? '' : `, ${truncated} cut at the longest row of the model`;
  say(
    terminal,
    `${counts} by ${model} in ${duration(seconds)}${best}${cut}${target === undefined ? '' : ` → ${target.name}`}`,
  );
}

/** Without what a record does not have. */
function lineOf({ index, id, file, line, unit = 'line', text }: TextRecord, rank: number, score: number): string {
  return `${JSON.stringify({ rank, score, index, id, file, [unit]: line, text })}\n`;
}

function passageOf(record: TextRecord, rank: number, score: number, columns: number, isColored: boolean): string {
  const { id, file, line, unit, text } = record;
  const place = typeof id === 'string' && line === undefined ? id : placeIn(file, line, unit);
  const named = id === undefined || place === id ? place : `${place}  ${id}`;
  const wrapped = text.split('\n').flatMap((one) => (one.trim() === '' ? [] : wrap(one, columns - 4)));
  const shown = wrapped.length === 0 ? ['(empty)'] : wrapped.slice(0, SHOWN_LINES);
  const lines = shown.map((one) => `   ${one}`);
  const more = wrapped.length > SHOWN_LINES ? '…' : '';
  return `${rank}. ${isColored ? `\u001B[1m${named}\u001B[22m` : named}  (${score.toFixed(4)})\n${lines.join('\n')}${more}\n`;
}

async function writeWhole({ name, path }: FileTarget, lines: string): Promise<void> {
  const temporary = `${path}.${process.pid}.new`;
  try {
    await writeFile(temporary, lines);
    await rename(temporary, path);
  } catch (error) {
    throw writeFailure(name, error);
  } finally {
    await rm(temporary, { force: true });
  }
}
