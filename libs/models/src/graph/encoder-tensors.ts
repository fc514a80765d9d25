// The tensors of an encoder under the names their authors gave them, with or without a prefix such as "bert.". Each is
// checked when it is asked for, and at the end nothing of the encoder may be left over: a layer that the config does not
// know, or a part that this graph does not have, would otherwise give plausible and wrong vectors.

import { ShoalError } from '@shoal/contract';
import type { MakeFloats } from './onnx-file.ts';
import type { TensorNames } from '../encoder/encoder-description.ts';
import { BERT_NAMES } from '../encoder/bert-family.ts';
import type { NamedTensors, StoredTensor } from './named-tensors.ts';

/** Before 2019 the parts of a norm had other names; transformers takes both. */
const OLD_NAMES = [
  [/LayerNorm\.weight$/, 'LayerNorm.gamma'],
  [/LayerNorm\.bias$/, 'LayerNorm.beta'],
] as const;

export class EncoderTensors {
  readonly #file: NamedTensors;
  readonly #names: TensorNames;
  readonly #prefix: string;
  readonly #used = new Set<string>();

  constructor(file: NamedTensors, names: TensorNames = BERT_NAMES) {
    this.#file = file;
    this.#names = names;
    const { words } = names;
    const isTable = (name: string): boolean => name === words || name.endsWith(`.${words}`);
    const [table = words, ...others] = file.names.filter(isTable);
    if (others.length > 0)
      throw new ShoalError(
        'MODEL_CORRUPT',
        `${file.path} holds ${1 + others.length} encoders (${[table, ...others].join(', ')}); a model is one`,
        { tensors: [table, ...others] },
      );
    this.#prefix = table.slice(0, -words.length);
  }

  /** The tensor of the word table; for messages. */
  get wordTable(): string {
    return this.#prefix + this.#names.words;
  }

  /** The values of a tensor as they are stored. */
  tensor(name: string, shape: readonly number[]): MakeFloats {
    const full = this.#take(name, shape);
    return () => this.#file.read(full);
  }

  /** The values of a tensor outside the encoder, by its whole name. */
  outside(name: string, shape: readonly number[]): MakeFloats {
    this.#file.expect(name, shape);
    this.#used.add(name);
    return () => this.#file.read(name);
  }

  /** A tensor outside the encoder as it lies in the file, by its whole name. */
  stored(name: string): StoredTensor {
    this.#used.add(name);
    return this.#file.stored(name);
  }

  /** The file that says what tensors there are; for messages. */
  get path(): string {
    return this.#file.path;
  }

  /** A linear layer's weight [outputs, inputs] as the matrix [inputs, outputs] that MatMul takes. */
  transposed(name: string, outputs: number, inputs: number): MakeFloats {
    const full = this.#take(name, [outputs, inputs]);
    return async () => {
      const matrix = new Float32Array(inputs * outputs);
      transposeInto(matrix, outputs, 0, await this.#file.read(full), outputs, inputs);
      return matrix;
    };
  }

  /** Several weights [outputs, inputs] side by side: [inputs, names × outputs]. */
  transposedBeside(names: readonly string[], outputs: number, inputs: number): MakeFloats {
    const all = names.map((name) => this.#take(name, [outputs, inputs]));
    return async () => {
      const width = outputs * all.length;
      const matrix = new Float32Array(inputs * width);
      for (const [index, full] of all.entries())
        transposeInto(matrix, width, index * outputs, await this.#file.read(full), outputs, inputs);
      return matrix;
    };
  }

  /** Several vectors one after the other. */
  joined(names: readonly string[], size: number): MakeFloats {
    const all = names.map((name) => this.#take(name, [size]));
    return async () => {
      const values = new Float32Array(size * all.length);
      for (const [index, full] of all.entries()) values.set(await this.#file.read(full), index * size);
      return values;
    };
  }

  /** The rows of `table`, each with the first row of `addend` added. */
  withFirstRowAdded(table: string, addend: string, shape: readonly [number, number], addendRows: number): MakeFloats {
    const [fullTable, fullAddend] = [this.#take(table, shape), this.#take(addend, [addendRows, shape[1]])];
    return async () => {
      const [values, row] = [await this.#file.read(fullTable), await this.#file.read(fullAddend)];
      for (let at = 0; at < values.length; at++) values[at]! += row[at % shape[1]]!;
      return values;
    };
  }

  /** Throws when the file has tensors that nobody took: of the encoder, or of a head that makes it no embedder. */
  expectAllTaken(): void {
    for (const name of this.#file.names) {
      const short = name.startsWith(this.#prefix) ? name.slice(this.#prefix.length) : name;
      if (this.#used.has(name) || this.#names.withoutUse.test(short)) continue;
      const problem = this.#names.encoder.test(short)
        ? 'has no place in the model that config.json describes'
        : 'is no part of an encoder: a head, an adapter or another module whose work would be left out';
      throw new ShoalError('MODEL_CORRUPT', `${this.#file.path}: tensor ${name} ${problem}`, { tensor: name });
    }
  }

  #take(name: string, shape: readonly number[]): string {
    const full = this.#nameInFile(this.#prefix + name);
    this.#file.expect(full, shape);
    this.#used.add(full);
    return full;
  }

  #nameInFile(name: string): string {
    if (this.#file.has(name)) return name;
    const old = OLD_NAMES.map(([pattern, other]) => name.replace(pattern, other)).find((other) =>
      this.#file.has(other),
    );
    return old ?? name;
  }
}

/** Squares of 32 × 32 keep both sides in the first cache. */
const BLOCK = 32;

/**
 * Writes the transpose of `source` [rows, columns] into `target`, rows of `width` values, beginning at column `offset`.
 */
export function transposeInto(
  target: Float32Array,
  width: number,
  offset: number,
  source: Float32Array,
  rows: number,
  columns: number,
): void {
  for (let top = 0; top < rows; top += BLOCK) {
    for (let left = 0; left < columns; left += BLOCK) {
      const [bottom, right] = [Math.min(rows, top + BLOCK), Math.min(columns, left + BLOCK)];
      for (let row = top; row < bottom; row++) {
        for (let column = left; column < right; column++)
          target[column * width + offset + row] = source[row * columns + column]!;
      }
    }
  }
}
