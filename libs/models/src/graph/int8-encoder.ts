// The encoder with whole numbers from -127 to 127 in its matrices and its word table. Activations are quantized while
// it runs, with one scale per token: the stock way, one scale per tensor, makes a text's vector depend on its
// neighbours in the micro-batch (cosine 0.985 to the text alone), which a queue that mixes jobs must not allow.
// Attention, norms and pooling stay fp32. With calibration maxima activations are smoothed first (quantize.ts), which
// brings vectors nearer to fp32's.

import { attentionParts, type BertParts } from './bert-parts.ts';
import { MICROSOFT } from './graph-parts.ts';
import type { Calibration, QuantizedLinear } from './calibration.ts';
import { addGeluRows, addProduct, addSignedRows, addWordRows, type CodeForm, type CodedRows } from './int8-linear.ts';
import { TYPE, type MakeFloats } from './onnx-file.ts';
import { divideColumns, scaleRows, smoothingDivisors } from './quantize.ts';

/** Returns the last hidden states f32 [batch, seq, hidden]. */
export function addInt8Encoder(parts: BertParts, calibration: Calibration | undefined, form: CodeForm): string {
  let hidden = addEmbeddings(parts);
  for (let layer = 0; layer < parts.config.layers; layer++) hidden = addLayer(parts, calibration, form, layer, hidden);
  return hidden;
}

function addEmbeddings(parts: BertParts): string {
  const {
    graph,
    weights,
    config: { vocabularySize, hidden, layerNormEpsilon },
  } = parts;
  const table = weights.tensor('embeddings.word_embeddings.weight', [vocabularySize, hidden]);
  const words = addWordRows(parts, [vocabularySize, hidden], table);
  const width = graph.node('Shape', ['input_ids'], 'row_width', { integers: { start: 1 } });
  const places = graph.node('Slice', [parts.positions(), graph.integers(0), width, graph.integers(0)], 'place_rows');
  const sum = graph.node('Sum', [words, places], 'embedding_sum'); // not Add: see addAndNorm
  return graph.node('LayerNormalization', [sum, ...parts.layerNorm('embeddings.LayerNorm')], 'embedded', {
    floats: { epsilon: layerNormEpsilon },
  });
}

/** One layer as it is built: its weights by name, and what smooths them. */
interface Layer {
  readonly parts: BertParts;
  readonly form: CodeForm;
  readonly from: string;
  matrix(name: string, outputs: number, inputs: number): MakeFloats;
  divisorsOf(linear: QuantizedLinear, matrix: MakeFloats): Divisors;
}

function addLayer(
  parts: BertParts,
  calibration: Calibration | undefined,
  form: CodeForm,
  index: number,
  input: string,
): string {
  const {
    weights,
    config: { hidden },
  } = parts;
  const from = `encoder.layer.${index}`;
  const layer: Layer = {
    parts,
    form,
    from,
    matrix: (name, outputs, inputs) => weights.transposed(`${from}.${name}.weight`, outputs, inputs),
    divisorsOf: (linear, matrix) =>
      calibration && (async () => smoothingDivisors(calibration.maxima(index, linear, hidden), await matrix())),
  };
  return addFeedForward(layer, addAttended(layer, input));
}

/** The first half of a layer: attention, its product, residual and norm. */
function addAttended({ parts, form, from, matrix, divisorsOf }: Layer, input: string): string {
  const {
    graph,
    config: { heads, hidden },
  } = parts;
  const out = matrix('attention.output.dense', hidden, hidden);
  const outDivisors = divisorsOf('out', out);
  const context = graph.node(
    'MultiHeadAttention',
    [...addProjections(parts, form, from, input, outDivisors, (joined) => divisorsOf('qkv', joined)), 'lengths'],
    `${from}.context`,
    { ...MICROSOFT, integers: { num_heads: heads } },
  );
  const attended = addProduct(
    parts,
    form,
    addSignedRows(parts, context, hidden, `${from}.context`),
    hidden,
    hidden,
    smoothed(out, outDivisors),
    `${from}.attended`,
  );
  return parts.addAndNorm(`${from}.attention.output`, attended, input, `${from}.middle`);
}

/** The second half: two products with GELU between them, residual and norm. */
function addFeedForward({ parts, form, from, matrix, divisorsOf }: Layer, middle: string): string {
  const { hidden, intermediate } = parts.config;
  const wide = matrix('intermediate.dense', intermediate, hidden);
  const wideDivisors = divisorsOf('ff1', wide);
  const expanded = addProduct(
    parts,
    form,
    addSmoothRows(parts, middle, hidden, wideDivisors, `${from}.middle`),
    hidden,
    intermediate,
    smoothed(wide, wideDivisors),
    `${from}.wide`,
  );
  const active = parts.graph.node(
    'BiasGelu',
    [expanded, parts.bias(`${from}.intermediate.dense`, intermediate)],
    `${from}.active`,
    MICROSOFT,
  );
  const shrunk = addProduct(
    parts,
    form,
    addGeluRows(parts, active, intermediate, `${from}.active`),
    intermediate,
    hidden,
    matrix('output.dense', hidden, intermediate),
    `${from}.narrow`,
  );
  return parts.addAndNorm(`${from}.output`, shrunk, middle, `${from}.out`);
}

/** What activations are divided by; undefined without calibration. */
type Divisors = MakeFloats | undefined;

/**
 * Queries, keys, values and their joined bias. What comes out of attention is a weighted mean of values, so its
 * divisors go into the projection that makes values, and cost no node.
 */
function addProjections(
  parts: BertParts,
  form: CodeForm,
  from: string,
  input: string,
  valueDivisors: Divisors,
  divisorsOf: (joined: MakeFloats) => Divisors,
): string[] {
  const {
    graph,
    weights,
    config: { hidden },
  } = parts;
  const names = attentionParts(from);
  const divideValues = async (values: Float32Array): Promise<Float32Array> =>
    valueDivisors === undefined ? values : divideColumns(values, await valueDivisors());
  const inputDivisors = divisorsOf(
    weights.transposedBeside(
      names.map((name) => `${name}.weight`),
      hidden,
      hidden,
    ),
  );
  const rows = addSmoothRows(parts, input, hidden, inputDivisors, `${from}.input`);
  const projected = names.map((name, at) => {
    const matrix = weights.transposed(`${name}.weight`, hidden, hidden);
    const divided: MakeFloats = at === 2 ? async () => divideValues(await matrix()) : matrix;
    return addProduct(parts, form, rows, hidden, hidden, smoothed(divided, inputDivisors), name);
  });
  const joined = weights.joined(
    names.map((name) => `${name}.bias`),
    hidden,
  );
  const bias = graph.initializer(`${from}.qkv.bias`, TYPE.FLOAT, [3 * hidden], async () => {
    const values = await joined();
    values.set(await divideValues(values.slice(2 * hidden)), 2 * hidden);
    return values;
  });
  return [...projected, bias];
}

function addSmoothRows(parts: BertParts, input: string, channels: number, divisors: Divisors, name: string): CodedRows {
  if (divisors === undefined) return addSignedRows(parts, input, channels, name);
  const factors = parts.graph.initializer(`${name}.smoothing`, TYPE.FLOAT, [channels], async () =>
    (await divisors()).map((divisor) => 1 / divisor),
  );
  return addSignedRows(parts, parts.graph.node('Mul', [input, factors], `${name}.smooth`), channels, name);
}

/** The matrix for activations that were divided. */
function smoothed(matrix: MakeFloats, divisors: Divisors): MakeFloats {
  return divisors === undefined ? matrix : async () => scaleRows(await matrix(), await divisors());
}
