// Which .onnx files are taken, decided by what they say about their inputs and outputs. Nothing is run here: the
// vectors of a graph that was wrapped are compared in import-model.test.ts.

import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { adaptOnnx } from './adapt-onnx.ts';
import { OnnxFile, TYPE, type Shape } from './onnx-file.ts';
import { plainHead } from './sentence-head.ts';

const DYNAMIC: Shape = ['batch', 'sequence'];

interface Export {
  readonly inputs?: Shape;
  /** Of attention_mask, where it is not as input_ids. */
  readonly mask?: Shape;
  readonly output?: string;
  readonly shape?: Shape;
}

/** A graph with these inputs and this output, which computes nothing. */
async function exported({
  inputs = DYNAMIC,
  mask = inputs,
  output = 'last_hidden_state',
  shape = ['batch', 'sequence', 32],
}: Export): Promise<Uint8Array> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-adapt-'));
  const graph = new OnnxFile('export', { '': 17 });
  graph.input('input_ids', TYPE.INT64, inputs);
  graph.input('attention_mask', TYPE.INT64, mask);
  graph.node('Cast', ['input_ids'], output, { integers: { to: TYPE.FLOAT } });
  graph.output(output, TYPE.FLOAT, shape);
  await graph.write(join(folder, 'x.onnx'));
  const bytes = await readFile(join(folder, 'x.onnx'));
  await rm(folder, { recursive: true });
  return bytes;
}

test.each<[string, Export, boolean]>([
  ['hidden states are pooled', {}, true],
  ['hidden states under their other name are pooled', { output: 'token_embeddings' }, true],
  ['a sentence embedding is taken as pooled', { output: 'sentence_embedding', shape: ['batch', 32] }, false],
])('%s', async (_, form, pools) => {
  const adapted = await adaptOnnx(await exported(form), 'x.onnx', plainHead('mean'));
  expect(adapted).toMatchObject({ width: 32, isWrapped: true, isPooled: !pools });
  expect(Buffer.from(adapted.bytes).includes('mask_row')).toBe(pools);
});

test.each<[string, Export, RegExp]>([
  [
    'both input sizes fixed',
    { inputs: [1, 8] },
    /x\.onnx takes input_ids int64 \[1, 8\], attention_mask int64 \[1, 8\] and nothing else.*with both sizes dynamic/,
  ],
  [
    'a fixed row length of one input',
    { mask: ['batch', 8] },
    /x\.onnx takes attention_mask int64 \[\?, 8\] and nothing else/,
  ],
  [
    'hidden states of unknown shape',
    { shape: [] },
    /outputs last_hidden_state float32 \[\]\. Needed are .*a file that says no shape has \[\] here/,
  ],
  [
    'hidden states of two dimensions',
    { shape: ['batch', 32] },
    /outputs last_hidden_state float32 \[\?, 32\]\. Needed are/,
  ],
  [
    'a sentence embedding of unknown shape',
    { output: 'sentence_embedding', shape: [] },
    /outputs sentence_embedding float32 \[\]/,
  ],
])('refused is %s', async (_, form, message) => {
  await expect(adaptOnnx(await exported(form), 'x.onnx', plainHead('mean'))).rejects.toMatchObject({
    code: 'MODEL_CORRUPT',
    message: expect.stringMatching(message) as unknown,
  });
});
