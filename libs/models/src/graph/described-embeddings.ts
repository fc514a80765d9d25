// From token ids to the states that the first layer takes: words, places, type, norm, projection. What is the same for
// every token is added to a table while the graph is written: the scale of the words, the row of token type 0. Where rows
// are pairs and the model knows types, each token gets the row of its own.

import { invariant } from '@shoal/contract';
import type { EncoderDescription } from '../encoder/encoder-description.ts';
import type { Operators } from './described-encoder.ts';
import type { GraphParts } from './graph-parts.ts';
import { LayerTensors } from './layer-tensors.ts';
import { TYPE, type MakeFloats } from './onnx-file.ts';
import { addIsToken } from './pooling.ts';

/** Micro-batches are padded to a multiple of this, which may be more than a table has rows. */
const WIDTH_STEP = 8;

interface EmbeddingOptions {
  /** Tokens from the place `second_from` of their row on have type 1. Needs learned positions and a table of types. */
  readonly hasTypes: boolean;
}

/** Returns [batch, seq, hidden]. */
export function addDescribedEmbeddings(
  encoder: EncoderDescription,
  parts: GraphParts,
  operators: Operators,
  { hasTypes }: EmbeddingOptions,
): string {
  const { embeddings, positions, names, hidden } = encoder;
  const whole = new LayerTensors(encoder, parts, 0);
  const words = addWords(encoder, parts);
  const typed = hasTypes ? operators.add(words, addTypes(encoder, parts), 'typed_words') : words;
  const sum =
    positions.kind === 'none' ? typed : operators.add(typed, addPlaces(encoder, parts, { hasTypes }), 'embedding_sum');
  const normed =
    names.embeddingNorm === undefined || !embeddings.hasNorm
      ? sum
      : operators.norm(sum, whole.normOf(names.embeddingNorm, embeddings.size), 'embedding_norm');
  if (!embeddings.hasProjection || names.projection === undefined) return normed;
  const shape = { outputs: hidden, inputs: embeddings.size, hasBias: true, output: 'embedded' };
  return whole.fullLinear(names.projection, normed, shape);
}

function addWords(encoder: EncoderDescription, parts: GraphParts): string {
  const {
    vocabularySize,
    embeddings: { size, scale, tokenTypes },
    positions,
    names,
  } = encoder;
  const table = parts.weights.tensor(names.words, [vocabularySize, size]);
  const scaled: MakeFloats =
    scale === 1 ? table : async () => (await table()).map((value) => value * Math.fround(scale));
  const make = tokenTypes > 0 && positions.kind === 'none' ? withFirstRow(encoder, parts, scaled) : scaled;
  return parts.wordRows([vocabularySize, size], make);
}

/** The rows of a table of this width, each with the row of token type 0 added. */
function withFirstRow(encoder: EncoderDescription, parts: GraphParts, table: MakeFloats): MakeFloats {
  const {
    embeddings: { size, tokenTypes },
    names,
  } = encoder;
  const types = parts.weights.tensor(names.types!, [tokenTypes, size]);
  return async () => {
    const [values, row] = [await table(), await types()];
    for (let at = 0; at < values.length; at++) values[at]! += row[at % size]!;
    return values;
  };
}

/** The row of each token's type: [batch, seq, size]. */
function addTypes({ embeddings, positions, names }: EncoderDescription, parts: GraphParts): string {
  invariant(
    positions.kind === 'learned' && embeddings.tokenTypes > 1 && names.types !== undefined,
    'token types are a table of two rows or more beside learned positions',
  );
  const { graph } = parts;
  const shape = [embeddings.tokenTypes, embeddings.size];
  const table = parts.floats('types', shape, parts.weights.tensor(names.types, shape));
  const width = graph.node(
    'Gather',
    [graph.node('Shape', ['input_ids'], 'pair_sizes'), graph.integer(1)],
    'pair_width',
  );
  const places = graph.node('Range', [graph.integer(0), width, graph.integer(1)], 'pair_places');
  const begins = graph.node('Cast', ['second_from'], 'second_from64', { integers: { to: TYPE.INT64 } });
  const column = graph.node('Unsqueeze', [begins, graph.integers(1)], 'second_column');
  const isFirst = graph.node('Less', [places, column], 'is_first');
  const types = graph.node('Cast', [graph.node('Not', [isFirst], 'is_second')], 'token_types', {
    integers: { to: TYPE.INT32 },
  });
  return graph.node('Gather', [table, types], 'type_rows');
}

/** Rows of the table of positions: [1 or batch, seq, size]; `hasTypes`: token types are added elsewhere. */
function addPlaces(encoder: EncoderDescription, parts: GraphParts, { hasTypes }: EmbeddingOptions): string {
  const { positions, embeddings, names } = encoder;
  if (positions.kind === 'none') throw new TypeError('there are learned positions');
  const { graph } = parts;
  const stored = parts.weights.tensor(names.positions!, [positions.rows, embeddings.size]);
  const typed = embeddings.tokenTypes > 0 && !hasTypes ? withFirstRow(encoder, parts, stored) : stored;
  const rows = Math.ceil(positions.rows / WIDTH_STEP) * WIDTH_STEP;
  const table = parts.floats('positions', [rows, embeddings.size], async () => {
    const values = new Float32Array(rows * embeddings.size);
    values.set(await typed());
    return values;
  });
  if (positions.padId !== undefined)
    return graph.node('Gather', [table, addCountedPlaces(parts, positions.padId, positions.first)], 'place_rows');
  const width = graph.node('Shape', ['input_ids'], 'row_width', { integers: { start: 1 } });
  const end = graph.node('Add', [width, graph.integers(positions.first)], 'place_end');
  return graph.node('Slice', [table, graph.integers(positions.first), end, graph.integers(0)], 'place_rows');
}

/**
 * How many tokens other than padding stand up to each place, behind the row of the padding: [batch, seq]. As
 * transformers' create_position_ids_from_input_ids has it, for which "<pad>" spelled out in a text is padding too.
 */
function addCountedPlaces(parts: GraphParts, padId: number, first: number): string {
  const { graph } = parts;
  const pad = graph.once(`token_${padId}`, (name) =>
    graph.initializer(name, TYPE.INT32, [], async () => Int32Array.of(padId)),
  );
  const isOther = graph.node('Not', [graph.node('Equal', ['input_ids', pad], 'is_padding')], 'is_other');
  const counts = graph.node('And', [isOther, addIsToken(graph)], 'is_counted');
  const ones = graph.node('Cast', [counts], 'counted', { integers: { to: TYPE.INT64 } });
  const sums = graph.node('CumSum', [ones, graph.integer(1)], 'counted_before');
  const places = graph.node('Mul', [sums, ones], 'counted_places');
  return graph.node('Add', [places, graph.integer(first - 1)], 'places_of_tokens');
}
