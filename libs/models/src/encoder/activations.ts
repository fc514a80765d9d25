// Names that config.json gives to activations, and which function each is (transformers' ACT2FN).

import type { ConfigReader } from './config-reader.ts';
import type { Activation } from './encoder-description.ts';

const NAMES: Readonly<Record<string, Activation>> = {
  gelu: 'gelu',
  gelu_python: 'gelu',
  gelu_new: 'gelu-tanh',
  gelu_fast: 'gelu-tanh',
  gelu_pytorch_tanh: 'gelu-tanh',
  gelu_python_tanh: 'gelu-tanh',
  silu: 'silu',
  swish: 'silu',
  relu: 'relu',
};

export function activationOf(config: ConfigReader, key: string | readonly string[], otherwise: string): Activation {
  const name = config.text(key, otherwise);
  if (Object.hasOwn(NAMES, name)) return NAMES[name]!;
  const keys = typeof key === 'string' ? [key] : key;
  return config.refuse(
    keys.find((each) => config.json.has(each))!,
    `only ${Object.keys(NAMES)
      .map((known) => JSON.stringify(known))
      .join(', ')} are supported`,
  );
}
