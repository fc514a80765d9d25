// Makes libs/models/calibration/minilm.json: the largest |activation| of each input of every linear layer that an int8
// graph smooths, over the texts beside it, each text alone and every run of eight neighbours as one long text. Runs the
// fp32 graph with its inner values as further outputs. Three significant digits are kept, so that every machine writes
// the same file.
//   node --conditions=@shoal/source libs/models/tools/calibrate.ts

import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
// oxlint-disable-next-line no-restricted-imports -- reads what happens inside a graph, which only its engine sees
import { InferenceSession, Tensor } from 'onnxruntime-node';
import { cacheFolder } from '@shoal/core';
import { openModel, openTokenizer, type StoredModel } from '@shoal/models';
import type { EncoderDescription } from '../src/encoder/encoder-description.ts';
import { encoderGraph } from '../src/graph/encoder-graph.ts';
import { TYPE } from '../src/graph/onnx-file.ts';
import { readDescription } from '../src/store/stored-model.ts';
import { Safetensors } from '../src/graph/safetensors.ts';

const FOLDER = new URL('../calibration/', import.meta.url);
const NEIGHBOURS = 8;

process.env['ORT_DISABLE_TELEMETRY'] = '1';
const model = await openModel('minilm', { cacheDir: cacheFolder(process.env['SHOAL_CACHE_DIR']) });
const texts = JSON.parse(await readFile(new URL('texts.json', FOLDER), 'utf8')) as string[];
const long = texts.flatMap((_, at) => (at % NEIGHBOURS === 0 ? [texts.slice(at, at + NEIGHBOURS).join(' ')] : []));
const maxima = await observe(model, [...texts, ...long]);
const file = {
  about:
    'Largest |activation| per input channel of minilm in fp32, by layer and linear layer. Made by ' +
    'libs/models/tools/calibrate.ts; see README.md.',
  weightsSha256: model.weightsSha256,
  textsSha256: createHash('sha256').update(JSON.stringify(texts)).digest('hex'),
  maxima: Object.fromEntries(
    [...maxima].map(([name, values]) => [name, Array.from(values, (value) => Number(value.toPrecision(3)))]),
  ),
};
const lines = JSON.stringify(file).replaceAll(/,?"[0-9]+\.[a-z0-9]+":/g, (key) => `\n${key}`);
await writeFile(new URL('minilm.json', FOLDER), `${lines}\n`);

/** Names of the values inside the fp32 graph that go into each smoothed layer. */
function valuesOf(layer: number): readonly (readonly [key: string, value: string])[] {
  const from = `encoder.layer.${layer}`;
  return [
    [`${layer}.qkv`, layer === 0 ? 'embedded' : `encoder.layer.${layer - 1}.out`],
    [`${layer}.out`, `${from}.context`],
    [`${layer}.ff1`, `${from}.middle`],
  ];
}

async function observe(of: StoredModel, rows: readonly string[]): Promise<ReadonlyMap<string, Float32Array>> {
  const config = await readDescription(of.folder);
  const values = new Map(Array.from({ length: config.layers }, (_, layer) => valuesOf(layer)).flat());
  const session = await openSession(of, config, [...values.values()]);
  const tokenizer = await openTokenizer(of);
  const found = new Map([...values.keys()].map((key) => [key, new Float32Array(config.hidden)]));
  for (const row of rows) {
    const ids = Int32Array.from(tokenizer.encode(row).ids);
    const outputs = await session.run({
      input_ids: new Tensor('int32', ids, [1, ids.length]),
      lengths: new Tensor('int32', Int32Array.of(ids.length), [1]),
    });
    for (const [key, name] of values) widen(found.get(key)!, outputs[name]!.data as Float32Array);
  }
  await session.release();
  return found;
}

async function openSession(
  of: StoredModel,
  config: EncoderDescription,
  values: readonly string[],
): Promise<InferenceSession> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-calibrate-'));
  try {
    const path = join(folder, 'observed.onnx');
    await Safetensors.use(join(of.folder, 'model.safetensors'), async (weights) => {
      const graph = encoderGraph(config, weights, { head: of.head, kind: 'fused-fp32' });
      for (const name of values) graph.output(name, TYPE.FLOAT, ['batch', 'seq', config.hidden]);
      await graph.write(path);
    });
    return await InferenceSession.create(path, { executionProviders: ['cpu'], intraOpNumThreads: 1 });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function widen(most: Float32Array, values: Float32Array): void {
  for (let at = 0; at < values.length; at++) {
    const channel = at % most.length;
    most[channel] = Math.max(most[channel]!, Math.abs(values[at]!));
  }
}
