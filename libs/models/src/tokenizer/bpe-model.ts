// The model of type "BPE" in a tokenizer.json as checked facts: vocabulary, merges in both spellings ("a b" and
// ["a", "b"]), and what becomes of characters without a token. Refuses by name what would change ids and is not done
// here: dropout, and affixes of continued and last pieces.

import { ShoalError } from '@shoal/contract';
import { quoted, type CheckedJson } from '../checked-json.ts';
import type { MergeIds } from './bpe-merges.ts';

export interface BpeModel {
  readonly vocabulary: ReadonlyMap<string, number>;
  readonly largestId: number;
  /** The two tokens of each merge, by rank, and the same by their ids. */
  readonly merges: readonly MergePair[];
  readonly mergeIds: MergeIds;
  /** Characters without a token become this one, and vanish where there is none. */
  readonly unknownId: number | undefined;
  /** Unknown characters side by side become one token. */
  readonly fusesUnknown: boolean;
  /** Tokens of the 256 bytes, which take the place of an unknown character; undefined where the file asks for none. */
  readonly byteIds: Int32Array | undefined;
  /** A word that is a token is not built by merges. */
  readonly ignoresMerges: boolean;
}

export type MergePair = readonly [left: string, right: string];

/** Where a byte has no token. */
export const NO_ID = -1;

const KEYS = [
  'type',
  'dropout',
  'unk_token',
  'continuing_subword_prefix',
  'end_of_word_suffix',
  'fuse_unk',
  'byte_fallback',
  'ignore_merges',
  'vocab',
  'merges',
];
const MOST_MERGES = 2 ** 22;
const LARGEST_ID = 2 ** 31 - 1;

/** MODEL_CORRUPT for what would give other ids than the official package does. */
export function readBpeModel(json: CheckedJson): BpeModel {
  json.expectKeys(KEYS, 'what it does to words neither');
  if (json.has('dropout') && json.raw('dropout') !== 0)
    refuse(json, `"dropout" is ${quoted(String(json.raw('dropout')))}: ids would be another draw in every run`);
  for (const key of ['continuing_subword_prefix', 'end_of_word_suffix'])
    if (json.has(key) && json.string(key) !== '')
      refuse(json, `"${key}" is ${quoted(json.string(key))}; only "" and null are supported`);
  const vocabulary = json.object('vocab').integerEntries();
  let largestId = -1;
  for (const id of vocabulary.values()) largestId = Math.max(largestId, id);
  if (largestId > LARGEST_ID) refuse(json, `"vocab" has the id ${largestId}; ids are below 2^31`);
  const flag = (key: string): boolean => json.has(key) && json.boolean(key);
  return {
    vocabulary,
    largestId,
    ...readMerges(json, vocabulary),
    unknownId: readUnknown(json, vocabulary),
    fusesUnknown: flag('fuse_unk'),
    byteIds: flag('byte_fallback') ? byteIds(vocabulary) : undefined,
    ignoresMerges: flag('ignore_merges'),
  };
}

function readMerges(
  json: CheckedJson,
  vocabulary: ReadonlyMap<string, number>,
): { readonly merges: readonly MergePair[]; readonly mergeIds: MergeIds } {
  const list = json.list('merges');
  if (list.length > MOST_MERGES) refuse(json, `"merges" has ${list.length}; at most ${MOST_MERGES} are supported`);
  const merges: MergePair[] = [];
  const [lefts, rights, merged] = [0, 1, 2].map(() => new Int32Array(list.length));
  for (const [at, value] of list.entries()) {
    if (typeof value === 'string' && value.startsWith('#version')) continue; // the first line of merges.txt
    const merge =
      mergePair(value) ??
      refuse(
        json,
        `merges[${at}] should be two tokens, found ${quoted(typeof value === 'string' ? value : typeof value)}`,
      );
    const id = (token: string): number =>
      vocabulary.get(token) ?? refuse(json, `merges[${at}] asks for ${quoted(token)}, ${MISSING}`);
    lefts![merges.length] = id(merge[0]);
    rights![merges.length] = id(merge[1]);
    merged![merges.length] = id(merge[0] + merge[1]);
    merges.push(merge);
  }
  const upTo = (ids: Int32Array | undefined): Int32Array => ids!.subarray(0, merges.length);
  return { merges, mergeIds: { lefts: upTo(lefts), rights: upTo(rights), merged: upTo(merged) } };
}

/** Newer files have lists, older ones strings: no token has a blank there. */
function mergePair(value: unknown): MergePair | undefined {
  const pair: unknown = typeof value === 'string' ? value.split(' ') : value;
  if (!Array.isArray(pair) || pair.length !== 2) return undefined;
  const [left, right] = pair as readonly unknown[];
  return typeof left === 'string' && typeof right === 'string' && left !== '' && right !== ''
    ? (pair as unknown as MergePair)
    : undefined;
}

const MISSING = 'which is not in the vocabulary';

function readUnknown(json: CheckedJson, vocabulary: ReadonlyMap<string, number>): number | undefined {
  if (!json.has('unk_token')) return undefined;
  const token = json.string('unk_token');
  return vocabulary.get(token) ?? refuse(json, `"unk_token" is ${quoted(token)}, ${MISSING}`);
}

function byteIds(vocabulary: ReadonlyMap<string, number>): Int32Array {
  return Int32Array.from({ length: 256 }, (_, byte) => vocabulary.get(byteToken(byte)) ?? NO_ID);
}

function byteToken(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem}`, { where: json.where });
}
