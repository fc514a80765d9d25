// Tensors of any encoder without a file: every name that is asked for is there, with numbers drawn from its name, of a
// size that keeps states near 1. For graphs at the widths of real models, whose weights are not here.

import type { EncoderDescription } from '../encoder/encoder-description.ts';
import type { NamedTensors } from '../graph/named-tensors.ts';
import { seededNumbers } from './made-models.ts';

export class RandomTensors implements NamedTensors {
  readonly path = 'random tensors';
  readonly names: readonly string[];
  readonly #shapes = new Map<string, readonly number[]>();

  constructor({ names }: EncoderDescription) {
    this.names = [names.words];
  }

  has(): boolean {
    return true;
  }

  expect(name: string, shape: readonly number[]): void {
    this.#shapes.set(name, shape);
  }

  stored(name: string): never {
    throw new TypeError(`${name} is in no file`);
  }

  async read(name: string): Promise<Float32Array> {
    const shape = this.#shapes.get(name)!;
    const random = seededNumbers(1, name);
    const isTable = /embed/.test(name);
    const [scale, centre] = shape.length === 1 ? vectorValues(name) : [isTable ? 1 : Math.sqrt(3 / shape[1]!), 0];
    return Float32Array.from(
      { length: shape.reduce((product, size) => product * size, 1) },
      () => random() * scale + centre,
    );
  }
}

/** Factors of norms are near 1, biases near 0. */
function vectorValues(name: string): readonly [scale: number, centre: number] {
  return name.endsWith('.weight') ? [0.2, 1] : [0.1, 0];
}
