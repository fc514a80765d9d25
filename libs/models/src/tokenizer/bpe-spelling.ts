// What the symbols of a word are that a byte pair encoding merges: the UTF-8 bytes of the word, each written as one
// character (GPT-2's "bytes to unicode"), or its characters, with the tokens of their bytes in place of characters that
// have no token. Characters that have neither become the unknown token, or nothing where the model has none.

import { BpeJoins } from './bpe-joins.ts';
import { NO_ID, type BpeModel } from './bpe-model.ts';
import type { SymbolList } from './bpe-words.ts';

export interface Spelling {
  /** Of a word in one go, or of its parts in order. */
  readonly spell: (word: string, symbols: SymbolList) => void;
  readonly joins: BpeJoins | undefined;
  readonly wholeId: ((word: string) => number | undefined) | undefined;
}

/** By byte: printable ones of Latin-1 stand for themselves, the others for U+0100 and on, in order. */
const BYTE_CHARS = byteChars();
const BYTE_OF_CHAR = new Map(BYTE_CHARS.map((char, byte) => [char, byte]));

/** Whether every character is spelled, so that none is unknown. */
export function spellsAll({ vocabulary, byteIds }: BpeModel, spelling: 'bytes' | 'characters'): boolean {
  if (spelling === 'bytes') return BYTE_CHARS.every((char) => vocabulary.has(char));
  return byteIds !== undefined && !byteIds.includes(NO_ID);
}

// A function holds all that another function made beside it asks for. Each of these is therefore made apart, of what it
// needs: the vocabulary and the merges as strings are 100 MB of Gemma 3, and let go.

export function byteSpelling(model: BpeModel): Spelling {
  const isComplete = spellsAll(model, 'bytes');
  return {
    spell: isComplete ? byteSpeller(idsOfBytes(model)) : characterSpeller(charactersOf(model), byteText),
    // what vanishes or becomes one unknown token brings together what stood around it
    joins: isComplete ? new BpeJoins(byteJoins(model)) : undefined,
    wholeId: model.ignoresMerges ? wholeIds(model.vocabulary, byteText) : undefined,
  };
}

export function characterSpelling(model: BpeModel): Spelling {
  return {
    spell: characterSpeller(charactersOf(model), asItIs),
    joins: new BpeJoins({ pairs: characterJoins(model), cuttable: cuttable(model) }),
    wholeId: model.ignoresMerges ? wholeIds(model.vocabulary, asItIs) : undefined,
  };
}

function byteSpeller(idOfByte: Int32Array): Spelling['spell'] {
  return (word, symbols) => eachByte(word, (byte) => symbols.add(idOfByte[byte]!));
}

function characterSpeller(characters: Characters, textOf: (word: string) => string): Spelling['spell'] {
  return (word, symbols) => spellCharacters(textOf(word), symbols, characters);
}

function wholeIds(vocabulary: BpeModel['vocabulary'], textOf: (word: string) => string): Spelling['wholeId'] {
  const longest = longestOf(vocabulary);
  return (word) => (word.length > longest ? undefined : vocabulary.get(textOf(word)));
}

const asItIs = (word: string): string => word;

function idsOfBytes({ vocabulary }: BpeModel): Int32Array {
  return Int32Array.from(BYTE_CHARS, (char) => vocabulary.get(char) ?? NO_ID);
}

/** What characters become before anything is merged. */
interface Characters extends Pick<BpeModel, 'unknownId' | 'fusesUnknown' | 'byteIds'> {
  /** Tokens of one character. */
  readonly ids: ReadonlyMap<string, number>;
}

function charactersOf({ vocabulary, unknownId, fusesUnknown, byteIds }: BpeModel): Characters {
  const ids = new Map<string, number>();
  for (const [token, id] of vocabulary) if (isOneCharacter(token)) ids.set(token, id);
  return { ids, unknownId, fusesUnknown, byteIds };
}

function isOneCharacter(token: string): boolean {
  const point = token.codePointAt(0);
  return point !== undefined && token.length === (point > 0xffff ? 2 : 1);
}

/** Code units of the longest token: no word beyond it is one. */
function longestOf(vocabulary: BpeModel['vocabulary']): number {
  let longest = 0;
  for (const token of vocabulary.keys()) longest = Math.max(longest, token.length);
  return longest;
}

/** As `BPE::merge_word` of the original: an unknown token is written only when a known character or the end follows. */
function spellCharacters(word: string, symbols: SymbolList, characters: Characters): void {
  const { ids, unknownId, fusesUnknown, byteIds } = characters;
  for (const char of word) {
    const id = ids.get(char);
    if (id !== undefined) {
      symbols.addOpen();
      symbols.add(id);
      continue;
    }
    if (byteIds !== undefined && hasAllBytes(char, byteIds)) {
      eachByte(char, (byte) => symbols.add(byteIds[byte]!));
      continue;
    }
    if (unknownId === undefined) continue;
    if (!fusesUnknown) symbols.addOpen();
    symbols.open = unknownId;
  }
}

function hasAllBytes(char: string, byteIds: Int32Array): boolean {
  let has = true;
  eachByte(char, (byte) => {
    if (byteIds[byte] === NO_ID) has = false;
  });
  return has;
}

/** Of well-formed text in UTF-8. */
function eachByte(text: string, use: (byte: number) => void): void {
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit < 0x80) use(unit);
    else if (unit < 0x800) {
      use(0xc0 | (unit >> 6));
      use(0x80 | (unit & 0x3f));
    } else if ((unit & 0xfc00) === 0xd800) {
      const point = text.codePointAt(at++)!;
      use(0xf0 | (point >> 18));
      use(0x80 | ((point >> 12) & 0x3f));
      use(0x80 | ((point >> 6) & 0x3f));
      use(0x80 | (point & 0x3f));
    } else {
      use(0xe0 | (unit >> 12));
      use(0x80 | ((unit >> 6) & 0x3f));
      use(0x80 | (unit & 0x3f));
    }
  }
}

function byteText(word: string): string {
  let text = '';
  eachByte(word, (byte) => {
    text += BYTE_CHARS[byte]!;
  });
  return text;
}

function isShown(byte: number): boolean {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

function byteChars(): readonly string[] {
  let hidden = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isShown(byte) ? byte : 0x100 + hidden++));
}

function characterJoins({ merges }: BpeModel): Int32Array {
  const pairs = new Int32Array(2 * merges.length);
  for (const [at, [left, right]] of merges.entries()) {
    pairs[2 * at] = lastPoint(left);
    pairs[2 * at + 1] = right.codePointAt(0)!;
  }
  return pairs;
}

function lastPoint(text: string): number {
  const isPair = text.length > 1 && (text.charCodeAt(text.length - 1) & 0xfc00) === 0xdc00;
  return text.codePointAt(text.length - (isPair ? 2 : 1))!;
}

/**
 * Characters that have a token; all, if those without one become tokens of their bytes, always, and no merge takes such
 * a token.
 */
function cuttable(model: BpeModel): Uint8Array | undefined {
  const { vocabulary, byteIds, mergeIds } = model;
  if (spellsAll(model, 'characters')) {
    const bytes = new Set(byteIds);
    if (![mergeIds.lefts, mergeIds.rights].some((ids) => ids.some((id) => bytes.has(id)))) return undefined;
  }
  const set = new Uint8Array(0x110000 / 8);
  for (const token of vocabulary.keys()) {
    const point = token.codePointAt(0)!;
    if (isOneCharacter(token)) set[point >> 3]! |= 1 << (point & 7);
  }
  return set;
}

/** Merges of bytes that join two characters: both whole in their tokens, or else by the bytes beside the cut. */
function byteJoins({ merges }: BpeModel): { readonly pairs: Int32Array; readonly bytes: Uint8Array } {
  const pairs: number[] = [];
  const bytes = new Uint8Array(0x10000);
  for (const [left, right] of merges) {
    const first = BYTE_OF_CHAR.get(right.charAt(0));
    const last = BYTE_OF_CHAR.get(left.charAt(left.length - 1));
    // tokens of other characters are never made; a right one that begins inside a character joins no two of them
    if (first === undefined || last === undefined || (first & 0xc0) === 0x80) continue;
    const [leftPoint, rightPoint] = [wholePoint(tail(left)), wholePoint(head(right, first))];
    if (leftPoint !== undefined && rightPoint !== undefined) pairs.push(leftPoint, rightPoint);
    else bytes[256 * last + first] = 1;
  }
  return { pairs: Int32Array.from(pairs), bytes };
}

/** The bytes of the last character, or what the token has of it. */
function tail(token: string): readonly number[] {
  const bytes: number[] = [];
  for (let at = token.length - 1; at >= 0 && bytes.length < 4; at--) {
    const byte = BYTE_OF_CHAR.get(token.charAt(at)) ?? 0xff;
    bytes.unshift(byte);
    if ((byte & 0xc0) !== 0x80) break;
  }
  return bytes;
}

/** The bytes of the first character, or what the token has of it. */
function head(token: string, first: number): readonly number[] {
  const size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  return Array.from(token.slice(0, size), (char) => BYTE_OF_CHAR.get(char) ?? 0xff);
}

/** The character of these bytes, if they are one and all of one. */
function wholePoint(bytes: readonly number[]): number | undefined {
  if (bytes.length === 1 && bytes[0]! < 0x80) return bytes[0];
  const text = Buffer.from(bytes).toString();
  const point = text.codePointAt(0);
  return point !== undefined && point !== 0xfffd && text.length === (point > 0xffff ? 2 : 1) ? point : undefined;
}
