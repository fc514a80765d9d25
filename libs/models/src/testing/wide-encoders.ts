// Configs at the widths of real models, two layers each and a small vocabulary: heads of 64, 128 and 256 values, 12 to 32
// of them, fewer for keys, windows as they are.

import { CheckedJson } from '../checked-json.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import type { EncoderDescription } from '../encoder/encoder-description.ts';

const CONFIGS: Readonly<Record<string, object>> = {
  'xlm-roberta, 1024 wide': {
    model_type: 'xlm-roberta',
    hidden_size: 1024,
    num_attention_heads: 16,
    intermediate_size: 4096,
    type_vocab_size: 1,
  },
  'mpnet, 768 wide': { model_type: 'mpnet', max_position_embeddings: 514 },
  'nomic_bert, 768 wide': { model_type: 'nomic_bert' },
  'gte, 1024 wide': { model_type: 'gte', hidden_size: 1024, num_attention_heads: 16, intermediate_size: 4096 },
  'modernbert, 768 wide': { model_type: 'modernbert' },
  'qwen3, heads of 128': {
    model_type: 'qwen3',
    hidden_size: 1024,
    num_attention_heads: 16,
    num_key_value_heads: 8,
    intermediate_size: 3072,
    rope_theta: 1_000_000,
  },
  'mistral, heads of 128': {
    model_type: 'mistral',
    hidden_size: 2048,
    num_attention_heads: 16,
    num_key_value_heads: 4,
    intermediate_size: 4096,
    sliding_window: 96,
  },
  'gemma3_text, heads of 256': {
    model_type: 'gemma3_text',
    hidden_size: 768,
    num_attention_heads: 3,
    num_key_value_heads: 1,
    intermediate_size: 1152,
    sliding_window: 128,
    sliding_window_pattern: 2,
    use_bidirectional_attention: true,
  },
};

/** By what is particular. */
export function wideEncoders(): readonly (readonly [name: string, encoder: EncoderDescription])[] {
  return Object.entries(CONFIGS).map(([name, config]) => {
    const small = { num_hidden_layers: 2, vocab_size: 1000, ...config };
    return [name, describeEncoder(CheckedJson.of(small, name))];
  });
}

/** Rows of these lengths with ids of a vocabulary of 1,000. */
export function wideRows(lengths: readonly number[]): readonly (readonly number[])[] {
  return lengths.map((length, row) => Array.from({ length }, (_, at) => 4 + ((at * 37 + row * 101) % 990)));
}
