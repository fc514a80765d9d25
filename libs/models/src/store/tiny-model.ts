// A BERT encoder with random weights and a small vocabulary, made in memory in about 2 ms, the same bytes for the same
// seed on every machine. For tests and for trying Shoal out without a download; its vectors mean nothing, but texts
// that share words come out nearer to each other than texts that do not.

import { createHash } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { safetensorsHead } from '../graph/safetensors.ts';
import type { Pins } from './model-files.ts';
import { describeModel, expectEmbedder, type StoredEmbedder } from './stored-model.ts';

export interface TinyModelOptions {
  readonly seed: number;
  readonly layers?: number;
  readonly hidden?: number;
  readonly heads?: number;
  readonly positions?: number;
  readonly pooling?: 'mean' | 'cls';
  /** Before every tensor name, as "bert." in some checkpoints. */
  readonly prefix?: string;
  /**
   * Factor on the weights of the feed-forward layers: at 100 some rows have products that fp16 cannot say, at 200 all,
   * while fp32 has room.
   */
  readonly feedForwardScale?: number;
}

interface TinyShape {
  readonly layers: number;
  readonly hidden: number;
  readonly intermediate: number;
  readonly positions: number;
  readonly vocabulary: number;
}

export interface TinyModelFiles {
  readonly contents: ReadonlyMap<string, Uint8Array>;
  readonly pins: Pins;
}

const WORDS = `the of and to in a is that for it as was with be by on not he his but at are this have from or had an
they which one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such our man
me even most made after also well many must before back see through way where get much go work world text batch queue
model vector token cat dog house water tree red blue`;

export function tinyModelFiles(options: TinyModelOptions): TinyModelFiles {
  const {
    layers = 2,
    hidden = 32,
    heads = 2,
    positions = 512,
    pooling = 'mean',
    prefix = '',
    seed,
    feedForwardScale = 1,
  } = options;
  const vocabulary = tinyVocabulary();
  const shape = { layers, hidden, intermediate: 2 * hidden, positions, vocabulary: vocabulary.length };
  const contents = new Map<string, Uint8Array>([
    ['config.json', json(tinyConfig(shape, heads))],
    [
      '1_Pooling/config.json',
      json({
        word_embedding_dimension: hidden,
        pooling_mode_cls_token: pooling === 'cls',
        pooling_mode_mean_tokens: pooling === 'mean',
      }),
    ],
    ['sentence_bert_config.json', json({ max_seq_length: Math.min(256, positions), do_lower_case: false })],
    ['tokenizer.json', json(tinyTokenizer(vocabulary))],
    [
      'model.safetensors',
      safetensorsBytes(
        tinyTensors(shape).map((tensor) => ({ ...tensor, name: prefix + tensor.name })),
        { seed, feedForwardScale },
      ),
    ],
  ]);
  return {
    contents,
    pins: Object.fromEntries(
      [...contents].map(([path, bytes]) => [path, { bytes: bytes.length, sha256: sha256(bytes) }]),
    ),
  };
}

function tinyConfig({ layers, hidden, intermediate, positions, vocabulary }: TinyShape, heads: number): object {
  return {
    model_type: 'bert',
    hidden_act: 'gelu',
    hidden_size: hidden,
    intermediate_size: intermediate,
    layer_norm_eps: 1e-12,
    max_position_embeddings: positions,
    num_attention_heads: heads,
    num_hidden_layers: layers,
    type_vocab_size: 2,
    vocab_size: vocabulary,
  };
}

/** Writes the files of such a model into `folder`, which is created. The result opens like any stored model. */
export async function writeTinyModel(
  folder: string,
  options: TinyModelOptions & { readonly name?: string },
): Promise<StoredEmbedder> {
  const { contents, pins } = tinyModelFiles(options);
  for (const [path, bytes] of contents) {
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await writeFile(join(folder, path), bytes);
  }
  const { name = 'tiny', ...rest } = options;
  const model = await describeModel({
    name,
    folder,
    weightsSha256: pins['model.safetensors']!.sha256,
    licence: 'Apache-2.0',
    prompts: { query: 'query: ', passage: 'passage: ' },
    ...rest,
  });
  return expectEmbedder(model);
}

/** Special tokens, every printable ASCII character at the start and inside of words, frequent words and endings. */
function tinyVocabulary(): readonly string[] {
  const chars = Array.from({ length: 94 }, (_, at) => String.fromCharCode(33 + at)).filter(
    (char) => !/[A-Z]/.test(char),
  );
  const inside = chars
    .filter((char) => /[a-z0-9]/.test(char))
    .concat('s', 'ed', 'ing', 'er', 'ly', 'tion', 'ment', 'able');
  return [
    '[PAD]',
    '[UNK]',
    '[CLS]',
    '[SEP]',
    '[MASK]',
    ...new Set([...chars, ...inside.map((piece) => `##${piece}`), ...WORDS.split(/\s+/), '中', '文', 'é']),
  ];
}

function json(value: unknown): Uint8Array {
  return Buffer.from(JSON.stringify(value, null, 1));
}

function part(kind: string, name: string): unknown {
  return { [kind]: { id: name, type_id: 0 } };
}

function tinyTokenizer(vocabulary: readonly string[]): unknown {
  const id = (token: string): number => vocabulary.indexOf(token);
  const special = (token: string): unknown => ({ [token]: { id: token, ids: [id(token)], tokens: [token] } });
  const addedTokens = vocabulary.slice(0, 5).map((content) => ({
    id: id(content),
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  }));
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: addedTokens,
    normalizer: {
      type: 'BertNormalizer',
      clean_text: true,
      handle_chinese_chars: true,
      strip_accents: null,
      lowercase: true,
    },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: {
      type: 'TemplateProcessing',
      single: [part('SpecialToken', '[CLS]'), part('Sequence', 'A'), part('SpecialToken', '[SEP]')],
      pair: [
        part('SpecialToken', '[CLS]'),
        part('Sequence', 'A'),
        part('SpecialToken', '[SEP]'),
        part('Sequence', 'B'),
        part('SpecialToken', '[SEP]'),
      ],
      special_tokens: Object.assign({}, special('[CLS]'), special('[SEP]')),
    },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      type: 'WordPiece',
      unk_token: '[UNK]',
      continuing_subword_prefix: '##',
      max_input_chars_per_word: 100,
      vocab: Object.fromEntries(vocabulary.map((token, at) => [token, at])),
    },
  };
}

interface TensorPlan {
  readonly name: string;
  readonly dims: readonly number[];
}

function linear(name: string, outputs: number, inputs: number): TensorPlan[] {
  return [
    { name: `${name}.weight`, dims: [outputs, inputs] },
    { name: `${name}.bias`, dims: [outputs] },
  ];
}

function tinyTensors(shape: TinyShape): readonly TensorPlan[] {
  const { layers, hidden, intermediate, positions, vocabulary } = shape;
  const norm = (name: string): TensorPlan[] => [
    { name: `${name}.weight`, dims: [hidden] },
    { name: `${name}.bias`, dims: [hidden] },
  ];
  const layer = (from: string): TensorPlan[] => [
    ...['query', 'key', 'value'].flatMap((role) => linear(`${from}.attention.self.${role}`, hidden, hidden)),
    ...linear(`${from}.attention.output.dense`, hidden, hidden),
    ...norm(`${from}.attention.output.LayerNorm`),
    ...linear(`${from}.intermediate.dense`, intermediate, hidden),
    ...linear(`${from}.output.dense`, hidden, intermediate),
    ...norm(`${from}.output.LayerNorm`),
  ];
  return [
    { name: 'embeddings.word_embeddings.weight', dims: [vocabulary, hidden] },
    { name: 'embeddings.position_embeddings.weight', dims: [positions, hidden] },
    { name: 'embeddings.token_type_embeddings.weight', dims: [2, hidden] },
    ...norm('embeddings.LayerNorm'),
    ...Array.from({ length: layers }, (_, at) => layer(`encoder.layer.${at}`)).flat(),
  ];
}

function safetensorsBytes(tensors: readonly TensorPlan[], values: TinyValues): Uint8Array {
  const head = safetensorsHead(tensors.map(({ name, dims }) => ({ name, dtype: 'F32', shape: dims })));
  const count = tensors.reduce((sum, { dims }) => sum + dims.reduce((product, size) => product * size, 1), 0);
  return Buffer.concat([head, tinyValues(tensors, count, values)]);
}

type TinyValues = Required<Pick<TinyModelOptions, 'seed' | 'feedForwardScale'>>;

/**
 * Positions and token types weigh little, so that a vector follows from the words; LayerNorm begins as the identity.
 */
function tinyValues(tensors: readonly TensorPlan[], count: number, { seed, feedForwardScale }: TinyValues): Uint8Array {
  const values = new Float32Array(count);
  const random = randomNumbers(seed);
  let at = 0;
  for (const { name, dims } of tensors) {
    const [scale, centre] = name.includes('LayerNorm')
      ? [0.1, name.endsWith('weight') ? 1 : 0]
      : /position|token_type/.test(name)
        ? [0.1, 0]
        : [isFeedForward(name) ? 0.5 * feedForwardScale : 0.5, 0];
    const end = at + dims.reduce((product, size) => product * size, 1);
    for (; at < end; at++) values[at] = centre + scale * random();
  }
  return new Uint8Array(values.buffer);
}

function isFeedForward(name: string): boolean {
  return /layer\.\d+\.(?:intermediate|output)\.dense\.weight$/.test(name);
}

/** From -1 to 1, by integer arithmetic alone (mulberry32), so that every machine makes the same model. */
function randomNumbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 31 - 1;
  };
}

function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
