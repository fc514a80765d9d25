// tokenizer_config.json against a BPE tokenizer.json. For a few classes transformers (5.24) takes vocabulary and merges
// from tokenizer.json and builds everything else anew: the file must say the same, or both are named in the refusal.

import type { PreTokenizerStep } from '../tokenizer/metaspace.ts';
import { GPT2_PATTERN, QWEN_PATTERN, type BpeFacts } from '../tokenizer/bpe-facts.ts';
import { spellsAll } from '../tokenizer/bpe-spelling.ts';
import {
  AS_IS,
  ROBERTA_TOKENS,
  classOf,
  expectOwnEnds,
  givenClass,
  limitOf,
  listedToken,
  missingAddedTokens,
  namedTokens,
  refusal,
  refuseOtherSides,
  refuseOtherWays,
  type EffectiveTokenizer,
  type Reading,
  type TokenizerSource,
} from './tokenizer-source.ts';

/** What a class builds, as `built` says it of a file, and its special tokens where no file names others. */
interface OwnParts {
  readonly parts: (prefixesBlank: boolean) => Parts;
  readonly tokens: ReadonlyMap<string, string>;
}

interface Parts {
  readonly normalizer: string;
  readonly pre_tokenizer: string;
  readonly model: string;
}

const END_OF_TEXT = ['unk_token', 'bos_token', 'eos_token', 'pad_token'].map((key) => [key, '<|endoftext|>'] as const);

const GPT2: OwnParts['parts'] = (prefixesBlank) => ({
  normalizer: '',
  pre_tokenizer: `${prefixesBlank ? 'blank ' : ''}${GPT2_PATTERN}`,
  model: '',
});
const OWN: ReadonlyMap<string, OwnParts> = new Map([
  ['GPT2Tokenizer', { parts: GPT2, tokens: new Map(END_OF_TEXT.slice(0, 3)) }],
  ['RobertaTokenizer', { parts: GPT2, tokens: ROBERTA_TOKENS }],
  [
    'Qwen2Tokenizer',
    {
      parts: (prefixesBlank) => ({
        normalizer: 'NFC',
        pre_tokenizer: `${QWEN_PATTERN}${prefixesBlank ? ' blank ' : ''}`,
        model: '',
      }),
      tokens: new Map(END_OF_TEXT.filter(([key]) => key !== 'bos_token')),
    },
  ],
  [
    'GemmaTokenizer',
    {
      parts: () => ({
        normalizer: 'Replace " " by "▁"',
        pre_tokenizer: 'behind " "',
        model: '',
      }),
      tokens: new Map([
        ['unk_token', '<unk>'],
        ['bos_token', '<bos>'],
        ['eos_token', '<eos>'],
        ['pad_token', '<pad>'],
        ['mask_token', '<mask>'],
      ]),
    },
  ],
  [
    // as it is for models of another family than Llama: accepted where both are the same
    'LlamaTokenizer',
    {
      parts: () => ({
        normalizer: '',
        pre_tokenizer: 'Metaspace "▁" first',
        model: '',
      }),
      tokens: new Map([
        ['unk_token', '<unk>'],
        ['bos_token', '<s>'],
        ['eos_token', '</s>'],
      ]),
    },
  ],
]);

/** tokenizer.json as it is to be stored. MODEL_CORRUPT, by file, key and value, where the two cannot be made one. */
export function effectiveBpe(source: TokenizerSource, facts: BpeFacts): EffectiveTokenizer {
  const { text, config, where } = source;
  const notes: string[] = [];
  const own = ownParts(source);
  if (classOf(source) === undefined) notes.push(`no "tokenizer_class" is given: ${where} is read as it is`);
  refuseOtherSides(source, notes);
  if (config !== undefined) refuseOtherWays(config);
  if (own !== undefined) expectOwnParts(source, facts, own);
  const { vocabulary } = facts.model;
  const known = { addedTokens: facts.addedTokens, idOf: (token: string) => vocabulary.get(token) };
  expectOwnEnds(source, facts.ends, known, notes);
  if (classOf(source) === 'RobertaTokenizer') expectRobertaEnds(source, facts);
  const reading: Reading = own === undefined ? 'as it is' : 'rebuilt';
  const added = missingAddedTokens(source, known, reading, own?.tokens ?? new Map(), notes);
  if (added.length === 0) return { text, limit: limitOf(config), notes };
  const file = JSON.parse(text) as { added_tokens?: readonly object[] };
  const tokens = [...(file.added_tokens ?? []), ...added.map(listedToken)];
  return { text: JSON.stringify({ ...file, added_tokens: tokens }), limit: limitOf(config), notes };
}

/** Undefined where transformers takes tokenizer.json as it is. */
function ownParts(source: TokenizerSource): OwnParts | undefined {
  const { config, where } = source;
  const name = classOf(source);
  if (name === undefined || AS_IS.includes(name)) return undefined;
  const own = OWN.get(name);
  if (own !== undefined) return own;
  throw refusal(
    config?.where ?? where,
    `"tokenizer_class" is ${givenClass(source)}, which transformers builds anew in a way that is not known here; with ` +
      `"PreTrainedTokenizerFast" ${where} is taken as it is`,
  );
}

function expectOwnParts(source: TokenizerSource, facts: BpeFacts, own: OwnParts): void {
  const { config, where } = source;
  const wanted = own.parts(config?.has('add_prefix_space') === true && config.boolean('add_prefix_space'));
  const found = built(facts);
  for (const part of ['normalizer', 'pre_tokenizer', 'model'] as const) {
    if (found[part] === wanted[part]) continue;
    throw refusal(
      `${where}: ${part}`,
      `it is (${found[part] || 'nothing'}), and transformers builds (${wanted[part] || 'nothing'}) for a ` +
        `${givenClass(source)}; with "PreTrainedTokenizerFast" the file is taken as it is`,
    );
  }
}

function shown(step: PreTokenizerStep): string {
  if (step.type !== 'Metaspace') return step.type;
  return `Metaspace ${JSON.stringify(step.mark)} ${step.prepends}${step.splits ? ' split' : ''}`;
}

/** RoBERTa's class puts its tokens around texts whatever the file says. */
function expectRobertaEnds(source: TokenizerSource, { ends, model }: BpeFacts): void {
  const named = namedTokens(source);
  for (const [key, place, found] of [
    ['cls_token', 'before', ends.before],
    ['sep_token', 'behind', ends.behind],
  ] as const) {
    const token = named.get(key) ?? ROBERTA_TOKENS.get(key)!;
    const wanted = model.vocabulary.get(token);
    if (found.length === 1 && found[0] === wanted) continue;
    throw refusal(
      `${source.where}: post_processor`,
      `it puts ${found.length === 0 ? 'nothing' : `the ids ${found.join(', ')}`} ${place} a text; for a ` +
        `${givenClass(source)} transformers puts ${token} there`,
    );
  }
}

/** What of a file changes ids, in words. */
function built({ normalizer, words, model }: BpeFacts): Parts {
  const steps = normalizer.map((step) => {
    if (step.type !== 'Replace') return step.type;
    return `Replace ${JSON.stringify(String(step.pattern))} by ${JSON.stringify(step.content)}`;
  });
  const cuts =
    words.spelling === 'bytes'
      ? words.cuts.map(({ prefixesBlank, pattern = '' }) => `${prefixesBlank ? 'blank ' : ''}${pattern}`)
      : [
          ...(words.endsWords === undefined ? [] : [`behind ${JSON.stringify(words.endsWords)}`]),
          ...words.steps.map(shown),
        ];
  const unknown = [
    ...(model.unknownId === undefined ? [] : [`unknown characters as ${model.unknownId}`]),
    ...(model.fusesUnknown ? ['fused'] : []),
    ...(model.byteIds === undefined ? [] : ['some as bytes']),
  ];
  return {
    normalizer: steps.join(', '),
    pre_tokenizer: cuts.join(' '),
    model: [
      ...(spellsAll(model, words.spelling) ? [] : ['not all characters have tokens', ...unknown]),
      ...(model.ignoresMerges ? ['words before merges'] : []),
    ].join(', '),
  };
}
