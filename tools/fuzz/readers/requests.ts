// What others ask for in JSON: the data of a job as plain BullMQ brings it, and bodies of HTTP requests. What is
// accepted has the texts, rows and candidates that JSON.parse finds in it, every one and in order.

import { isShoalError, parseJob, parseRerankJob, parseSimilarityJob, SIMILARITY_KINDS } from '@shoal/contract';
import { parseEmbeddingsRequest, type ServedModel } from '../../../apps/producer/src/embeddings-request.ts';
import { parseCosine, parseRescore, parseSpread, parseTopK } from '../../../apps/producer/src/similarity-request.ts';
import type { FuzzedReader, Values } from '../fuzzed-reader.ts';

const common = { kind: 'text', extension: '.json', variants: 1 } as const;
const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));
const vectors = Buffer.from(Float32Array.of(1, 0, 0, 1).buffer).toString('base64');

type Fields = Readonly<Record<string, unknown>>;

/** BullMQ parses it before us; what is no JSON never comes. */
function parsed(bytes: Buffer): Fields | undefined {
  try {
    const value: unknown = JSON.parse(bytes.toString());
    return typeof value === 'object' && value !== null ? (value as Fields) : undefined;
  } catch {
    return undefined;
  }
}

/** As our reader has them, whatever their order in the file. */
function inOrder({ form, rows, tokens, tokenizer }: Fields = {}): Fields {
  return { form, rows, tokens, tokenizer };
}

export const jobReader: FuzzedReader = {
  ...common,
  name: 'job',
  codes: ['JOB_INVALID', 'JOB_VERSION_UNKNOWN'],
  seeds: async () => [
    json({ v: 1, texts: ['hello', ''], truncate: 'end', class: 'interactive', tenant: 'a', output: { dtype: 'f16' } }),
    json({
      v: 1,
      input: { form: 'tokens', rows: 3, tokens: 40, tokenizer: '0123456789abcdef' },
      reply: '{shoal}:reply:a',
      prompt: 'query',
    }),
    json({ v: 1, texts: ['one'], fingerprint: '7a46bcc903f08498', deadline: 2_000_000_000_000, resultTtlMs: 60_000 }),
  ],
  read: async (bytes) => {
    const data = parsed(bytes);
    if (data === undefined) return ['nothing'];
    const { input, rows, truncate, output } = parseJob('a~1', 'embed', data);
    return [JSON.stringify(input.form === 'inline' ? input.texts : input), rows, truncate, output.dtype];
  },
  readAgain: (bytes) => {
    const data = parsed(bytes);
    if (data === undefined) return ['nothing'];
    const { texts, input, truncate, output } = data as Readonly<Record<string, Fields | undefined>>;
    const rows = Array.isArray(texts) ? texts.length : Number(input?.['rows']);
    const asked = Array.isArray(texts) ? texts : inOrder(input);
    return [JSON.stringify(asked), rows, String(truncate ?? 'end'), String(output?.['dtype'] ?? 'f32')];
  },
};

export const rerankJobReader: FuzzedReader = {
  ...common,
  name: 'rerank job',
  codes: ['JOB_INVALID', 'JOB_VERSION_UNKNOWN'],
  seeds: async () => [
    json({ v: 2, query: 'hello', texts: ['one', ''], truncate: 'error', class: 'bulk', tenant: 'a' }),
    json({ v: 2, input: { form: 'tokens', rows: 3, tokens: 40, tokenizer: '0123456789abcdef' }, truncate: 'end' }),
    json({ v: 2, input: { form: 'texts', rows: 256 }, fingerprint: '830217e068312bfd', reply: '{shoal}:reply:a' }),
  ],
  read: async (bytes) => {
    const data = parsed(bytes);
    if (data === undefined) return ['nothing'];
    const { input, rows, truncate } = parseRerankJob('a~1', 'rerank', data);
    return [JSON.stringify(input.form === 'inline' ? [input.query, ...input.texts] : input), rows, truncate];
  },
  readAgain: (bytes) => {
    const data = parsed(bytes);
    if (data === undefined) return ['nothing'];
    const { query, texts, input, truncate } = data as Readonly<Record<string, Fields | undefined>>;
    const asked = Array.isArray(texts) ? [query, ...(texts as readonly unknown[])] : inOrder(input);
    const rows = Array.isArray(texts) ? texts.length : Number(input?.['rows']);
    return [JSON.stringify(asked), rows, String(truncate ?? 'end')];
  },
};

/** Every file as each kind of job: what one kind takes, the others refuse. */
export const similarityJobReader: FuzzedReader = {
  ...common,
  name: 'similarity job',
  codes: [],
  seeds: async () => [
    json({ v: 1, collection: 'docs@3', queries: { vectors, dims: 2 }, k: 10, metric: 'dot' }),
    json({
      v: 1,
      collection: 'docs@3',
      queries: { vectors, dims: 2 },
      candidates: [[1, 2], ['18446744073709551615']],
      k: 2,
    }),
    json({ v: 1, queries: { key: { rows: 2, dims: 2 } }, against: { key: { rows: 1, dims: 2 } }, metric: 'l2' }),
    json({ v: 1, graph: 'links', seeds: [[7], [1, [2, 0.5]]], k: 10, steps: 3, decay: 0.5, threshold: 0 }),
  ],
  read: async (bytes) => {
    const data = parsed(bytes);
    for (const kind of SIMILARITY_KINDS) {
      try {
        parseSimilarityJob('a~1', kind, data);
      } catch (error) {
        if (!isShoalError(error) || error.message.length > 100_000) throw error;
      }
    }
    return ['looked at'];
  },
  readAgain: () => ['looked at'],
};

const MODEL: ServedModel = {
  name: 'minilm',
  revision: '53aa51172d14',
  dims: 384,
  vocabularySize: 30_522,
  rowEnds: { first: 101, last: 102 },
  tokenRows: 'whole',
  truncate: 'error',
  prompts: { query: '', passage: '' },
  isNormalized: true,
};

/** A refusal is one of OpenAI's errors with a status of 400 to 499; anything else is thrown on. */
function answered(work: () => Values): Values {
  try {
    return work();
  } catch (error) {
    const { name, facts, message } = error as Error & { readonly facts?: { readonly status: number } };
    const isRefusal = name === 'Problem' && facts !== undefined && facts.status >= 400 && facts.status < 500;
    if (!isRefusal || message.length > 1_200) throw error;
    return ['refused'];
  }
}

export const embeddingsReader: FuzzedReader = {
  ...common,
  name: 'embeddings request',
  codes: [],
  seeds: async () => [
    json({ model: 'minilm', input: 'how does a worker renew its leases' }),
    json({
      model: 'minilm',
      input: ['one', '漢字', '🙂'],
      encoding_format: 'base64',
      dimensions: 128,
      user: 'somebody',
    }),
    json({
      model: 'minilm@53aa51172d14',
      input: [
        [101, 7592, 102],
        [101, 102],
      ],
      truncate: 'end',
    }),
  ],
  read: async (bytes) =>
    answered(() => {
      const { input, encoding } = parseEmbeddingsRequest(parsed(bytes), MODEL);
      return [JSON.stringify(input.kind === 'texts' ? input.texts : input.rows), encoding];
    }),
  readAgain: (bytes) => {
    const data = parsed(bytes);
    const input = data?.['input'];
    const isRow = Array.isArray(input) && typeof input[0] === 'number';
    const asked = typeof input === 'string' || isRow ? [input] : input;
    // what it may refuse is not for this reader to say; what it takes is taken whole
    return refuses(bytes) ? ['refused'] : [JSON.stringify(asked), String(data?.['encoding_format'] ?? 'float')];
  },
};

function refuses(bytes: Buffer): boolean {
  return answered(() => [parseEmbeddingsRequest(parsed(bytes), MODEL).encoding])[0] === 'refused';
}

export const searchReader: FuzzedReader = {
  ...common,
  name: 'search request',
  codes: [],
  variants: 4,
  seeds: async () => [
    json({
      collection: 'docs',
      queries: ['one', 'two'],
      k: 3,
      metric: 'cosine',
      candidates: [[1, 2], ['18446744073709551615']],
    }),
    json({
      queries: [
        [1, 0.5],
        [0, 1],
      ],
      against: [[1, 1]],
      k: 3,
    }),
    json({ graph: 'links', seeds: [[7], [[1, 0.5]]], k: 3, steps: 3, decay: 0.5, threshold: 0.1 }),
  ],
  read: async (bytes, _path, variant) => {
    answered(() => [
      JSON.stringify(Object.keys([parseTopK, parseRescore, parseCosine, parseSpread][variant]!(parsed(bytes), MODEL))),
    ]);
    return ['answered'];
  },
  readAgain: () => ['answered'],
};
