// Rows as lines of text, JSONL or CSV, plain or compressed. Compressed lines are cut into members (gzip) or frames
// (Zstandard) by rows and bytes alone, never by time: every reader takes several for one file, a run that was interrupted
// goes on behind the last whole one, and writes the bytes that a quiet one writes.

import zlib from 'node:zlib';
import type { Compression } from '@shoal/worker/files/compression';
import { csvHeader, csvRow } from './csv.ts';
import { jsonlRow } from './jsonl.ts';
import type { Block, EncodedRows, RowEncoder, RowForm } from '@shoal/worker/files/row-form';
import { encodeVectors } from '@shoal/worker/files/vector-form';

/** Of lines in a member: 4 MB are some 900 rows of 384 dimensions, which a killed run computes again at most. */
const MEMBER_BYTES = 4 * 1024 * 1024;

export function lineEncoder(form: RowForm): RowEncoder {
  const { compression } = form;
  const lineOf = form.format === 'csv' ? csvRow : jsonlRow;
  const head = form.format === 'csv' ? Buffer.from(csvHeader(form)) : Buffer.alloc(0);
  const write = compression === undefined ? (lines: Buffer): Buffer => lines : compressorOf(compression);
  let lines: string[] = [];
  let characters = 0;
  let position = 0;
  const close = (): EncodedRows[] => {
    if (lines.length === 0) return [];
    const done = { bytes: write(Buffer.from(lines.join(''))), rows: lines.length, position };
    [lines, characters] = [[], 0];
    return [done];
  };
  return {
    head: () => (head.length === 0 ? head : write(head)),
    encode: (block: Block) => {
      const { records, dims } = block;
      const { values, width, scales } = encodeVectors(block.vectors, records.length, dims, form.dtype ?? 'f32');
      const done: EncodedRows[] = [];
      for (const [row, record] of records.entries()) {
        const line = lineOf(form, record, {
          values: values.subarray(row * width, (row + 1) * width),
          scale: scales?.[row],
        });
        lines.push(line);
        characters += line.length;
        position = block.position - records.length + row + 1;
        if (compression !== undefined && characters >= MEMBER_BYTES) done.push(...close());
      }
      return compression === undefined ? close() : done;
    },
    flush: close,
    tail: () => Buffer.alloc(0),
  };
}

function compressorOf(compression: Compression): (lines: Buffer) => Buffer {
  return compression === 'gzip' ? (lines) => zlib.gzipSync(lines) : (lines) => zlib.zstdCompressSync(lines);
}
