// Rows as CSV by RFC 4180: id or index, text where asked for, embedding. A vector is one field, written as JSON writes a
// list, which DuckDB casts (embedding::FLOAT[]) and json.loads reads.

import { numbersOf, type RowOfLine } from './jsonl.ts';
import type { RowForm } from '@shoal/worker/files/row-form';

/** The first line, with its end. */
export function csvHeader({ hasIds, withText, dtype }: RowForm): string {
  return `${[hasIds ? 'id' : 'index', ...(withText ? ['text'] : []), 'embedding', ...(dtype === 'i8' ? ['embedding_scale'] : [])].join(',')}\n`;
}

/** A row with its line end. A record without an id has an empty one. */
export function csvRow(form: RowForm, record: RowOfLine['record'], { values, scale }: RowOfLine['vector']): string {
  const fields = [
    form.hasIds ? quoted(record.id === undefined ? '' : String(record.id)) : String(record.index),
    ...(form.withText ? [quoted(record.text)] : []),
    `"[${numbersOf(values, form.dtype)}]"`,
    ...(scale === undefined ? [] : [String(scale)]),
  ];
  return `${fields.join(',')}\n`;
}

/** An empty text of a table is written "", so that it is not taken for one that is missing. */
function quoted(text: string): string {
  return text === '' || /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
