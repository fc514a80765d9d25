// Any file into records. How each form is cut into them is the business of line-records.ts, csv-records.ts and
// markdown-records.ts (of Parquet, which is no stream, parquet-records.ts); whether a bad one ends the run is the caller's decision. Never looks at the queue or the model.

import { csvRecords } from './csv-records.ts';
import { arrayRecords, lineRecords } from '@shoal/worker/files/line-records';
import { clip } from '@shoal/worker/files/clip';
import {
  placeIn,
  unitOf,
  type BadRecord,
  type Found,
  type RecordOptions,
  type TextRecord,
} from '@shoal/worker/files/record';

/**
 * The records of one file. Throws INPUT_INVALID when nothing of the file can be read: a header without the text field.
 */
export function readRecords(
  chunks: AsyncIterable<Buffer>,
  options: RecordOptions,
): AsyncGenerator<TextRecord | BadRecord> {
  return numbered(foundIn(chunks, options), options);
}

/** Records with their places in the whole input. */
export async function* numbered(
  records: AsyncGenerator<Found>,
  { firstIndex, name: file, format, notes }: RecordOptions,
): AsyncGenerator<TextRecord | BadRecord> {
  let index = firstIndex;
  const unit = unitOf(format);
  const place = unit === 'line' ? {} : { unit };
  for await (const found of records) {
    yield 'text' in found
      ? { index, id: found.id, text: clip(found.text, notes), file, line: found.line, ...place }
      : { index, file, line: found.line, ...place, problem: `${placeIn(file, found.line, unit)}: ${found.problem}` };
    index++;
  }
}

function foundIn(chunks: AsyncIterable<Buffer>, options: RecordOptions): AsyncGenerator<Found> {
  switch (options.format) {
    case 'text':
    case 'jsonl':
      return lineRecords(chunks, options);
    case 'json':
      return arrayRecords(chunks, options);
    case 'csv':
      return csvRecords(chunks, options);
    case 'markdown':
      return markdownFound(chunks, options);
    case 'parquet':
      throw new Error('Parquet is read from a file (parquet-records.ts), and not from a stream');
  }
}

/** The parser of Markdown is a quarter of what this command would load, and is loaded for Markdown alone. */
async function* markdownFound(chunks: AsyncIterable<Buffer>, options: RecordOptions): AsyncGenerator<Found> {
  const { markdownRecords } = await import('./markdown-records.ts');
  yield* markdownRecords(chunks, options);
}
