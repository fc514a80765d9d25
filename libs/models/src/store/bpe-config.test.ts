// tokenizer_config.json beside a BPE tokenizer.json. What transformers 5.24 builds for each class was looked at there.

import { describe, expect, test } from 'vitest';
import { CheckedJson } from '../checked-json.ts';
import { madeTokenizer } from '../testing/made-models.ts';
import { effectiveTokenizer } from './tokenizer-config.ts';
import type { EffectiveTokenizer } from './tokenizer-source.ts';

async function effective(
  kind: string,
  config: object,
  change: (root: Root) => unknown = () => 0,
): Promise<EffectiveTokenizer> {
  const root = JSON.parse(await madeTokenizer(kind)) as Root;
  change(root);
  return effectiveTokenizer({
    text: JSON.stringify(root),
    where: 'tokenizer.json',
    config: CheckedJson.of(config, 'tokenizer_config.json'),
    specialTokens: undefined,
    addedTokens: undefined,
    modelTokenizerClass: undefined,
  });
}

type Root = Record<string, unknown> & { model: Record<string, unknown> };

describe('a BPE tokenizer', () => {
  test.each([
    ['qwen', 'Qwen2TokenizerFast'],
    ['qwen', 'PreTrainedTokenizerFast'],
    ['roberta', 'RobertaTokenizer'],
    ['gemma', 'GemmaTokenizer'],
    ['mistral', 'TokenizersBackend'],
  ])('%s of the class %s is stored as it is', async (kind, tokenizer_class) => {
    const { text, notes } = await effective(kind, { tokenizer_class, model_max_length: 512 });
    expect(JSON.parse(text)).toEqual(JSON.parse(await madeTokenizer(kind)));
    expect(notes).toEqual([]);
  });

  test('of Llama’s class is taken where the file says what transformers builds', async () => {
    const metaspace = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false };
    const { notes } = await effective('mistral', { tokenizer_class: 'LlamaTokenizer' }, (root) =>
      Object.assign(root, { normalizer: null, pre_tokenizer: metaspace }),
    );
    expect(notes).toEqual([]);
  });

  test.each<[string, string, object, (root: Root) => unknown, RegExp]>([
    [
      'another class',
      'qwen',
      { tokenizer_class: 'BloomTokenizer' },
      () => 0,
      /"tokenizer_class" is BloomTokenizer, which transformers builds anew/,
    ],
    [
      'a normalizer that the class has not',
      'roberta',
      { tokenizer_class: 'RobertaTokenizer' },
      (root) => (root['normalizer'] = { type: 'NFC' }),
      /tokenizer\.json: normalizer: it is \(NFC\), and transformers builds \(nothing\) for a RobertaTokenizer/,
    ],
    [
      'no normalizer where the class has one',
      'qwen',
      { tokenizer_class: 'Qwen2Tokenizer' },
      (root) => (root['normalizer'] = null),
      /it is \(nothing\), and transformers builds \(NFC\)/,
    ],
    [
      'a blank before texts',
      'qwen',
      { tokenizer_class: 'Qwen2Tokenizer', add_prefix_space: true },
      () => 0,
      /tokenizer\.json: pre_tokenizer: it is/,
    ],
    [
      'words before merges',
      'qwen',
      { tokenizer_class: 'Qwen2Tokenizer' },
      (root) => (root.model['ignore_merges'] = true),
      /tokenizer\.json: model: it is \(words before merges\)/,
    ],
    [
      'Llama’s older steps',
      'mistral',
      { tokenizer_class: 'LlamaTokenizer' },
      () => 0,
      /normalizer: it is \(Prepend, Rep/,
    ],
    [
      'no tokens around texts',
      'roberta',
      { tokenizer_class: 'RobertaTokenizer' },
      (root) => (root['post_processor'] = null),
      /post_processor: it puts nothing before a text; for a RobertaTokenizer transformers puts <s> there/,
    ],
    ['another end', 'qwen', { add_eos_token: false }, () => 0, /"add_eos_token" is false, which puts nothing behind/],
  ])('is refused with %s', async (_, kind, config, change, message) => {
    await expect(effective(kind, config, change)).rejects.toThrow(message);
  });
});
