// tokenizer.json and tokenizer_config.json as one: what is stored for made tokenizers of every kind, and what is refused.

import { readFile } from 'node:fs/promises';
import { beforeAll, describe, expect, test } from 'vitest';
import { CheckedJson } from '../checked-json.ts';
import { madeFacts, madeNames, madeTokenizer } from '../testing/made-models.ts';
import { makeTokenizer } from '../tokenizer/make-tokenizer.ts';
import { parseTokenizerJson } from '../tokenizer/tokenizer-json.ts';
import { effectiveTokenizer } from './tokenizer-config.ts';
import type { EffectiveTokenizer } from './tokenizer-source.ts';

async function madeTokenizerConfig(name: string): Promise<object> {
  const path = new URL(`../../fixtures/made/${name}/tokenizer_config.json`, import.meta.url);
  return JSON.parse(await readFile(path, 'utf8')) as object;
}

let xlmr: string;
let mpnet: string;

beforeAll(async () => {
  [xlmr, mpnet] = await Promise.all([madeTokenizer('xlmr'), madeTokenizer('mpnet')]);
});

function effective(text: string, config: object | undefined): EffectiveTokenizer {
  return effectiveTokenizer({
    text,
    where: 'tokenizer.json',
    config: config === undefined ? undefined : CheckedJson.of(config, 'tokenizer_config.json'),
    specialTokens: undefined,
    addedTokens: undefined,
    modelTokenizerClass: undefined,
  });
}

interface Root {
  normalizer: object | null;
  pre_tokenizer: object | null;
  post_processor: object | null;
  padding: object | null;
  added_tokens: { content: string }[];
  model: { unk_id: number };
}

function changed(text: string, change: (root: Root) => void): string {
  const root = JSON.parse(text) as Root;
  change(root);
  return JSON.stringify(root);
}

const idsOf = (json: string): readonly number[] => [
  ...makeTokenizer(parseTokenizerJson(json, 'tokenizer.json'), { hash: '', maxTokens: 99 }).encode('a ').ids,
];

const METASPACE = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true };

describe('a Unigram tokenizer', () => {
  test.each([
    'PreTrainedTokenizerFast',
    'TokenizersBackend',
    'XLMRobertaTokenizer',
    'XLMRobertaTokenizerFast',
    'CamembertTokenizer',
  ])('of the class %s is stored as it is where the class builds the same', (tokenizer_class) => {
    expect(effective(xlmr, { tokenizer_class, model_max_length: 512 })).toEqual({ text: xlmr, limit: 512, notes: [] });
  });

  test('without a class is read as it is, and says so', () => {
    expect(effective(xlmr, undefined).notes).toEqual([
      'no "tokenizer_class" is given: tokenizer.json is read as it is',
    ]);
  });

  test('of XLM-R’s class is stored as transformers builds it, with a note', () => {
    const file = changed(xlmr, (root) => (root.pre_tokenizer = METASPACE));
    const { text, notes } = effective(file, { tokenizer_class: 'XLMRobertaTokenizer' });
    expect(notes.join()).toMatch(/pre_tokenizer is taken as transformers builds it for a XLMRobertaTokenizer/);
    expect(idsOf(text)).toEqual(idsOf(xlmr));
    expect(idsOf(text)).not.toEqual(idsOf(file));
  });

  test('that is padded on the left has the vectors that a text has alone, and says so', () => {
    const { notes } = effective(xlmr, { tokenizer_class: 'TokenizersBackend', padding_side: 'left' });
    expect(notes).toEqual([
      'tokenizer_config.json pads on the left; nothing is padded there: texts have the vectors that they have alone',
    ]);
    const file = changed(xlmr, (root) => (root.padding = { direction: 'Left' }));
    expect(effective(file, { tokenizer_class: 'TokenizersBackend' }).notes.join()).toMatch(
      /^tokenizer.json: padding pads/,
    );
  });

  test.each<[string, object, RegExp]>([
    [
      'another class',
      { tokenizer_class: 'T5Tokenizer' },
      /"tokenizer_class" is T5Tokenizer, which transformers builds anew/,
    ],
    ['truncation on the left', { truncation_side: 'left' }, /config\.json: "truncation_side" is "left"; only "right"/],
    ['special tokens that are split', { split_special_tokens: true }, /"split_special_tokens" is true/],
    [
      'no token before texts',
      { add_bos_token: false },
      /"add_bos_token" is false, which puts nothing before .* the ids 0/,
    ],
    [
      'no token behind texts',
      { add_eos_token: false },
      /"add_eos_token" is false, which puts nothing behind .* the ids 2/,
    ],
    ['a token without an id', { cls_token: '<new>' }, /"<new>", for which tokenizer\.json has no id/],
    [
      'an added token with another flag',
      { added_tokens_decoder: { 0: { content: '<s>', lstrip: true } } },
      /added_tokens_decoder: 0: "lstrip" is true for "<s>", and in tokenizer\.json false/,
    ],
    [
      'an added token with another id',
      { added_tokens_decoder: { 7: { content: '<s>' } } },
      /"<s>" has the id 7, in .* 0/,
    ],
  ])('is refused with %s', (_, config, message) => {
    expect(() => effective(xlmr, { tokenizer_class: 'PreTrainedTokenizerFast', ...config })).toThrow(message);
  });

  test('whose ends only one key of two speaks of keeps them, and says so', () => {
    const config = { tokenizer_class: 'TokenizersBackend', add_bos_token: true, bos_token: '<s>' };
    expect(effective(xlmr, config).notes).toEqual([
      'tokenizer.json puts tokens behind texts, and tokenizer_config.json has no "add_eos_token": they are put there',
    ]);
  });

  test.each<[string, (root: Root) => void, RegExp]>([
    ['another unknown token', (root) => (root.model.unk_id = 5), /"unk_id" is 5 .* transformers takes 3 and false/],
    ['other ends', (root) => (root.post_processor = null), /post_processor: it does not put <s> before a text/],
  ])('of XLM-R’s class is refused with %s', (_, change, message) => {
    expect(() => effective(changed(xlmr, change), { tokenizer_class: 'XLMRobertaTokenizer' })).toThrow(message);
  });

  test('finds a special token that only tokenizer_config.json names', () => {
    const file = changed(
      xlmr,
      (root) => (root.added_tokens = root.added_tokens.filter(({ content }) => content !== '<pad>')),
    );
    const { text, notes } = effective(file, { tokenizer_class: 'TokenizersBackend', pad_token: '<pad>' });
    expect(notes).toEqual(['"<pad>" in a text is one token, as transformers has it, not tokenizer.json']);
    expect((JSON.parse(text) as Root).added_tokens).toContainEqual(
      expect.objectContaining({ id: 1, content: '<pad>' }),
    );
  });
});

test('of every made model of these kinds is stored as it is, but where tokenizer_config.json says otherwise', async () => {
  const stored = await Promise.all(
    (await madeNames())
      .filter((name) => !name.startsWith('static-')) // no tokenizer_config.json is read beside them
      .map(async (name) => {
        const text = await madeTokenizer((await madeFacts(name)).tokenizer);
        if (!/"type":\s*"(WordPiece|Unigram)"/.test(text)) return `${name}: another kind`;
        return `${name}: ${effective(text, await madeTokenizerConfig(name)).text === text ? 'as it is' : 'changed'}`;
      }),
  );
  expect(stored.filter((line) => line.endsWith('changed'))).toEqual([
    'bert-config-keeps-accents: changed',
    'bert-config-lowercases: changed',
  ]);
  expect(stored.filter((line) => line.endsWith('as it is')).length).toBeGreaterThan(30);
});

describe('MPNet’s tokenizer', () => {
  const config = { tokenizer_class: 'MPNetTokenizer', do_lower_case: true, mask_token: '<mask>' };

  test('is stored as it is where the class builds the same', () => {
    expect(effective(mpnet, config).text).toBe(mpnet);
  });

  test('has other special tokens than BERT’s', () => {
    expect(() => effective(mpnet, { ...config, cls_token: '[UNK]' })).toThrow(
      /"cls_token" is "\[UNK\]", whose id is 4, but/,
    );
  });
});
