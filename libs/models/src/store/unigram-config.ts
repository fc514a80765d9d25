// tokenizer_config.json against a Unigram tokenizer.json. For XLM-R's and CamemBERT's classes transformers (5.24) takes
// pieces and charsmap from tokenizer.json and builds everything else anew; what differs then is written so, with a note.

import type { UnigramFacts } from '../tokenizer/unigram-facts.ts';
import {
  AS_IS,
  ROBERTA_TOKENS,
  classOf,
  givenClass,
  expectOwnEnds,
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

const REBUILT = ['XLMRobertaTokenizer', 'CamembertTokenizer'];
/** XLM-R's class knows the unknown token by its place. */
const XLMR_UNKNOWN = 3;

/** tokenizer.json as it is to be stored. MODEL_CORRUPT, by file, key and value, where the two cannot be made one. */
export function effectiveUnigram(source: TokenizerSource, facts: UnigramFacts): EffectiveTokenizer {
  const { text, config } = source;
  const notes: string[] = [];
  const reading = readingOf(source, notes);
  refuseOtherSides(source, notes);
  if (config !== undefined) refuseOtherWays(config);
  const known = knownTokens(facts);
  const changes = reading === 'rebuilt' ? rebuilt(source, facts, known.idOf, notes) : {};
  if (reading === 'as it is') expectOwnEnds(source, facts.ends, known, notes);
  const added = missingAddedTokens(source, known, reading, ROBERTA_TOKENS, notes);
  if (Object.keys(changes).length === 0 && added.length === 0) return { text, limit: limitOf(config), notes };
  const file = JSON.parse(text) as { added_tokens?: readonly object[] };
  const tokens = [...(file.added_tokens ?? []), ...added.map(listedToken)];
  return { text: JSON.stringify({ ...file, ...changes, added_tokens: tokens }), limit: limitOf(config), notes };
}

function readingOf(source: TokenizerSource, notes: string[]): Reading {
  const { config, where } = source;
  const name = classOf(source);
  if (name === undefined) notes.push(`no "tokenizer_class" is given: ${where} is read as it is`);
  if (name === undefined || AS_IS.includes(name)) return 'as it is';
  if (REBUILT.includes(name)) return 'rebuilt';
  throw refusal(
    config?.where ?? where,
    `"tokenizer_class" is ${givenClass(source)}, which transformers builds anew in a way that is not known here; with ` +
      `"PreTrainedTokenizerFast" ${where} is taken as it is`,
  );
}

interface IdOf {
  (token: string): number | undefined;
}

function knownTokens({ addedTokens, model }: UnigramFacts): { addedTokens: UnigramFacts['addedTokens']; idOf: IdOf } {
  return {
    addedTokens,
    idOf: (token) => {
      const id = model.pieces.lastIndexOf(token);
      return id < 0 ? undefined : id;
    },
  };
}

/** The parts that transformers builds otherwise than they are in the file. */
function rebuilt(source: TokenizerSource, facts: UnigramFacts, idOf: IdOf, notes: string[]): object {
  const { config, where } = source;
  const changes: Record<string, object | null> = {};
  const named = (key: string): string => namedTokens(source).get(key) ?? ROBERTA_TOKENS.get(key)!;
  const unknown = classOf(source) === 'XLMRobertaTokenizer' ? XLMR_UNKNOWN : (idOf(named('unk_token')) ?? 0);
  if (facts.model.unknownId !== unknown || facts.model.hasByteFallback)
    throw refusal(
      `${where}: model`,
      `"unk_id" is ${facts.model.unknownId} and "byte_fallback" ${String(facts.model.hasByteFallback)}; transformers ` +
        `takes ${unknown} and false for a ${classOf(source)}`,
    );
  const prefixes = config?.has('add_prefix_space') !== true || config.boolean('add_prefix_space');
  const scheme = prefixes ? 'always' : 'never';
  if (!isSplitAndMarked(facts, scheme)) {
    const metaspace = { type: 'Metaspace', replacement: '▁', prepend_scheme: scheme, split: true };
    changes['pre_tokenizer'] = { type: 'Sequence', pretokenizers: [{ type: 'WhitespaceSplit' }, metaspace] };
  }
  if (!facts.normalizer.every((step, at) => step.type === 'Precompiled' && at === 0))
    changes['normalizer'] = charsmapOf(source.text);
  if (!isOwnTemplate(facts, idOf(named('bos_token')), idOf(named('eos_token'))))
    throw refusal(
      `${where}: post_processor`,
      `it does not put ${named('bos_token')} before a text and ${named('eos_token')} behind it, as transformers does for ` +
        `a ${classOf(source)}`,
    );
  // whitespace of several characters makes no words, so that only Metaspace alone, or other steps, change ids
  if (changes['pre_tokenizer'] !== undefined || facts.normalizer.some((step) => !isIdle(step)))
    for (const key of Object.keys(changes))
      notes.push(
        `${where}: ${key} is taken as transformers builds it for a ${classOf(source)}, not as it stands there`,
      );
  else delete changes['normalizer'];
  return changes;
}

/** Steps that do nothing where words are split at white space. */
function isIdle(step: UnigramFacts['normalizer'][number]): boolean {
  if (step.type === 'Precompiled' || step.type === 'Strip') return true;
  return step.type === 'Replace' && String(step.pattern) === '/ {2,}/g' && step.content === ' ';
}

function isSplitAndMarked({ preTokenizer }: UnigramFacts, scheme: 'always' | 'never'): boolean {
  const [first, second, ...more] = preTokenizer;
  return (
    first?.type === 'WhitespaceSplit' &&
    second?.type === 'Metaspace' &&
    second.mark === '▁' &&
    second.prepends === scheme &&
    more.length === 0
  );
}

function isOwnTemplate({ ends }: UnigramFacts, begin: number | undefined, end: number | undefined): boolean {
  const { before, behind } = ends;
  return before.length === 1 && before[0] === begin && behind.length === 1 && behind[0] === end;
}

/** The first charsmap of the normalizer, which is all that transformers takes of it. */
function charsmapOf(text: string): object | null {
  interface Step {
    readonly type: string;
    readonly normalizers?: readonly Step[];
  }
  const { normalizer } = JSON.parse(text) as { normalizer: Step | null };
  const steps =
    normalizer?.type === 'Sequence' ? (normalizer.normalizers ?? []) : normalizer === null ? [] : [normalizer];
  return steps.find((step) => step.type === 'Precompiled') ?? null;
}
