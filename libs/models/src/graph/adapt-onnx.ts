// An encoder that came as an .onnx file, given the inputs and the output that Shoal's graphs have. Files with our own
// are taken as they are; around the usual export (input_ids, attention_mask, token_type_ids → last_hidden_state) go a
// few nodes that make the mask before it and the model's sentence head after it. Everything else is refused with what was
// found.

import { ShoalError } from '@shoal/contract';
import type { Precision } from '@shoal/core';
import { MODEL, OnnxFile, TYPE, type ElementType } from './onnx-file.ts';
import { readGraph, readOpset, renamedGraph, type OnnxGraph, type OnnxValue } from './onnx-reader.ts';
import { addIsToken, addPooled, addSentenceHead } from './pooling.ts';
import { Message } from './protobuf.ts';
import { readFields } from './protobuf-reader.ts';
import { givesUnitVectors, headDims, type SentenceHead } from './sentence-head.ts';

export interface AdaptedOnnx {
  readonly bytes: Uint8Array;
  /** Values of what it gives for a token, or for a row where `isPooled`; undefined where the file does not say it. */
  readonly width: number | undefined;
  readonly precision: Precision;
  /** Whether nodes were put around the graph. */
  readonly isWrapped: boolean;
  /** It pools by itself: poolings and modules of the files around it are inside. */
  readonly isPooled: boolean;
}

/** Opsets in which the nodes put around have one form. */
const [FIRST_OPSET, LAST_OPSET] = [13, 23];
const HIDDEN_STATES = ['last_hidden_state', 'token_embeddings'];
const POOLED = 'sentence_embedding';
/** What both added graphs share, made by the first of them. */
const MADE_BEFORE = ['is_token', 'integer_0', 'integer_1', 'integers_1'];
/** Before every name of the graph that came, so that none is one of ours. */
const PREFIX = 'imported.';

/**
 * `file`: the bytes of the .onnx file; `where` names it in messages. What is pooled already has been through all of
 * `head` but its Normalize, as exporters leave it; a graph with our own inputs and output gives vectors of length 1.
 */
export async function adaptOnnx(file: Uint8Array, where: string, head: SentenceHead): Promise<AdaptedOnnx> {
  const graph = readGraph(file, where);
  const { precision } = graph;
  refuseFixedSizes(graph, where);
  if (isOurs(graph))
    return { bytes: file, width: lastSize(graph.outputs[0]!), precision, isWrapped: false, isPooled: true };
  const output = graph.outputs.find(isHiddenStates) ?? graph.outputs.find(isPooled);
  if (!canBeWrapped(graph) || output === undefined) throw unfit(graph, where);
  const opset = readOpset(file, where);
  if (opset < FIRST_OPSET || opset > LAST_OPSET)
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${where} uses opset ${opset}; ${FIRST_OPSET} to ${LAST_OPSET} can be adapted: export it again with one of them`,
      { where, opset },
    );
  const [width, isHidden] = [lastSize(output), isHiddenStates(output)];
  const dims = isHidden && width !== undefined ? headDims(head, width) : width;
  const around = [
    await beforeIt(graph).content(),
    renamedGraph(graph.bytes, PREFIX, where),
    await afterIt(output, head, { dims, opset }).content(),
  ];
  return { bytes: replaceGraph(file, around, where), width, precision, isWrapped: true, isPooled: !isHidden };
}

function isOurs({ inputs, outputs }: OnnxGraph): boolean {
  return (
    inputs.length === 2 &&
    has(inputs, 'input_ids', TYPE.INT32, 2) &&
    has(inputs, 'lengths', TYPE.INT32, 1) &&
    outputs.length === 1 &&
    has(outputs, 'embeddings', TYPE.FLOAT, 2)
  );
}

function has(values: readonly OnnxValue[], name: string, type: ElementType, rank: number): boolean {
  return values.some((value) => value.name === name && value.type === type && value.shape.length === rank);
}

function canBeWrapped({ inputs }: OnnxGraph): boolean {
  const known = ['input_ids', 'attention_mask', 'token_type_ids'];
  return (
    inputs.some(({ name }) => name === 'input_ids') &&
    inputs.every(
      ({ name, type, shape }) =>
        known.includes(name) && (type === TYPE.INT64 || type === TYPE.INT32) && shape.length === 2,
    )
  );
}

/**
 * The name says what the numbers are, and the file has to agree: a guess from the shape alone would give other vectors
 * without a word.
 */
function isHiddenStates({ name, type, shape }: OnnxValue): boolean {
  return HIDDEN_STATES.includes(name) && isFloat(type) && shape.length === 3;
}

function isPooled({ name, type, shape }: OnnxValue): boolean {
  return name === POOLED && isFloat(type) && shape.length === 2;
}

function isFloat(type: number): boolean {
  return type === TYPE.FLOAT || type === TYPE.FLOAT16;
}

/** Such a graph fails in the worker, at the first micro-batch of another size. */
function refuseFixedSizes({ inputs }: OnnxGraph, where: string): void {
  const fixed = inputs.filter(({ shape }) => shape.some((size) => size !== undefined));
  if (fixed.length === 0) return;
  throw new ShoalError(
    'MODEL_CORRUPT',
    `${where} takes ${inWords(fixed)} and nothing else, but every run has its own number of rows and tokens: ` +
      'export it again with both sizes dynamic',
    { where },
  );
}

/** Our inputs, and out of them those of the graph. */
function beforeIt({ inputs }: OnnxGraph): OnnxFile {
  const graph = new OnnxFile('before', {});
  graph.input('input_ids', TYPE.INT32, ['batch', 'seq']);
  graph.input('lengths', TYPE.INT32, ['batch']);
  for (const { name, type } of inputs) {
    const to = { integers: { to: type } };
    if (name === 'input_ids') graph.node('Cast', ['input_ids'], PREFIX + name, to);
    else if (name === 'attention_mask') graph.node('Cast', [addIsToken(graph)], PREFIX + name, to);
    else graph.node('Cast', [graph.node('Sub', ['input_ids', 'input_ids'], 'no_types')], PREFIX + name, to);
  }
  addIsToken(graph); // the mean needs it, too
  return graph;
}

/** Its output, brought through the head unless it already was. */
function afterIt(
  output: OnnxValue,
  head: SentenceHead,
  { dims, opset }: { readonly dims: number | undefined; readonly opset: number },
): OnnxFile {
  const { name, type } = output;
  const graph = new OnnxFile('after', { '': opset }, MADE_BEFORE);
  const elements = type === TYPE.FLOAT16 ? TYPE.FLOAT16 : TYPE.FLOAT;
  if (isHiddenStates(output)) addSentenceHead(graph, PREFIX + name, elements, head);
  else addPooled(graph, PREFIX + name, elements, givesUnitVectors(head) ? [{ kind: 'normalize' }] : []);
  graph.output('embeddings', TYPE.FLOAT, ['batch', dims ?? 'dims']);
  return graph;
}

function replaceGraph(file: Uint8Array, content: readonly Uint8Array[], where: string): Uint8Array {
  const kept = [...readFields(file, where)].filter(({ number }) => number !== MODEL.GRAPH).map(({ raw }) => raw);
  const bytes = content.reduce((sum, piece) => sum + piece.length, 0);
  return Buffer.concat([...kept, new Message().head(MODEL.GRAPH, bytes).finish(), ...content]);
}

function lastSize({ shape }: OnnxValue): number | undefined {
  return shape.at(-1);
}

function unfit({ inputs, outputs }: OnnxGraph, where: string): ShoalError {
  return new ShoalError(
    'MODEL_CORRUPT',
    `${where} has the inputs ${inWords(inputs)} and the outputs ${inWords(outputs)}. Needed are either ` +
      'input_ids int32 [batch, seq], lengths int32 [batch] → embeddings float32 [batch, dims], ' +
      'or what exports of encoders have: input_ids, attention_mask and perhaps token_type_ids, int64 [batch, ' +
      'seq] → last_hidden_state, float32 or float16 [batch, seq, dims], or sentence_embedding [batch, dims]; a ' +
      'file that says no shape has [] here',
    { where },
  );
}

function inWords(values: readonly OnnxValue[]): string {
  return (
    values
      .map(({ name, typeName, shape }) => `${name} ${typeName} [${shape.map((size) => size ?? '?').join(', ')}]`)
      .join(', ') || 'none'
  );
}
