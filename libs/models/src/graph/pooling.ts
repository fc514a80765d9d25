// From hidden states [batch, seq, hidden] to vectors [batch, dims]: a model's SentenceHead as nodes of a graph, over
// each row's own tokens alone. In fp32 whatever the encoder computed in; standard operators only, in forms that opsets
// 13 to 23 share or that the graph's own opset chooses between.

import { TYPE, type ElementType, type OnnxFile } from './onnx-file.ts';
import {
  readHeadTensor,
  type Activation,
  type HeadModule,
  type Pooling,
  type SentenceHead,
  type WeightedModule,
} from './sentence-head.ts';

const OUTPUT = 'embeddings';
/** The lowest number of f32: whatever a token has is above it. */
const LOWEST = -3.402_823_466_385_288_6e38;
const LAYER_NORM_EPSILON = 1e-5;

/** Adds the nodes that make `embeddings` f32 [batch, dims] out of hidden states of this type. */
export function addSentenceHead(graph: OnnxFile, hidden: string, type: ElementType, head: SentenceHead): void {
  addModules(graph, addPoolings(graph, asFloats(graph, hidden, type, 'hidden_f32'), head), head.modules);
}

/** The same for what is pooled already: `embeddings` out of f32 or f16 [batch, dims]. */
export function addPooled(graph: OnnxFile, pooled: string, type: ElementType, modules: SentenceHead['modules']): void {
  const floats = asFloats(graph, pooled, type, 'pooled_f32');
  if (modules.length === 0) graph.node('Identity', [floats], OUTPUT);
  else addModules(graph, floats, modules);
}

export function asFloats(graph: OnnxFile, values: string, type: ElementType, name: string): string {
  return type === TYPE.FLOAT ? values : graph.node('Cast', [values], name, { integers: { to: TYPE.FLOAT } });
}

/** Bool [batch, seq]: whether a place holds a token of its row, and not padding. */
export function addIsToken(graph: OnnxFile): string {
  return graph.once('is_token', (name) => {
    const seq = graph.node('Gather', [graph.node('Shape', ['input_ids'], 'batch_by_seq'), graph.integer(1)], 'seq');
    const places = graph.node('Range', [graph.integer(0), seq, graph.integer(1)], 'places');
    const lengths = graph.node(
      'Unsqueeze',
      [graph.node('Cast', ['lengths'], 'lengths64', { integers: { to: TYPE.INT64 } }), graph.integers(1)],
      'lengths_column',
    );
    return graph.node('Less', [places, lengths], name);
  });
}

// ---- poolings ---------------------------------------------------------------------------------------------------

function addPoolings(graph: OnnxFile, hidden: string, { poolings, modules }: SentenceHead): string {
  const output = modules.length === 0 ? OUTPUT : 'pooled';
  const [only, ...more] = poolings;
  if (more.length === 0) return addPooling(graph, hidden, only!, output);
  const all = poolings.map((pooling, at) => addPooling(graph, hidden, pooling, `pooled_${at}`));
  return graph.node('Concat', all, output, { integers: { axis: 1 } });
}

/** f32 [batch, hidden], of states in f32. */
export function addPooling(graph: OnnxFile, hidden: string, pooling: Pooling, output: string): string {
  switch (pooling) {
    case 'mean':
      return graph.node('Div', [addSum(graph, hidden), addCount(graph)], output);
    case 'cls':
      return graph.node('Gather', [hidden, graph.integer(0)], output, { integers: { axis: 1 } });
    case 'max':
      return addMax(graph, hidden, output);
    case 'mean_sqrt_len_tokens': {
      const [sum, count] = [addSum(graph, hidden), addCount(graph)];
      return graph.node('Div', [sum, graph.node('Sqrt', [count], 'count_root')], output);
    }
    case 'weightedmean':
      return addWeightedMean(graph, hidden, output);
    case 'lasttoken':
      return addLastToken(graph, hidden, output);
  }
}

/** Ones and zeros f32 [batch, seq]. */
function addMask(graph: OnnxFile): string {
  return graph.once('mask', (name) => graph.node('Cast', [addIsToken(graph)], name, { integers: { to: TYPE.FLOAT } }));
}

/** The mask [batch, 1, seq] times the hidden states. */
function addSum(graph: OnnxFile, hidden: string): string {
  return graph.once('sum', (name) => {
    const one = graph.integers(1);
    const row = graph.node('Unsqueeze', [addMask(graph), one], 'mask_row');
    return graph.node('Squeeze', [graph.node('MatMul', [row, hidden], 'sum_row'), one], name);
  });
}

function addCount(graph: OnnxFile): string {
  return graph.once('count', (name) => {
    const tokens = graph.node('ReduceSum', [addMask(graph), graph.integers(1)], 'tokens', {
      integers: { keepdims: 1 },
    });
    return graph.node('Max', [tokens, graph.float(1)], name);
  });
}

function addMax(graph: OnnxFile, hidden: string, output: string): string {
  const isToken = graph.node('Unsqueeze', [addIsToken(graph), graph.integers(2)], 'is_token_row');
  const masked = graph.node('Where', [isToken, hidden, graph.float(LOWEST)], 'hidden_of_tokens');
  // its axes moved from an attribute to an input
  if (graph.opset >= 18)
    return graph.node('ReduceMax', [masked, graph.integers(1)], output, { integers: { keepdims: 0 } });
  return graph.node('ReduceMax', [masked], output, { integers: { axes: [1], keepdims: 0 } });
}

/** Token n counts n times. */
function addWeightedMean(graph: OnnxFile, hidden: string, output: string): string {
  const [mask, one] = [addMask(graph), graph.integers(1)];
  const places = graph.node('CumSum', [mask, graph.integer(1)], 'token_places');
  const weights = graph.node('Mul', [places, mask], 'token_weights');
  const row = graph.node('Unsqueeze', [weights, one], 'weight_row');
  const sum = graph.node('Squeeze', [graph.node('MatMul', [row, hidden], 'weighted_row'), one], 'weighted_sum');
  const all = graph.node('ReduceSum', [weights, one], 'weight_sum', { integers: { keepdims: 1 } });
  return graph.node('Div', [sum, graph.node('Max', [all, graph.float(1)], 'weight_count')], output);
}

function addLastToken(graph: OnnxFile, hidden: string, output: string): string {
  const lengths = graph.node('Cast', ['lengths'], 'row_lengths', { integers: { to: TYPE.INT64 } });
  const last = graph.node('Sub', [lengths, graph.integer(1)], 'last_places');
  const places = graph.node('Unsqueeze', [last, graph.integers(1)], 'last_place_column');
  return graph.node('GatherND', [hidden, places], output, { integers: { batch_dims: 1 } });
}

// ---- what comes behind ------------------------------------------------------------------------------------------

function addModules(graph: OnnxFile, pooled: string, modules: readonly HeadModule[]): void {
  let values = pooled;
  for (const [at, module] of modules.entries()) {
    const output = at === modules.length - 1 ? OUTPUT : `module_${at}`;
    values = addModule(graph, module, values, output);
  }
}

function addModule(graph: OnnxFile, module: HeadModule, input: string, output: string): string {
  switch (module.kind) {
    case 'dense':
      return addDense(graph, module, input, output);
    case 'layer-norm':
      return addLayerNorm(graph, module, input, output);
    case 'normalize':
      return addNorm(graph, input, output);
  }
}

type ModuleOf<Kind extends WeightedModule['kind']> = Extract<WeightedModule, { kind: Kind }>;

function addDense(graph: OnnxFile, module: ModuleOf<'dense'>, input: string, output: string): string {
  const { inputs, outputs, hasBias, activation } = module;
  const matrix = graph.initializer(`${output}.weight`, TYPE.FLOAT, [inputs, outputs], async () =>
    transposed(await readHeadTensor(module, 'linear.weight'), outputs, inputs),
  );
  const isLinear = activation === 'Identity';
  const linear = isLinear ? output : `${output}.linear`;
  const product = graph.node('MatMul', [input, matrix], hasBias ? `${output}.product` : linear);
  const biased = hasBias
    ? graph.node('Add', [product, addVector(graph, module, 'linear.bias', outputs, `${output}.bias`)], linear)
    : product;
  return isLinear ? biased : addActivation(graph, activation, biased, output);
}

export function addActivation(graph: OnnxFile, activation: Activation, input: string, output: string): string {
  switch (activation) {
    case 'Identity':
      return graph.node('Identity', [input], output);
    case 'Tanh':
      return graph.node('Tanh', [input], output);
    case 'ReLU':
      return graph.node('Relu', [input], output);
    case 'Sigmoid':
      return graph.node('Sigmoid', [input], output);
    case 'SiLU':
      return graph.node('Mul', [input, graph.node('Sigmoid', [input], `${output}.gate`)], output);
    case 'GELU': {
      const scaled = graph.node('Div', [input, graph.float(Math.SQRT2)], `${output}.scaled`);
      const raised = graph.node('Add', [graph.node('Erf', [scaled], `${output}.erf`), graph.float(1)], `${output}.up`);
      const half = graph.node('Mul', [input, graph.float(0.5)], `${output}.half`);
      return graph.node('Mul', [half, raised], output);
    }
  }
}

/** By simple operators: LayerNormalization came with opset 17, and ReduceMean has another form since 18. */
function addLayerNorm(graph: OnnxFile, module: ModuleOf<'layer-norm'>, input: string, output: string): string {
  const { size } = module;
  const mean = (values: string, name: string): string =>
    graph.node(
      'Div',
      [
        graph.node('ReduceSum', [values, graph.integers(1)], `${name}_sum`, { integers: { keepdims: 1 } }),
        graph.float(size),
      ],
      name,
    );
  const centred = graph.node('Sub', [input, mean(input, `${output}.mean`)], `${output}.centred`);
  const variance = mean(graph.node('Mul', [centred, centred], `${output}.squared`), `${output}.variance`);
  const safe = graph.node('Add', [variance, graph.float(LAYER_NORM_EPSILON)], `${output}.safe`);
  const even = graph.node('Div', [centred, graph.node('Sqrt', [safe], `${output}.deviation`)], `${output}.even`);
  const weight = addVector(graph, module, 'norm.weight', size, `${output}.weight`);
  const scaled = graph.node('Mul', [even, weight], `${output}.scaled`);
  return graph.node('Add', [scaled, addVector(graph, module, 'norm.bias', size, `${output}.bias`)], output);
}

function addVector(graph: OnnxFile, module: WeightedModule, tensor: string, size: number, name: string): string {
  return graph.initializer(name, TYPE.FLOAT, [size], () => readHeadTensor(module, tensor));
}

/**
 * 1e-12 is where torch's normalize() stops dividing. Not ReduceL2: it changed its form with opset 18, and imports bring
 * theirs.
 */
function addNorm(graph: OnnxFile, input: string, output: string): string {
  const before = output === OUTPUT ? '' : `${output}.`;
  const squares = graph.node(
    'ReduceSum',
    [graph.node('Mul', [input, input], `${before}squared`), graph.integers(1)],
    `${before}squares`,
    { integers: { keepdims: 1 } },
  );
  const length = graph.node('Sqrt', [squares], `${before}length`);
  const divisor = graph.node('Max', [length, graph.float(1e-12)], `${before}divisor`);
  return graph.node('Div', [input, divisor], output);
}

function transposed(matrix: Float32Array, rows: number, columns: number): Float32Array {
  const turned = new Float32Array(matrix.length);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) turned[column * rows + row] = matrix[row * columns + column]!;
  return turned;
}
