// Rows of CSV into records: which field is the text and which the id, by the names of the header or by number. A header
// in which the text cannot be found makes the whole file unreadable; a row with too few or too many fields only itself.

import { ShoalError } from '@shoal/contract';
import { withoutCompression } from '@shoal/worker/files/compression';
import { readCsv, type CsvRow } from './csv.ts';
import { placeIn, type Found, type RecordOptions } from '@shoal/worker/files/record';

export async function* csvRecords(chunks: AsyncIterable<Buffer>, options: RecordOptions): AsyncGenerator<Found> {
  const delimiter = options.delimiter ?? (/\.tsv$/i.test(withoutCompression(options.name)) ? '\t' : ',');
  let columns: Columns | undefined;
  for await (const row of readCsv(chunks, { delimiter, maxLineBytes: options.maxLineBytes, notes: options.notes })) {
    if (columns === undefined) {
      if ('problem' in row) throw unreadable(options, row.line, row.problem);
      columns = options.hasHeader === false ? columnsByNumber(row, options) : columnsByName(row, options, delimiter);
      if (options.hasHeader !== false) continue;
    }
    yield 'problem' in row ? row : readRow(row, columns);
  }
}

interface Columns {
  readonly count: number;
  readonly text: number;
  readonly id: number | undefined;
  /** --id-field was given: an empty id is wrong then. */
  readonly needsId: boolean;
}

function readRow({ line, fields }: CsvRow, { count, text, id, needsId }: Columns): Found {
  if (fields.length !== count)
    return {
      line,
      problem:
        `the row has ${fieldCount(fields.length)} and the first row ${count}; a delimiter or line end inside a ` +
        'text needs quotes around the text',
    };
  const name = id === undefined ? undefined : fields[id];
  if (needsId && name === '') return { line, problem: `the field of the id is empty (--id-field)` };
  return { line, id: name === '' ? undefined : name, text: fields[text]! };
}

function columnsByName(header: CsvRow, options: RecordOptions, delimiter: string): Columns {
  const names = header.fields.map((field) => field.trim());
  const find = (name: string, flag: string): number | undefined => {
    const found = names.flatMap((field, at) => (field === name ? [at] : []));
    if (found.length > 1)
      throw unreadable(
        options,
        header.line,
        `the header has ${found.length} fields "${name}"; give the number of one of them with ${flag}: ` +
          `${found.map((at) => at + 1).join(' or ')}`,
      );
    return found[0] ?? numberOf(name, names.length);
  };
  const { textField = 'text', idField } = options;
  const text = find(textField, '--text-field');
  if (text === undefined)
    throw unreadable(
      options,
      header.line,
      `the header has no field "${textField}" (it has ${listed(names)})${otherDelimiter(names, delimiter)}; ` +
        'name the field with --text-field, or say --no-header where the first row is a text',
    );
  const id =
    idField === undefined ? (names.includes('id') ? find('id', '--id-field') : undefined) : find(idField, '--id-field');
  if (idField !== undefined && id === undefined)
    throw unreadable(
      options,
      header.line,
      `the header has no field "${idField}" (it has ${listed(names)}), which --id-field asks for`,
    );
  return { count: names.length, text, id, needsId: idField !== undefined };
}

function columnsByNumber(first: CsvRow, options: RecordOptions): Columns {
  const count = first.fields.length;
  const { textField, idField } = options;
  if (textField === undefined && count > 1)
    throw unreadable(
      options,
      first.line,
      `a row has ${fieldCount(count)} and no header names them; give the number of the text with --text-field`,
    );
  const numbered = (field: string, flag: string): number => {
    const found = numberOf(field, count);
    if (found === undefined)
      throw unreadable(
        options,
        first.line,
        `${flag} is ${JSON.stringify(field)}; without a header it is a number from 1 to ${count}, the fields ` +
          'of the first row',
      );
    return found;
  };
  return {
    count,
    text: numbered(textField ?? '1', '--text-field'),
    id: idField === undefined ? undefined : numbered(idField, '--id-field'),
    needsId: idField !== undefined,
  };
}

function numberOf(field: string, count: number): number | undefined {
  return /^[1-9]\d{0,8}$/.test(field) && Number(field) <= count ? Number(field) - 1 : undefined;
}

function fieldCount(count: number): string {
  return `${count} ${count === 1 ? 'field' : 'fields'}`;
}

function listed(names: readonly string[]): string {
  return `${names
    .slice(0, 8)
    .map((name) => `"${name.slice(0, 40)}"`)
    .join(', ')}${names.length > 8 ? ', …' : ''}`;
}

function otherDelimiter(names: readonly string[], delimiter: string): string {
  const other =
    names.length === 1 ? [';', '\t', '|', ','].find((one) => one !== delimiter && names[0]!.includes(one)) : undefined;
  return other === undefined
    ? ''
    : `; its fields look divided by ${other === '\t' ? 'tabs: --delimiter tab' : `"${other}": --delimiter '${other}'`}`;
}

function unreadable({ name }: RecordOptions, line: number, problem: string): ShoalError<'INPUT_INVALID'> {
  return new ShoalError('INPUT_INVALID', `${placeIn(name, line)}: ${problem}`);
}
