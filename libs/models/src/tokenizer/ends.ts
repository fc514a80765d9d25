// What is put around texts: the post-processor of tokenizer.json as ids before and behind a text alone, and as parts for
// a pair of texts (cross-encoders). Takes TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel (which moves
// offsets only), Sequences of them, and none at all. Refuses what puts tokens inside a text or gives a text alone types.

import { ShoalError } from '@shoal/contract';
import { CheckedJson, quoted } from '../checked-json.ts';
import { sequenceParts, type SequenceKind } from './sequence-parts.ts';

export interface Ends {
  /** Ids before and behind a text alone. */
  readonly before: readonly number[];
  readonly behind: readonly number[];
  /** In order; undefined where the file has no usable form for two texts. */
  readonly pair: readonly PairPart[] | undefined;
}

/** Of a pair of texts: one of them, or ids of special tokens. `type` is the token type of all that it has. */
export type PairPart =
  | { readonly text: 'first' | 'second'; readonly type: number }
  | { readonly ids: readonly number[]; readonly type: number };

type IdOf = (token: string) => number | undefined;

const NONE: Ends = {
  before: [],
  behind: [],
  pair: [
    { text: 'first', type: 0 },
    { text: 'second', type: 1 },
  ],
};

/** Tokens that a row takes besides those of its text. */
export function endsLength({ before, behind }: Ends): number {
  return before.length + behind.length;
}

/**
 * "post_processor" of tokenizer.json; `idOf` knows the vocabulary and the added tokens. MODEL_CORRUPT, by name, for other
 * types and unknown keys, for ids that are not the token's own, and for more than one processor that puts tokens around.
 */
export function readEnds(root: CheckedJson, idOf: IdOf): Ends {
  if (!root.has('post_processor')) return NONE;
  const parts = sequenceParts(root.object('post_processor'), PROCESSORS);
  for (const part of parts) expectKnown(part);
  const makers = parts.filter((json) => json.string('type') !== 'ByteLevel');
  const [maker, ...more] = makers;
  if (more.length > 0) return refuse(more[0]!, 'it is the second one in a Sequence that puts tokens around texts');
  if (maker === undefined) return NONE;
  const type = maker.string('type');
  return type === 'TemplateProcessing' ? templateEnds(maker, idOf) : classicEnds(maker, type, idOf);
}

const KEYS: Readonly<Record<string, readonly string[]>> = {
  TemplateProcessing: ['type', 'single', 'pair', 'special_tokens'],
  BertProcessing: ['type', 'cls', 'sep'],
  RobertaProcessing: ['type', 'cls', 'sep', 'trim_offsets', 'add_prefix_space'],
  ByteLevel: ['type', 'add_prefix_space', 'trim_offsets', 'use_regex'],
};

const PROCESSORS: SequenceKind = { key: 'processors', unknown: 'what it puts around texts neither' };

function expectKnown(json: CheckedJson): void {
  const type = json.string('type');
  const keys = Object.hasOwn(KEYS, type) ? KEYS[type] : undefined;
  if (keys === undefined)
    refuse(json, `type ${quoted(type)} is not supported, only ${[...Object.keys(KEYS), 'Sequence'].join(', ')}`);
  json.expectKeys(keys, PROCESSORS.unknown);
}

/** BERT: [CLS] a [SEP] b [SEP], the second text of type 1. RoBERTa: <s> a </s></s> b </s>, all of type 0. */
function classicEnds(json: CheckedJson, type: string, idOf: IdOf): Ends {
  const [begin, end] = [pairedId(json, 'cls', idOf), pairedId(json, 'sep', idOf)];
  const isBert = type === 'BertProcessing';
  const second = isBert ? 1 : 0;
  return {
    before: [begin],
    behind: [end],
    pair: [
      { ids: [begin], type: 0 },
      { text: 'first', type: 0 },
      { ids: isBert ? [end] : [end, end], type: 0 },
      { text: 'second', type: second },
      { ids: [end], type: second },
    ],
  };
}

function pairedId(json: CheckedJson, key: string, idOf: IdOf): number {
  const [token, id] = json.list(key);
  if (typeof id !== 'number' || !Number.isSafeInteger(id) || id < 0 || typeof token !== 'string')
    return refuse(json, `"${key}" should be [token, id]`);
  return expectOwnId(json, token, id, idOf);
}

function templateEnds(json: CheckedJson, idOf: IdOf): Ends {
  const single = templateParts(json, 'single', idOf);
  const place = single.findIndex((part) => 'text' in part);
  const around = single.filter((part) => 'ids' in part);
  const text = single[place];
  if (text === undefined || !('text' in text) || text.text !== 'first' || around.length !== single.length - 1)
    return refuse(json, '"single" should have the text once, with special tokens before and behind it or none');
  for (const part of single)
    if (part.type !== 0) refuse(json, `"single" has the type ${part.type}; only 0 is supported in a text alone`);
  return {
    before: idsOf(single.slice(0, place)),
    behind: idsOf(single.slice(place + 1)),
    pair: templatePair(json, idOf),
  };
}

const idsOf = (parts: readonly PairPart[]): readonly number[] =>
  parts.flatMap((part) => ('ids' in part ? part.ids : []));

/** Embedders never see a pair: what is odd about it makes pairs impossible and nothing else. */
function templatePair(json: CheckedJson, idOf: IdOf): Ends['pair'] {
  if (!json.has('pair')) return undefined;
  const parts = templateParts(json, 'pair', idOf);
  const texts = parts.flatMap((part) => ('text' in part ? [part.text] : []));
  return texts.length === 2 && texts[0] === 'first' && texts[1] === 'second' ? parts : undefined;
}

function templateParts(json: CheckedJson, key: 'single' | 'pair', idOf: IdOf): readonly PairPart[] {
  return json.list(key).map((value, index): PairPart => {
    const part = CheckedJson.of(value, `${json.where}: ${key}[${index}]`);
    part.expectKeys(['SpecialToken', 'Sequence'], PROCESSORS.unknown);
    if (part.keys().length !== 1) return refuse(part, 'it should be a SpecialToken or a Sequence');
    const body = part.object(part.keys()[0]!);
    body.expectKeys(['id', 'type_id'], PROCESSORS.unknown);
    const type = body.has('type_id') ? body.integer('type_id') : 0;
    const id = body.string('id');
    if (part.has('SpecialToken')) return { ids: templateIds(json, id, idOf), type };
    if (id !== 'A' && id !== 'B') return refuse(body, `"id" is ${quoted(id)}; texts are called A and B`);
    return { text: id === 'A' ? 'first' : 'second', type };
  });
}

function templateIds(json: CheckedJson, name: string, idOf: IdOf): readonly number[] {
  const special = json.object('special_tokens').object(name);
  special.expectKeys(['id', 'ids', 'tokens'], PROCESSORS.unknown);
  const ids = special.integers('ids');
  const tokens = special.has('tokens') ? special.list('tokens') : ids.length === 1 ? [name] : [];
  if (ids.length === 0 || tokens.length !== ids.length)
    return refuse(special, '"tokens" should name each of its "ids"');
  return ids.map((id, at) => {
    const token = tokens[at];
    if (typeof token !== 'string') return refuse(special, '"tokens" should be a list of strings');
    return expectOwnId(special, token, id, idOf);
  });
}

function expectOwnId(json: CheckedJson, token: string, id: number, idOf: IdOf): number {
  const own = idOf(token);
  return own === id
    ? id
    : refuse(json, `${quoted(token)} stands for the id ${id}, and in the vocabulary for ${own ?? 'none'}`);
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem}`, { where: json.where });
}
