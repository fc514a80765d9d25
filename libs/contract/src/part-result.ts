// What a part has become. Its result is the ordinary result key, committed by the ordinary script under the job's lock:
// a header of result-header.ts with flag 16, and behind it one line of JSON in UTF-8 that says which object holds the
// rows (`PartResult`). Done parts of a run are listed in a hash, one field a part; from a full one the manifest of the
// run is made, the same bytes by whoever writes it.

import { crc32 } from 'node:zlib';
import { z } from 'zod';
import { ShoalError } from './errors.ts';
import { invariant } from './invariant.ts';
import { partName, type Part, type PartOutput } from './part.ts';
import type { OutputDtype } from './embed-job.ts';
import {
  RESULT_DTYPES,
  RESULT_FLAG,
  RESULT_HEADER_BYTES,
  RESULT_MAGIC,
  corruptResult,
  decodeResultHeader,
} from './result-header.ts';
import { takenResult } from './result-pointer.ts';

/** Of rows that were left out these many are told with their places; all are counted. */
export const MAX_TOLD_REFUSALS = 100;
/** How long the list of a run is kept after its last part: as long as a result may be. Milliseconds. */
export const RUN_TTL_MS = 30 * 86_400_000;

const whole = z.int().min(0);
const partResult = z.object({
  /** Last name of the object, in the folder or behind the prefix of the part's output. */
  name: z.string().min(1),
  /** Under which name the claim that was committed wrote it. It has the last name once it was renamed. */
  written: z.string().min(1),
  rows: whole,
  dims: z.int().min(1),
  bytes: whole,
  /** Of the whole object, 64 hex digits. */
  sha256: z.string().regex(/^[0-9a-f]{64}$/),
  /** Texts that were cut at the model's length, and tokens in all. */
  truncated: whole,
  tokens: whole,
  /** Rows without a vector (`onError: "skip"`); `first`: up to 100 of them, in order. */
  refused: z.object({ rows: whole, first: z.array(z.object({ line: z.int().min(1), problem: z.string() })) }),
});

/** The pointer of a part: where its rows are, and what became of them. */
export type PartResult = z.infer<typeof partResult>;

/** What is committed at the result key. */
export function encodePartResult(
  result: PartResult,
  facts: { readonly fingerprint: string; readonly dtype: OutputDtype; readonly isSimulated?: boolean },
): Buffer {
  invariant(result.refused.first.length <= MAX_TOLD_REFUSALS, 'a pointer is short');
  const body = Buffer.from(JSON.stringify(result));
  const head = Buffer.alloc(RESULT_HEADER_BYTES);
  const flags =
    RESULT_FLAG.part |
    (result.truncated > 0 ? RESULT_FLAG.truncated : 0) |
    (facts.isSimulated === true ? RESULT_FLAG.simulated : 0);
  head.writeUInt32LE(RESULT_MAGIC, 0);
  head.writeUInt8(1, 4);
  head.writeUInt8(RESULT_DTYPES.indexOf(facts.dtype), 5);
  head.writeUInt16LE(flags, 6);
  head.writeUInt32LE(result.rows, 8);
  head.writeUInt32LE(result.dims, 12);
  head.writeUInt32LE(crc32(body), 16);
  head.write(facts.fingerprint, 20, 8, 'hex');
  return Buffer.concat([head, body]);
}

/** Throws RESULT_TAKEN, or RESULT_CORRUPT for whatever is no pointer of a part. */
export function decodePartResult(bytes: Buffer): PartResult {
  const header = decodeResultHeader(bytes);
  if (header?.isPart !== true) throw corruptResult(`it is not that of a part (${bytes.length} bytes)`);
  if (header.isTaken) throw takenResult();
  const body = bytes.subarray(RESULT_HEADER_BYTES);
  if (crc32(body) !== header.crc32) throw corruptResult('its checksum does not match');
  return partResult.parse(JSON.parse(body.toString()));
}

/** A done part as the hash of its run has it, under the part's number. */
export type RunEntry = Pick<Part, 'source' | 'range'> & { readonly result: PartResult };

export function encodeRunEntry({ source, range }: Pick<Part, 'source' | 'range'>, result: PartResult): string {
  return JSON.stringify({ source, range, result });
}

export function decodeRunEntry(text: string): RunEntry {
  const entry = JSON.parse(text) as RunEntry;
  return { ...entry, result: partResult.parse(entry.result) };
}

/** Last name of the manifest of a run. */
export function manifestName({ stem }: Pick<PartOutput, 'stem'>): string {
  return `${stem}.manifest.json`;
}

/**
 * The manifest of a run whose parts are all done: parts in order, with name, source, range, rows, bytes and sha256.
 * `part`: any of the run. Throws RESULT_EXPIRED where one is missing.
 */
export function manifestOf({ run, of, model, output }: Part, entries: Readonly<Record<string, string>>): string {
  const parts = Array.from({ length: of }, (_, number) => {
    const entry = entries[number];
    if (entry === undefined)
      throw new ShoalError('RESULT_EXPIRED', `run ${run} has no part ${number} in its list; run the command again`);
    const { source, range, result } = decodeRunEntry(entry);
    invariant(result.name === partName({ number, output }), 'a part lies under its own name');
    const { name, rows, bytes, sha256, truncated, tokens, refused } = result;
    return { name, source, range, rows, bytes, sha256, truncated, tokens, refused };
  });
  const sum = (what: (part: (typeof parts)[number]) => number): number =>
    parts.reduce((all, one) => all + what(one), 0);
  const total = {
    parts: of,
    rows: sum(({ rows }) => rows),
    bytes: sum(({ bytes }) => bytes),
    tokens: sum(({ tokens }) => tokens),
    truncated: sum(({ truncated }) => truncated),
    refused: sum(({ refused }) => refused.rows),
  };
  const dims = decodeRunEntry(entries[0]!).result.dims;
  const { format, dtype } = output;
  return `${JSON.stringify({ v: 1, run, model, dims, format, dtype, ...total, list: parts }, null, 1)}\n`;
}
