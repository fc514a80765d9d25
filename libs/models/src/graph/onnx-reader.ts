// What an .onnx file says about itself: inputs, outputs, opset, the types of its weights; and the same graph under
// other names. Reads the file's own bytes and runs nothing. Refuses files whose weights lie elsewhere, and what is no
// ONNX.

import { ShoalError } from '@shoal/contract';
import type { Precision } from '@shoal/core';
import { GRAPH, MODEL, TYPE } from './onnx-file.ts';
import { Message } from './protobuf.ts';
import { readFields, textOf, type Field } from './protobuf-reader.ts';

export interface OnnxValue {
  readonly name: string;
  readonly type: number;
  readonly typeName: string;
  /** Undefined where each run chooses. */
  readonly shape: readonly (number | undefined)[];
}

export interface OnnxGraph {
  /** The graph's message. */
  readonly bytes: Uint8Array;
  readonly inputs: readonly OnnxValue[];
  readonly outputs: readonly OnnxValue[];
  /** Of the larger part of its weights. */
  readonly precision: Precision;
}

const NODE = { INPUT: 1, OUTPUT: 2, ATTRIBUTE: 5 } as const;
const ATTRIBUTE = { GRAPH: 6, GRAPHS: 11 } as const;
const TENSOR = { TYPE: 2, NAME: 8, EXTERNAL: 13 } as const;
/** Notes about values; a graph runs without them. */
const NOTES = new Set([13, 14]);
const SPARSE_INITIALIZER = 15;
const TYPE_NAMES: Readonly<Record<number, string>> = {
  1: 'float32',
  2: 'uint8',
  3: 'int8',
  6: 'int32',
  7: 'int64',
  9: 'bool',
  10: 'float16',
  11: 'float64',
  16: 'bfloat16',
};

export function readGraph(file: Uint8Array, where: string): OnnxGraph {
  const graphs = [...readFields(file, where)].filter(({ number }) => number === MODEL.GRAPH);
  if (graphs.length !== 1)
    throw new ShoalError('MODEL_CORRUPT', `${where} is not an ONNX file: it has ${graphs.length} graphs`, { where });
  const bytes = graphs[0]!.bytes;
  const fields = [...readFields(bytes, where)];
  const tensors = fields
    .filter(({ number }) => number === GRAPH.INITIALIZER)
    .map(({ bytes: tensor }) => readTensor(tensor, where));
  const weights = new Set(tensors.map(({ name }) => name));
  const valuesOf = (kind: number): OnnxValue[] =>
    fields.filter(({ number }) => number === kind).map(({ bytes: value }) => readValue(value, where));
  return {
    bytes,
    inputs: valuesOf(GRAPH.INPUT).filter(({ name }) => !weights.has(name)),
    outputs: valuesOf(GRAPH.OUTPUT),
    precision: precisionOf(tensors),
  };
}

/** Version of ONNX's own operators. */
export function readOpset(file: Uint8Array, where: string): number {
  const sets = [...readFields(file, where)]
    .filter(({ number }) => number === MODEL.OPSET)
    .map(({ bytes }) => [...readFields(bytes, where)]);
  const own = sets.find((fields) =>
    fields.every((field) => field.number !== 1 || ['', 'ai.onnx'].includes(textOf(field))),
  );
  return own?.find(({ number }) => number === 2)?.integer ?? 0;
}

/** The fields of the graph with `prefix` before every name, without its inputs and outputs. */
export function renamedGraph(graph: Uint8Array, prefix: string, where: string): Uint8Array {
  return Buffer.concat(
    renamedFields(graph, prefix, where)
      .filter(({ number }) => number !== GRAPH.INPUT && number !== GRAPH.OUTPUT)
      .map(({ bytes }) => bytes),
  );
}

interface Piece {
  readonly number: number;
  /** The whole field. */
  readonly bytes: Uint8Array;
}

function renamedFields(graph: Uint8Array, prefix: string, where: string): readonly Piece[] {
  return [...readFields(graph, where)]
    .filter(({ number }) => !NOTES.has(number))
    .map((field) => {
      const { number } = field;
      if (number === SPARSE_INITIALIZER)
        throw new ShoalError('MODEL_CORRUPT', `${where} has sparse weights, which cannot be adapted`, { where });
      if (number === GRAPH.NODE) return piece(number, renamedNode(field.bytes, prefix, where));
      if (number === GRAPH.INITIALIZER) return piece(number, withPrefix(field.bytes, [TENSOR.NAME], prefix, where));
      if (number === GRAPH.INPUT || number === GRAPH.OUTPUT)
        return piece(number, withPrefix(field.bytes, [1], prefix, where));
      return { number, bytes: field.raw };
    });
}

/** Graphs inside a node (of If, Loop, Scan) use names from outside, so theirs change in the same way. */
function renamedNode(node: Uint8Array, prefix: string, where: string): Uint8Array[] {
  const renamed = Buffer.concat(withPrefix(node, [NODE.INPUT, NODE.OUTPUT], prefix, where));
  return [...readFields(renamed, where)].map((field) => {
    if (field.number !== NODE.ATTRIBUTE) return field.raw;
    const inner = [...readFields(field.bytes, where)].map((part) =>
      part.number === ATTRIBUTE.GRAPH || part.number === ATTRIBUTE.GRAPHS
        ? piece(
            part.number,
            renamedFields(part.bytes, prefix, where).map(({ bytes }) => bytes),
          ).bytes
        : part.raw,
    );
    return piece(NODE.ATTRIBUTE, inner).bytes;
  });
}

/** The message with `prefix` before the strings of these fields; an empty one means "not given" and stays. */
function withPrefix(message: Uint8Array, numbers: readonly number[], prefix: string, where: string): Uint8Array[] {
  const rename = (field: Field): Uint8Array => new Message().text(field.number, prefix + textOf(field)).finish();
  return [...readFields(message, where)].map((field) =>
    numbers.includes(field.number) && field.bytes.length > 0 ? rename(field) : field.raw,
  );
}

function piece(number: number, content: readonly Uint8Array[]): Piece {
  const length = content.reduce((sum, part) => sum + part.length, 0);
  return { number, bytes: Buffer.concat([new Message().head(number, length).finish(), ...content]) };
}

function readTensor(
  tensor: Uint8Array,
  where: string,
): { readonly name: string; readonly type: number; readonly bytes: number } {
  let [name, type] = ['', 0];
  for (const field of readFields(tensor, where)) {
    if (field.number === TENSOR.NAME) name = textOf(field);
    else if (field.number === TENSOR.TYPE) type = field.integer;
    else if (field.number === TENSOR.EXTERNAL)
      throw new ShoalError(
        'MODEL_CORRUPT',
        `${where} keeps its weights in another file; save it as one file (up to 2 GB)`,
        { where },
      );
  }
  return { name, type, bytes: tensor.length };
}

function precisionOf(tensors: readonly { readonly type: number; readonly bytes: number }[]): Precision {
  const bytesOf = (...types: number[]): number =>
    tensors.filter(({ type }) => types.includes(type)).reduce((sum, { bytes }) => sum + bytes, 0);
  const [full, half, whole] = [bytesOf(TYPE.FLOAT), bytesOf(TYPE.FLOAT16), bytesOf(TYPE.INT8, TYPE.UINT8)];
  if (whole > full && whole > half) return 'int8';
  return half > full ? 'fp16' : 'fp32';
}

function readValue(value: Uint8Array, where: string): OnnxValue {
  const inside = (message: Uint8Array, number: number): Field[] =>
    [...readFields(message, where)].filter((field) => field.number === number);
  const tensor = inside(value, 2).flatMap(({ bytes }) => inside(bytes, 1))[0]?.bytes ?? new Uint8Array(0);
  const type = inside(tensor, 1)[0]?.integer ?? 0;
  const sizes = inside(tensor, 2).flatMap(({ bytes }) => inside(bytes, 1));
  return {
    name: inside(value, 1).map(textOf).join(''),
    type,
    typeName: TYPE_NAMES[type] ?? `type ${type}`,
    shape: sizes.map(({ bytes }) => inside(bytes, 1)[0]?.integer),
  };
}
