// What attention knows of places, as tables and masks: cosines and sines that turn queries and keys, what each distance
// adds to a score, and which tokens see each other. Tables are computed while the graph is written, in the precision
// that torch computes them in; masks are made from the width of the run.

import type { EncoderDescription } from '../encoder/encoder-description.ts';
import { frequenciesOf, turnTable } from './frequencies.ts';
import type { LayerTensors } from './layer-tensors.ts';
import type { OnnxFile } from './onnx-file.ts';

/** Micro-batches are padded to a multiple of this, which may be more than the longest row has. */
const WIDTH_STEP = 8;

/** Cosines and sines [places, headSize ÷ 2] of this layer; undefined where nothing is turned. */
export function addTurns({
  encoder,
  parts,
  index,
}: LayerTensors): readonly [cosines: string, sines: string] | undefined {
  if (encoder.attentionPositions.kind !== 'rope') return undefined;
  const { thetas, scalings } = encoder.attentionPositions;
  const [theta, scaling] = [thetas[index]!, scalings[index]];
  const [places, half] = [widest(encoder), encoder.headSize / 2];
  const kind = scaling === undefined ? `${theta}` : `${theta}_${Object.values(scaling).join('_')}`;
  const table = (name: string, of: (angle: number) => number): string =>
    parts.graph.once(`${name}_${kind}`, (full) =>
      parts.floats(full, [places, half], async () =>
        turnTable(frequenciesOf(theta, half, scaling), places, of, scaling),
      ),
    );
  return [table('cosines', Math.cos), table('sines', Math.sin)];
}

/** What is added to the scores of each head [1, heads, seq, seq]; undefined where nothing is. Shared by all layers. */
export function addDistanceBias({ encoder, parts }: LayerTensors): string | undefined {
  const { attentionPositions: buckets, heads, names } = encoder;
  if (buckets.kind !== 'buckets') return undefined;
  const { graph } = parts;
  const [most, distances] = [widest(encoder) - 1, 2 * widest(encoder) - 1];
  return graph.once('distance_bias', (name) => {
    const learned = parts.weights.tensor(names.buckets!, [buckets.buckets, heads]);
    const table = parts.floats('bias_of_distances', [heads, distances], async () => {
      const values = await learned();
      return Float32Array.from({ length: heads * distances }, (_, at) => {
        const bucket = bucketOf((at % distances) - most, buckets.buckets, buckets.farthest);
        return values[bucket * heads + Math.floor(at / distances)]!;
      });
    });
    // the table begins with the key that lies farthest before the query
    const rows = graph.node('Sub', [graph.integer(most), addDistances(graph)], 'distance_rows');
    const bias = graph.node('Gather', [table, rows], 'bias_by_head', { integers: { axis: 1 } });
    return graph.node('Unsqueeze', [bias, graph.integers(0)], name);
  });
}

/**
 * T5's buckets: half of them for keys behind the query, half for those before; of each half, the nearer half has one
 * distance each, and the others grow by the logarithm up to `farthest`. `distance`: place of the key less that of the
 * query.
 */
export function bucketOf(distance: number, buckets: number, farthest: number): number {
  const half = buckets / 2;
  const exact = half / 2;
  const [start, away] = [distance > 0 ? half : 0, Math.abs(distance)];
  if (away < exact) return start + away;
  const steps = Math.fround(
    Math.fround(Math.fround(Math.log(Math.fround(away / exact))) / Math.log(farthest / exact)) * (half - exact),
  );
  return start + Math.min(exact + Math.trunc(steps), half - 1);
}

/** Which keys a query may see by their distance: bool [seq, seq]; undefined where that is all. */
export function addSeen({ encoder, parts, index }: LayerTensors): string | undefined {
  const { isCausal, windows } = encoder.attention;
  const window = windows[index];
  const { graph } = parts;
  if (!isCausal && window === undefined) return undefined;
  const kind = `${isCausal ? 'causal' : 'both'}_${window ?? 'all'}`;
  return graph.once(`seen_${kind}`, (name) => {
    const distances = addDistances(graph);
    if (window === undefined) return graph.node('GreaterOrEqual', [distances, graph.integer(0)], name);
    const near = ['LessOrEqual', [graph.node('Abs', [distances], `${name}.away`), graph.integer(window)]] as const;
    if (!isCausal) return graph.node(...near, name);
    const before = graph.node('GreaterOrEqual', [distances, graph.integer(0)], `${name}.before`);
    return graph.node('And', [graph.node(...near, `${name}.near`), before], name);
  });
}

/** Place of the query less place of the key: int64 [seq, seq]. */
function addDistances(graph: OnnxFile): string {
  return graph.once('distances', (name) => {
    const seq = graph.node('Gather', [graph.node('Shape', ['input_ids'], 'run_shape'), graph.integer(1)], 'run_width');
    const places = graph.node('Range', [graph.integer(0), seq, graph.integer(1)], 'run_places');
    const queries = graph.node('Unsqueeze', [places, graph.integers(1)], 'query_places');
    return graph.node('Sub', [queries, graph.node('Unsqueeze', [places, graph.integers(0)], 'key_places')], name);
  });
}

function widest({ rowLimit }: EncoderDescription): number {
  return Math.ceil(rowLimit / WIDTH_STEP) * WIDTH_STEP;
}
