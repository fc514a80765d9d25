// The job formats as JSON Schema, for producers in any language: docs/jobs.schema.json is what this says, and a test
// holds the two together. Sizes in bytes and the numbers inside base64 are beyond JSON Schema; workers check them.

import { z } from 'zod';
import { EMBED_DATA } from './embed-job.ts';
import { MAX_META_BYTES } from './job-terms.ts';
import type { EmbedReturn } from './embed-job.ts';
import { PART_DATA } from './part.ts';
import { RERANK_DATA } from './rerank-job.ts';
import { SIMILARITY_KINDS, similarityData, type SimilarityReturn } from './similarity-job.ts';

const count = z.int().min(0);
const handedOver = z.looseObject({ reason: z.string(), peakBytes: z.number().optional() });
const common = {
  v: z.literal(1),
  key: z.string().describe('Where the result lies (SHL1).'),
  rows: count,
  dims: count,
  device: z.string(),
  splits: count,
  handedOver: handedOver.optional().describe('The job went through the CPU lane: why, an error code.'),
  ms: z.looseObject({ queued: z.number(), run: z.number() }),
  meta: z.record(z.string(), z.unknown()).optional().describe('As the job had it.'),
};
const modelReturn = z.looseObject({
  ...common,
  model: z.string().describe('name@revision'),
  dtype: z.enum(['f32', 'f16', 'i8', 'binary']),
  normalized: z.literal(false).optional().describe('Vectors have lengths of their own.'),
  precision: z.string(),
  tokens: count,
  truncated: count.describe('Rows that were cut at the model’s length.'),
  vectors: z.base64().optional().describe('With returnVectors: the body of the result, rows in the form asked for.'),
  scores: z.array(z.number()).optional().describe('With returnScores: of each text of a rerank job, in order.'),
});
const similarityReturn = z.looseObject({
  ...common,
  kind: z.enum(SIMILARITY_KINDS),
  collection: z.string().optional().describe('name@version that was searched.'),
  model: z.string().optional().describe('name@revision of what made the rows of the collection.'),
  dtype: z.enum(['f32', 'ranking']),
  fellBack: z.string().optional(),
});
const reply = z.looseObject({
  v: z.literal(1),
  queue: z.string(),
  completed: z.array(z.string()).optional(),
  failed: z.array(z.string()).optional(),
  reasons: z.record(z.string(), z.string()).optional(),
});

type Same<A, B extends A> = B;
// What workers write is what the page says: neither of these compiles when a field is missing or of another type.
export type Checked = [
  Same<z.input<typeof modelReturn>, Mutable<EmbedReturn>>,
  Same<z.input<typeof similarityReturn>, Mutable<SimilarityReturn>>,
];
type Mutable<T> = { -readonly [Key in keyof T]: T[Key] };

/** JSON Schema 2020-12: one definition for `data` of each kind of job, for return values, and for reply messages. */
export function jobSchema(): Readonly<Record<string, unknown>> {
  return {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    title: 'Jobs of Shoal, versions 1 and 2',
    description:
      'data of jobs by their name, return values of completed jobs, and messages on reply channels. docs/jobs.md ' +
      `explains every field. meta has at most ${MAX_META_BYTES} bytes as JSON.`,
    $defs: {
      embed: defined(EMBED_DATA, 'data of a job named "embed"'),
      rerank: defined(RERANK_DATA, 'data of a job named "rerank"'),
      part: defined(PART_DATA, 'data of a job named "part"'),
      ...Object.fromEntries(
        SIMILARITY_KINDS.map((kind) => [kind, defined(similarityData(kind), `data of a job named "${kind}"`)]),
      ),
      modelReturn: defined(modelReturn, 'returnvalue of embed and rerank jobs; later versions may add fields'),
      similarityReturn: defined(similarityReturn, 'returnvalue of similarity jobs; later versions may add fields'),
      reply: defined(reply, 'message on a reply channel; later versions may add fields'),
    },
  };
}

function defined(schema: z.ZodType, title: string): object {
  const { $schema: _, ...definition } = z.toJSONSchema(schema, {
    io: 'input',
    // contentEncoding says it as the standard does; strict validators refuse a format that they do not know
    override: ({ jsonSchema }) => void (jsonSchema.format === 'base64' && delete jsonSchema.format),
  });
  return { title, ...definition };
}

/** docs/jobs.schema.json */
export function jobSchemaFile(): string {
  return `${JSON.stringify(jobSchema(), null, 2)}\n`;
}
