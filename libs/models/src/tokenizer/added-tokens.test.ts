// Added tokens with all their flags, and what is put around texts, against the official package: a small WordPiece
// tokenizer in which tokens begin, end, hold and overlap each other.

import { describe, expect, test } from 'vitest';
import tokenizers from 'tokenizers';
import { ReferenceTokenizer } from '../testing/reference-tokenizer.ts';
import { randomStrings } from '../testing/texts.ts';
import type { PairPart } from './ends.ts';
import { makeTokenizer } from './make-tokenizer.ts';
import { parseTokenizerJson } from './tokenizer-json.ts';

const PIECES = [
  '[PAD]',
  '[UNK]',
  '[CLS]',
  '[SEP]',
  'a',
  'b',
  'ab',
  '##a',
  '##b',
  'x',
  '##x',
  '-',
  '<',
  '>',
  '中',
  'é',
  'e',
];
const vocab = Object.fromEntries(PIECES.map((piece, id) => [piece, id]));

interface Flags {
  readonly single_word?: boolean;
  readonly lstrip?: boolean;
  readonly rstrip?: boolean;
  readonly normalized?: boolean;
}

function fileWith(tokens: readonly (readonly [string, Flags])[], more: object = {}): string {
  const none = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: false };
  let next = PIECES.length;
  return JSON.stringify({
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: tokens.map(([content, flags]) => ({ id: vocab[content] ?? next++, content, ...none, ...flags })),
    normalizer: {
      type: 'BertNormalizer',
      clean_text: true,
      handle_chinese_chars: true,
      strip_accents: null,
      lowercase: true,
    },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: null,
    decoder: null,
    model: {
      type: 'WordPiece',
      unk_token: '[UNK]',
      continuing_subword_prefix: '##',
      max_input_chars_per_word: 10,
      vocab,
    },
    ...more,
  });
}

const WORDS = [
  '<m>',
  '<M>',
  '<m',
  'A-b',
  'a-B',
  'x',
  ' ',
  '  ',
  '\t',
  '\u00a0',
  '-',
  'é',
  'E\u0301',
  '中',
  '中x',
  'xx',
  '\u0301',
  '_',
  '\u200b',
];

/** Strings of these words and of anything else. */
function texts(): readonly string[] {
  let state = 7;
  const below = (limit: number): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state >>> 8) % limit;
  };
  const made = Array.from({ length: 4_000 }, () =>
    Array.from({ length: 1 + below(9) }, () => WORDS[below(WORDS.length)]!).join(''),
  );
  return [...made, ...randomStrings(500, 5).map((text, at) => `${text}${WORDS[at % WORDS.length]!}${text}`)];
}

describe('added tokens are found as by the official package', () => {
  test.each<[string, readonly (readonly [string, Flags])[]]>([
    [
      'plain ones, the longest first',
      [
        ['<m>', {}],
        ['<m', {}],
        ['x', {}],
        ['xx', {}],
      ],
    ],
    [
      'blanks taken from both sides',
      [
        ['<m>', { lstrip: true }],
        ['<m', { rstrip: true }],
        ['x', { lstrip: true, rstrip: true }],
      ],
    ],
    [
      'blanks that are tokens themselves',
      [
        ['<m>', { rstrip: true }],
        [' ', {}],
        ['  ', {}],
      ],
    ],
    [
      'single words only',
      [
        ['x', { single_word: true }],
        ['a-b', { single_word: true }],
        ['b', {}],
        ['<m>', { single_word: true }],
      ],
    ],
    [
      'normalized ones',
      [
        ['A-b', { normalized: true }],
        ['É', { normalized: true }],
        ['<m>', {}],
      ],
    ],
    [
      'normalized ones with blanks and Chinese',
      [
        ['x  X', { normalized: true }],
        ['中', { normalized: true }],
      ],
    ],
    [
      'normalized single words',
      [
        ['X', { normalized: true, single_word: true }],
        ['-', { normalized: true, single_word: true }],
      ],
    ],
    [
      'normalized ones that take blanks',
      [
        ['<M>', { normalized: true, lstrip: true }],
        ['x', { normalized: true, rstrip: true }],
      ],
    ],
  ])('%s', async (_, tokens) => {
    const json = fileWith(tokens);
    const ours = makeTokenizer(parseTokenizerJson(json, 'tokenizer.json'), { hash: '', maxTokens: 1_000 });
    const all = texts();
    const theirs = await new ReferenceTokenizer(json).encode(all);
    const differing = all.flatMap((text, at) => {
      const found = ours.encode(text).ids;
      return String(found) === String(theirs[at]!.ids) ? [] : [{ text, found, expected: theirs[at]!.ids }];
    });
    expect(differing.slice(0, 3)).toEqual([]);
  });

  test('two of one normalized form are refused: there it is a matter of luck which is found', () => {
    const json = fileWith([
      ['Queue!', { normalized: true }],
      ['QUEUE!', { normalized: true }],
    ]);
    expect(() => makeTokenizer(parseTokenizerJson(json, 'tokenizer.json'), { hash: '', maxTokens: 9 })).toThrow(
      '"QUEUE!" is looked for in normalized text, where it is the same as "Queue!"',
    );
  });
});

const special = (id: string, type: number): object => ({ SpecialToken: { id, type_id: type } });
const sequence = (id: string, type: number): object => ({ Sequence: { id, type_id: type } });
const bert = { type: 'BertProcessing', cls: ['[CLS]', 2], sep: ['[SEP]', 3] };
const template = {
  type: 'TemplateProcessing',
  single: [special('[CLS]', 0), special('[SEP]', 0), sequence('A', 0), special('[SEP]', 0)],
  pair: [special('[CLS]', 0), sequence('A', 0), special('[SEP]', 0), sequence('B', 1), special('[SEP]', 1)],
  special_tokens: {
    '[CLS]': { id: '[CLS]', ids: [2, 4], tokens: ['[CLS]', 'a'] },
    '[SEP]': { id: '[SEP]', ids: [3], tokens: ['[SEP]'] },
  },
};
const level = { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true };

/** Of "ab x" and "b". */
const idsOf = (part: PairPart): readonly number[] => ('ids' in part ? part.ids : part.text === 'first' ? [6, 9] : [5]);

describe('what is put around a text, and around two', () => {
  test.each<[string, object | null]>([
    ['nothing', null],
    ['ByteLevel alone: nothing', level],
    ['BertProcessing', bert],
    ['RobertaProcessing', { ...bert, type: 'RobertaProcessing', trim_offsets: true, add_prefix_space: false }],
    ['TemplateProcessing', template],
    ['TemplateProcessing behind nothing', { ...template, single: [sequence('A', 0), special('[SEP]', 0)] }],
    ['a Sequence', { type: 'Sequence', processors: [level, { type: 'Sequence', processors: [template] }] }],
  ])('%s', async (_, processor) => {
    const json = fileWith([], { post_processor: processor });
    const facts = parseTokenizerJson(json, 'tokenizer.json');
    const ours = makeTokenizer(facts, { hash: '', maxTokens: 100 });
    const theirs = tokenizers.Tokenizer.fromString(json);
    expect(ours.encode('ab x').ids).toEqual((await theirs.encode('ab x')).getIds());
    const pair = await theirs.encode('ab x', 'b');
    const rows = facts.ends.pair!.map((part) => idsOf(part).map((id) => [id, part.type]));
    expect(rows.flat()).toEqual(pair.getIds().map((id, at) => [id, pair.getTypeIds()[at]]));
  });
});
