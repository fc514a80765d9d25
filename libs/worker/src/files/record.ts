// What every input becomes: records of one text each, with an id and a place, good ones and bad ones in their order.

import type { LineBegin } from './lines.ts';
import type { ReadingNotes } from './reading-notes.ts';

export const TEXT_FORMATS = ['text', 'jsonl', 'json', 'csv', 'markdown', 'parquet'] as const;
export type TextFormat = (typeof TEXT_FORMATS)[number];
export type RecordId = string | number;

export interface TextRecord {
  /** Which record of the whole input this is, from 0; bad ones count, so that a skipped line leaves a gap. */
  readonly index: number;
  readonly id: RecordId | undefined;
  readonly text: string;
  /**
   * Name of its file and line in it, for messages; a passage of Markdown has no line, and its id says where it stands.
   */
  readonly file: string;
  readonly line: number | undefined;
  /** What `line` counts, from 1. Absent: lines. */
  readonly unit?: PlaceUnit;
}

/** What a place in a file is counted in: lines, elements of an array of JSON, rows of Parquet. */
export type PlaceUnit = 'line' | 'element' | 'row';

export function unitOf(format: TextFormat): PlaceUnit {
  return format === 'json' ? 'element' : format === 'parquet' ? 'row' : 'line';
}

export interface BadRecord {
  readonly index: number;
  readonly file: string;
  readonly line: number | undefined;
  readonly unit?: PlaceUnit;
  /** File, line and what is wrong there, for a person. */
  readonly problem: string;
}

export interface RecordOptions {
  readonly format: TextFormat;
  /** Name of the file as it is called in messages. */
  readonly name: string;
  readonly firstIndex: number;
  /** The field that holds the text, by name or, in CSV, by number from 1. Undefined: `text`. */
  readonly textField: string | undefined;
  /** The field that must be there; undefined: `id` where a record has one. */
  readonly idField: string | undefined;
  /** Of CSV. Undefined: a comma, or a tab in a file called .tsv. */
  readonly delimiter?: string | undefined;
  /** Whether the first row of CSV names the fields. */
  readonly hasHeader?: boolean;
  readonly maxLineBytes?: number;
  /** Of lines: the first one that is read, where that is not the file's first. */
  readonly begin?: LineBegin;
  /** Where it is counted what a reader leaves out. */
  readonly notes?: ReadingNotes;
}

/** One record before it is counted. */
export type Found =
  | { readonly line: number | undefined; readonly id: RecordId | undefined; readonly text: string }
  | { readonly line: number | undefined; readonly problem: string };

/** How a later run knows that it reads the same bytes. */
export interface InputIdentity {
  readonly path: string;
  readonly bytes: number;
  readonly modifiedMs: number;
  /** sha256 of the first 64 KiB; of an object its version. */
  readonly head: string;
}

/** How a message calls a place. */
export function placeIn(file: string, line: number | undefined, unit: PlaceUnit = 'line'): string {
  return line === undefined ? file : `${file}, ${unit} ${line}`;
}
