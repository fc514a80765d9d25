// Files as jobs (docs/decisions/parts.md): a part names a range of one file and the object that its rows become. Here is
// what a producer may put into `data` of a job named "part" on the queue parts-<model>, how it is called, and the only
// way from there to a checked part (`parsePart`). What a part has become is told in part-result.ts.

import { createHash } from 'node:crypto';
import { posix } from 'node:path';
import { z } from 'zod';
import {
  checkFields,
  checkVersion,
  invalid,
  secondTerms,
  SUBMITTED_RESULT_TTL_MS,
  termsOf,
  type JobTerms,
} from './job-terms.ts';
import { modelSlug } from './keys.ts';

/** A part is one job: what is lost with a worker, at most, is what lies behind its last checkpoint. */
export const MAX_ROWS_PER_PART = 16_777_216;
export const MAX_PARTS = 100_000;
const MAX_PATH = 4_096;
const VERSION = 2;
const EXAMPLE = '{ "v": 2, "part": { "run": "…", "number": 0, "of": 1, … } }';

/** Runs and fingerprints of parts are digests: the same command asks for the same. */
const hex16 = z.string().regex(/^[0-9a-f]{16}$/, 'must be 16 lower-case hex digits');
const whole = z.int().min(0);
const path = z
  .string()
  .max(MAX_PATH)
  .refine((one) => posix.isAbsolute(one) && posix.normalize(one) === one && !one.includes('\0') && one.isWellFormed(), {
    error: 'must be an absolute path as the workers see it, without "." and ".."',
  });
const bucket = z.string().min(3).max(63);
const key = z.string().min(1).max(1_024);

const fileSource = z.strictObject({
  kind: z.literal('file'),
  path,
  bytes: whole,
  modifiedMs: z.number().min(0).describe('Time of its last change as `stat` has it, epoch milliseconds.'),
});
const s3Source = z.strictObject({
  kind: z.literal('s3'),
  bucket,
  key,
  etag: z.string().min(1).max(128).describe('Without quotes.'),
  bytes: whole,
});
const groupRange = z.strictObject({
  kind: z.literal('groups'),
  from: whole,
  to: whole.describe('Row groups from `from` up to, without, `to`.'),
  firstRow: whole.describe('Which row of the file is the first, from 0.'),
  rows: whole.max(MAX_ROWS_PER_PART),
});
const byteRange = z.strictObject({
  kind: z.literal('bytes'),
  from: whole.describe('0, or behind the end of a line.'),
  to: whole.describe('Behind the end of a line, or the end of the file.'),
  firstLine: z.int().min(1).describe('Number of the first line, from 1.'),
  lines: whole.max(MAX_ROWS_PER_PART),
});
/** A name of a file, without a folder. */
const stem = z
  .string()
  .regex(/^[^/\0.][^/\0]{0,199}$/, 'must be 1 to 200 characters without "/", not beginning with "."');
const field = z.string().min(1).max(256);
const outputForm = {
  stem,
  format: z.literal('parquet'),
  dtype: z.enum(['f32', 'f16', 'i8', 'binary']),
  vectorField: field.optional().describe('Column of the vectors. Default embedding.'),
  carries: z.boolean().optional().describe('true: the other columns of a Parquet file go along. Default false.'),
  hasIds: z
    .boolean()
    .describe('Without `carries`: a column id, which every row has then; else a column index, from 0 in each file.'),
  withText: z.boolean().optional().describe('true: a column with the text. Default false.'),
  withTokens: z
    .boolean()
    .optional()
    .describe(
      'true: columns tokens, of each text with its special ones, and truncated, whether it was cut. Default false.',
    ),
};

const partFields = z.strictObject({
  run: hex16,
  number: whole.max(MAX_PARTS - 1).describe('Which part of the run this is, from 0.'),
  of: z.int().min(1).max(MAX_PARTS).describe('How many parts the run has.'),
  source: z.discriminatedUnion('kind', [fileSource, s3Source]),
  format: z.enum(['parquet', 'jsonl', 'text']),
  range: z.discriminatedUnion('kind', [groupRange, byteRange]),
  textField: field
    .optional()
    .describe('Column or field of the text, of a nested one the names from the top with dots between. Default text.'),
  idField: field
    .optional()
    .describe('Column or field of the id, which has to be there. Default id, where there is one.'),
  onError: z.enum(['fail', 'skip']).describe('Of a row that cannot be read: the part fails, or goes on without it.'),
  output: z.discriminatedUnion('kind', [
    z.strictObject({ kind: z.literal('folder'), folder: path, ...outputForm }),
    z.strictObject({ kind: z.literal('s3'), bucket, prefix: z.string().max(900), ...outputForm }),
  ]),
  model: z.strictObject({
    name: z.string().min(1).max(300).describe('name@revision'),
    truncate: z.enum(['end', 'error']),
    prompt: z.string().min(1).max(128).optional(),
    dimensions: z.int().min(1).max(65_536).optional(),
    normalize: z.boolean().optional(),
  }),
});

const { class: _, reply: __, ...terms } = secondTerms;
const partJob = z.strictObject({ ...terms, fingerprint: hex16, part: partFields });

/** `data`, for the published schema. */
export const PART_DATA = partJob;

/** `data` of a job named "part" as a producer writes it. */
export type PartJobData = z.infer<typeof partJob>;
/** A part of a run, as `data.part` has it. */
export type Part = z.infer<typeof partFields>;
export type PartSource = Part['source'];
export type PartRange = Part['range'];
export type PartOutput = Part['output'];

/** A checked part: made by `parsePart` only. */
export interface PartJob extends JobTerms {
  readonly jobId: string;
  readonly fingerprint: string;
  readonly part: Part;
  /** Rows that it may have: a bad one, or an empty line of JSONL, is none in the end. */
  readonly rows: number;
}

export const PART_JOB = 'part';

/** The lane of those who take parts of this model's. */
export function partsQueue(modelName: string): string {
  return `parts-${modelSlug(modelName)}`;
}

/**
 * The name of a run: first 16 hex digits of sha256 over one line of JSON, `["run",sources,output,options]`. `options`:
 * all that decides which parts there are and what becomes of them, the size of parts and the model among it.
 */
export function runId(facts: {
  readonly sources: readonly PartSource[];
  readonly output: PartOutput;
  readonly options: Readonly<Record<string, unknown>>;
}): string {
  return digest(['run', facts.sources, facts.output, facts.options]);
}

/** The id of the job of a part: part-<run>-<number of five digits>. */
export function partId({ run, number }: Pick<Part, 'run' | 'number'>): string {
  return `part-${run}-${numbered(number)}`;
}

/** What `fingerprint` of the job has to be: first 16 hex digits of sha256 over one line of JSON, `["part",part]`. */
export function partFingerprint(part: Part): string {
  return digest(['part', part]);
}

/** The last name of the object that the rows of a part become, in its folder or behind its prefix. */
export function partName({ number, output }: Pick<Part, 'number' | 'output'>): string {
  return `${output.stem}-${numbered(number)}.${output.format}`;
}

/** The same while the claim with this token writes it. */
export function partTemporary(part: Pick<Part, 'number' | 'output'>, token: string): string {
  return `${partName(part)}.${token.replaceAll(/[^\w-]/g, '-').slice(-80)}`;
}

/** Beside it: how far somebody has come, for whoever goes on. */
export function partCheckpoint(part: Pick<Part, 'number' | 'output'>): string {
  return `${partName(part)}.checkpoint`;
}

function numbered(number: number): string {
  return String(number).padStart(5, '0');
}

/** Keys in their order, so that it does not matter who wrote them. */
function digest(facts: unknown): string {
  const line = JSON.stringify(facts, (_key, value: unknown) =>
    typeof value === 'object' && value !== null && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1)))
      : value,
  );
  return createHash('sha256').update(line).digest('hex').slice(0, 16);
}

export function partRows({ range }: Pick<Part, 'range'>): number {
  return range.kind === 'groups' ? range.rows : range.lines;
}

/** What a producer adds for a part. */
export function partJobData(
  part: Part,
  more: Pick<PartJobData, 'tenant' | 'deadline' | 'resultTtlMs' | 'meta' | 'trace'> = {},
): PartJobData {
  return { v: VERSION, ...more, fingerprint: partFingerprint(part), part };
}

/**
 * Turns what was found on the queue into a part, or throws JOB_INVALID, JOB_VERSION_UNKNOWN or FINGERPRINT_MISMATCH
 * naming every problem at once.
 */
export function parsePart(jobId: string, name: string, data: unknown): PartJob {
  if (name !== PART_JOB)
    throw invalid(jobId, `the job is named "${name.slice(0, 80)}"; this queue takes jobs named "${PART_JOB}"`);
  const checked = checkFields(jobId, partJob, checkVersion(jobId, data, [VERSION], EXAMPLE));
  const { part, fingerprint } = checked;
  const problems = problemsOf(jobId, part, fingerprint);
  if (problems.length > 0) throw invalid(jobId, problems.join('; '));
  const rows = partRows(part);
  return {
    jobId,
    part,
    rows,
    ...termsOf(checked, rows),
    fingerprint,
    class: 'bulk',
    reply: undefined,
    resultTtlMs: checked.resultTtlMs ?? SUBMITTED_RESULT_TTL_MS,
  };
}

/** What no schema says. */
function problemsOf(jobId: string, part: Part, fingerprint: string): string[] {
  const { run, number, of, format, range, output, source } = part;
  const found: [boolean, string][] = [
    [number >= of, `part.number: must be less than part.of, found ${number} of ${of}`],
    [jobId !== partId(part), `its id must be ${partId({ run, number })}`],
    [
      (format === 'parquet') !== (range.kind === 'groups'),
      `part.range: ${format === 'parquet' ? 'a Parquet file is cut into row groups' : `a file of ${format} is cut by bytes`}`,
    ],
    [range.to < range.from, `part.range: it ends at ${range.to}, before it begins at ${range.from}`],
    [
      range.kind === 'bytes' && range.to > source.bytes,
      `part.range: it ends at byte ${range.to} of a file of ${source.bytes}`,
    ],
    [output.carries === true && format !== 'parquet', 'part.output.carries: columns go along from Parquet alone'],
    [
      output.carries === true && output.withText === true,
      'part.output.withText: with "carries" the text is one of the columns that go along',
    ],
    [
      output.carries === true && output.withTokens === true,
      'part.output.withTokens: not beside the columns that go along',
    ],
    [
      fingerprint !== partFingerprint(part),
      `fingerprint: must be ${partFingerprint(part)}, the digest of its part, found ${fingerprint}`,
    ],
  ];
  return found.flatMap(([isWrong, problem]) => (isWrong ? [problem] : []));
}
