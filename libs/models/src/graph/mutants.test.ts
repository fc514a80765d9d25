// Each switch of a description turned the wrong way moves some vector of a fixture: a mutant that gives the same vectors
// is a switch that nobody would see set wrongly. Three are no switches but ways to compute (pairs of values that are
// turned, the order of key heads, the side of a bucket); those are turned in the weights. Right vectors differ by less
// than 1e-6.

import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type {
  Activation,
  AngleScaling,
  AttentionPositions,
  EncoderDescription,
} from '../encoder/encoder-description.ts';
import { readDescription } from '../store/stored-model.ts';
import { madeModel, madeTexts, madeVectors } from '../testing/made-models.ts';
import { ReferencePooling } from '../testing/reference-pooling.ts';
import { ReferenceTokenizer } from '../testing/reference-tokenizer.ts';
import { StatesRunner } from '../testing/states-run.ts';
import { useTensors, type NamedTensors } from './named-tensors.ts';

const LEAST_SEEN = 1e-5;
const MOST_RIGHT = 1e-6;

type Change = (encoder: EncoderDescription) => EncoderDescription;
/** Values of a tensor as the mutant has them. */
type Turn = (name: string, values: Float32Array, encoder: EncoderDescription) => Float32Array;
type Mutant = readonly [family: string, what: string, change: Change, turn?: Turn];

const activation =
  (kind: Activation): Change =>
  (encoder) => ({ ...encoder, feedForward: { ...encoder.feedForward, activation: kind } });
const norm =
  (values: Partial<EncoderDescription['norm']>): Change =>
  (encoder) => ({ ...encoder, norm: { ...encoder.norm, ...values } });
const attention =
  (values: Partial<EncoderDescription['attention']>): Change =>
  (encoder) => ({ ...encoder, attention: { ...encoder.attention, ...values } });
const embeddings =
  (values: Partial<EncoderDescription['embeddings']>): Change =>
  (encoder) => ({ ...encoder, embeddings: { ...encoder.embeddings, ...values } });
const names =
  (values: Partial<EncoderDescription['names']>): Change =>
  (encoder) => ({ ...encoder, names: { ...encoder.names, ...values } });
/** Rows of the table from `first`; with a `padId`, those tokens are not counted. */
const places =
  (first: number, padId?: number): Change =>
  (encoder) => {
    if (encoder.positions.kind === 'none') throw new TypeError('it has no table of positions');
    return { ...encoder, positions: { ...encoder.positions, first, padId } };
  };
const windows =
  (turn: (window: number, encoder: EncoderDescription) => number | undefined): Change =>
  (encoder) =>
    attention({
      windows: encoder.attention.windows.map((window) => (window === undefined ? undefined : turn(window, encoder))),
    })(encoder);
const between =
  (attentionPositions: AttentionPositions): Change =>
  (encoder) => ({ ...encoder, attentionPositions });
/** New theta of each layer. */
const thetas =
  (turn: (theta: number, layer: number, all: readonly number[]) => number): Change =>
  (encoder) => {
    if (encoder.attentionPositions.kind !== 'rope') throw new TypeError('nothing is turned in it');
    const all = encoder.attentionPositions.thetas;
    return { ...encoder, attentionPositions: { ...encoder.attentionPositions, thetas: all.map(turn) } };
  };
/** New scaling of each layer. */
const scalings =
  (turn: (scaling: AngleScaling | undefined) => AngleScaling | undefined): Change =>
  (encoder) => {
    if (encoder.attentionPositions.kind !== 'rope') throw new TypeError('nothing is turned in it');
    const { attentionPositions } = encoder;
    return {
      ...encoder,
      attentionPositions: { ...attentionPositions, scalings: attentionPositions.scalings.map(turn) },
    };
  };
const scaledBy = <Kind extends AngleScaling['kind']>(
  kind: Kind,
  values: Partial<Extract<AngleScaling, { kind: Kind }>>,
): Change => scalings((scaling) => (scaling?.kind === kind ? { ...scaling, ...values } : scaling));
const notScaled = scalings(() => undefined);
const same: Change = (encoder) => encoder;
const all =
  (...changes: readonly Change[]): Change =>
  (encoder) =>
    changes.reduce((changed, change) => change(changed), encoder);

const times10 = thetas((theta) => 10 * theta);
const fullWindow = windows(() => undefined);
const oneTheta = thetas((_, __, every) => every[0]!);

/** Values 0 and 1, 2 and 3 … of a head are turned together: their rows come to where halves are looked for. */
const neighbours: Turn = (name, values, { hidden, headSize }) => {
  if (!name.endsWith('attn.Wqkv.weight')) return values;
  const turned = values.slice();
  for (let row = 0; row < 2 * hidden; row++) {
    const at = row % headSize;
    const target = row - at + (at % 2 === 0 ? at / 2 : (at - 1) / 2 + headSize / 2);
    turned.set(values.subarray(row * hidden, (row + 1) * hidden), target * hidden);
  }
  return turned;
};

const place = (head: number): number => [0, 2, 1, 3][head]!;

/** Heads of queries take those of keys in turn: heads 1 and 2 of four change places, in and out. */
const keyHeadsInTurn: Turn = (name, values, { hidden, heads, headSize }) => {
  const turned = values.slice();
  if (name.endsWith('q_proj.weight'))
    for (let head = 0; head < heads; head++) {
      const size = headSize * hidden;
      turned.set(values.subarray(head * size, (head + 1) * size), place(head) * size);
    }
  if (name.endsWith('o_proj.weight'))
    for (let at = 0; at < values.length; at += headSize) {
      const head = (at / headSize) % heads;
      turned.set(values.subarray(at, at + headSize), at + (place(head) - head) * headSize);
    }
  return turned;
};

/** Keys behind the query have the buckets of those before it. */
const mirrored: Turn = (name, values, { heads }) => {
  if (!name.endsWith('relative_attention_bias.weight')) return values;
  const turned = values.slice();
  const half = values.length / 2;
  turned.set(values.subarray(half + heads), heads);
  turned.set(values.subarray(heads, half), half + heads);
  return turned;
};

const MUTANTS: readonly Mutant[] = [
  ['bert-mean', 'positions from 2', places(2)],
  ['bert-mean', 'no token type', embeddings({ tokenTypes: 0 })],
  ['bert-mean', 'no norm of embeddings', embeddings({ hasNorm: false })],
  ['bert-mean', "GELU's tanh form", activation('gelu-tanh')],
  ['bert-mean', 'norms before', norm({ placement: 'before' })],
  ['bert-eps', 'epsilon 1e-12', norm({ epsilon: 1e-12 })],
  ['xlmr-mean', 'positions from 0', places(0)],
  ['xlmr-mean', '<pad> in a text counted', places(2)],
  ['roberta', 'positions from 0', places(0)],
  ['mpnet', 'no buckets', between({ kind: 'none' })],
  ['mpnet', 'buckets mirrored', same, mirrored],
  ['mpnet', 'buckets to 64', between({ kind: 'buckets', buckets: 32, farthest: 64 })],
  ['albert', 'exact GELU', activation('gelu')],
  ['electra', 'embeddings × √hidden', embeddings({ scale: 8 })],
  ['nomic-bert', 'nothing turned', between({ kind: 'none' })],
  ['nomic-bert', 'neighbours turned', same, neighbours],
  ['nomic-bert', 'theta × 10', times10],
  ['nomic-bert', 'frequencies halved', scalings(() => ({ kind: 'divided', factor: 2 }))],
  ['nomic-bert', 'gate and up exchanged', names({ up: { kind: 'apart', up: 'mlp.fc12', gate: 'mlp.fc11' } })],
  ['nomic-bert', 'GELU for SiLU', activation('gelu')],
  ['gte-en', 'gate first', names({ up: { kind: 'fused', name: 'mlp.up_gate_proj', isGateFirst: true } })],
  ['gte-en', 'theta × 10', times10],
  ['gte-en', "GELU's tanh form", activation('gelu-tanh')],
  ['modernbert-mean', 'window + 1', windows((window) => window + 1)],
  ['modernbert-mean', 'window − 1', windows((window) => window - 1)],
  ['modernbert-mean', 'no window', fullWindow],
  ['modernbert-mean', 'no last norm', norm({ isLast: false })],
  ['modernbert-mean', 'up first', names({ up: { kind: 'fused', name: 'mlp.Wi', isGateFirst: false } })],
  ['modernbert-mean', 'one theta for all layers', oneTheta],
  ['modernbert-mean', 'thetas by heart', thetas((theta) => (theta === 80_000 ? 160_000 : 10_000))],
  ['modernbert-mean', "GELU's tanh form", activation('gelu-tanh')],
  ['eurobert', 'causal', attention({ isCausal: true })],
  ['eurobert', 'LayerNorm for RMS', norm({ kind: 'layer' })],
  ['ultrabert', 'window + 1', windows((window) => window + 1)],
  ['ultrabert', 'window halved', windows((window) => window / 2)],
  ['qwen3-last', 'theta by heart', thetas(() => 10_000)],
  ['qwen3-last', 'not causal', attention({ isCausal: false })],
  ['qwen3-last', 'no norm of queries and keys', all(attention({ hasQueryKeyNorm: false }), withoutHeadNorms)],
  ['qwen3-last', 'norms 1 + w', norm({ isPlusOne: true })],
  ['qwen3-last', 'key heads in turn', same, keyHeadsInTurn],
  ['qwen2-last', 'not causal', attention({ isCausal: false })],
  ['qwen2-last', 'theta × 10', times10],
  ['qwen2-last', 'no biases', attention({ hasBias: false })],
  ['gemma3-embedding', 'w for 1 + w', norm({ isPlusOne: false })],
  ['gemma3-embedding', 'causal', attention({ isCausal: true })],
  ['gemma3-embedding', 'embeddings not scaled', embeddings({ scale: 1 })],
  ['gemma3-embedding', 'window + 1', windows((window) => window + 1)],
  ['gemma3-embedding', 'scale from head size', attention({ scale: 1 / Math.sqrt(16) })],
  ['gemma3-embedding', 'exact GELU', activation('gelu')],
  ['gemma3-embedding', 'one theta for all layers', oneTheta],
  ['gemma3-embedding', 'no norms after', all(norm({ placement: 'before' }), withoutNormsAfter)],
  ['gemma3-last', 'window + 1', windows((window) => window + 1)],
  ['gemma3-last', 'not causal', attention({ isCausal: false })],
  ['gemma3-linear', 'not scaled', notScaled],
  ['gemma3-linear', 'all layers scaled', scalings(() => ({ kind: 'divided', factor: 8 }))],
  ['gte-ntk', 'frequencies not divided', notScaled],
  ['llama-llama3', 'not scaled', notScaled],
  ['llama-llama3', 'no mixture', scaledBy('llama3', { lowTurns: 4 })],
  ['modernbert-yarn', 'one mscale', scaledBy('yarn', { magnitude: 0.1 * Math.log(16) + 1 })],
  ['qwen3-yarn', 'not scaled', notScaled],
  ['qwen3-yarn', 'no magnitude', scaledBy('yarn', { magnitude: 1 })],
  ['qwen3-yarn', 'a ramp between places', scaledBy('yarn', { isRampWhole: false })],
];

function withoutHeadNorms(encoder: EncoderDescription): EncoderDescription {
  const { queryNorm: _query, keyNorm: _key, ...rest } = encoder.names;
  return { ...encoder, names: rest };
}

function withoutNormsAfter(encoder: EncoderDescription): EncoderDescription {
  const { attentionNormAfter: _attention, feedForwardNormAfter: _feed, ...rest } = encoder.names;
  return { ...encoder, names: rest };
}

const texts = await madeTexts();
/** Some short ones, "<pad>" spelled out, some that are longer than every window. */
const tried = texts.flatMap((text, at) => ((at % 8 === 0 && text.length < 1000) || text.includes('<pad>') ? [at] : []));

describe.each([...new Set(MUTANTS.map(([family]) => family))])('%s', (family) => {
  let folder: string;
  let encoder: EncoderDescription;
  let rows: readonly (readonly number[])[];
  let pooling: ReferencePooling;
  let expected: readonly Float32Array[];

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'shoal-mutants-'));
    const { max_seq_length: maxTokens = 512 } = await madeModel(family, folder);
    encoder = await readDescription(folder);
    const tokenizer = new ReferenceTokenizer(await readFile(join(folder, 'tokenizer.json'), 'utf8'), { maxTokens });
    rows = (await tokenizer.encode(tried.map((at) => texts[at]!))).map(({ ids }) => ids);
    pooling = await ReferencePooling.open(folder);
    const vectors = await madeVectors(family);
    expected = tried.map((at) => vectors[at]!);
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));

  /** Largest difference of any value to the right vectors. */
  const difference = (description: EncoderDescription, turn: Turn = (_, values) => values): Promise<number> =>
    useTensors(folder, async (file) => {
      const tensors: NamedTensors = {
        path: file.path,
        names: file.names,
        has: (name) => file.has(name),
        expect: (name, shape) => file.expect(name, shape),
        stored: (name) => file.stored(name),
        read: async (name) => turn(name, await file.read(name), description),
      };
      const runner = await StatesRunner.open(description, tensors, join(folder, 'mutant.onnx'), 'fused-fp32');
      const states = await runner.run(rows);
      await runner.release();
      const vectors = states.map((row) => pooling.vector(row));
      return Math.max(...vectors.flatMap((row, at) => row.map((value, k) => Math.abs(value - expected[at]![k]!))));
    });

  test('is right', async () => {
    expect(await difference(encoder)).toBeLessThan(MOST_RIGHT);
  });

  test.each(MUTANTS.filter(([of]) => of === family).map(([, what, change, turn]) => [what, change, turn] as const))(
    'is seen to be wrong: %s',
    async (_, change, turn) => {
      const changed = change(encoder);
      // a tensor that is left over would give it away before any vector does
      const open = { ...changed, names: { ...changed.names, withoutUse: /^/ } };
      expect(await difference(open, turn)).toBeGreaterThan(LEAST_SEEN);
    },
  );
});
