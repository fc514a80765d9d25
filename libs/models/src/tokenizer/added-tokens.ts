// Tokens that stand for themselves in a text, such as [SEP], with all their flags, as the official `tokenizers` package
// (0.23.2, added_vocabulary.rs) finds them: the leftmost first, the longest of those that begin at one place, never two
// over each other. Knows nothing of normalizers: `normalized` tokens are looked for in normalized text by whoever has it.

import { ShoalError } from '@shoal/contract';
import { CheckedJson, quoted } from '../checked-json.ts';
import { isSpace, isWordChar } from './unicode-sets.ts';

export interface AddedToken {
  readonly id: number;
  readonly content: string;
  /** Taken only where no word character stands beside it. */
  readonly isSingleWord: boolean;
  /** Takes the blanks before it, and behind it. */
  readonly stripsLeft: boolean;
  readonly stripsRight: boolean;
  /** Looked for in normalized text, by its own normalized form. */
  readonly isNormalized: boolean;
}

/** What a model knows of its own tokens. */
export interface Vocabulary {
  /** Tokens, not ids: where two tokens have one id, both count. */
  readonly size: number;
  idOf(token: string): number | undefined;
}

const KEYS = ['id', 'content', 'single_word', 'lstrip', 'rstrip', 'normalized', 'special'];

/**
 * The list "added_tokens" of tokenizer.json. MODEL_CORRUPT for an empty or repeated token, an unknown key, and an id
 * that is not the one that the official package gives: that of the vocabulary, or the next free one.
 */
export function readAddedTokens(root: CheckedJson, vocabulary: Vocabulary): readonly AddedToken[] {
  const tokens = new Map<string, AddedToken>();
  if (!root.has('added_tokens')) return [];
  let next = vocabulary.size;
  for (const [index, value] of root.list('added_tokens').entries()) {
    const json = CheckedJson.of(value, `${root.where}: added_tokens[${index}]`);
    const content = json.string('content');
    json.expectKeys(KEYS, 'what it does to texts neither');
    if (content === '') refuse(json, 'an added token is empty');
    if (!content.isWellFormed()) refuse(json, `${quoted(content)} is half a character`);
    if (tokens.has(content)) refuse(json, `${quoted(content)} is added twice`);
    const id = json.integer('id');
    const own = vocabulary.idOf(content) ?? next++;
    if (own !== id) refuse(json, `the added token ${quoted(content)} has the id ${id}, and by its place ${own}`);
    const flag = (key: string): boolean => json.has(key) && json.boolean(key);
    tokens.set(content, {
      id,
      content,
      isSingleWord: flag('single_word'),
      stripsLeft: flag('lstrip'),
      stripsRight: flag('rstrip'),
      isNormalized: flag('normalized'),
    });
  }
  const byId = new Map<number, string>();
  for (const { id, content } of tokens.values()) {
    const other = byId.get(id);
    if (other !== undefined)
      refuse(root, `the added tokens ${quoted(other)} and ${quoted(content)} both have the id ${id}`);
    byId.set(id, content);
  }
  return [...tokens.values()];
}

interface Node {
  readonly next: Map<number, Node>;
  token: AddedToken | undefined;
}

/** A stretch between tokens (no id), or what a token takes from the text. */
export interface Piece {
  readonly start: number;
  readonly end: number;
  readonly id: number | undefined;
}

export class AddedTokens {
  readonly isEmpty: boolean;
  readonly #root: Node = { next: new Map(), token: undefined };
  /** By UTF-16 code unit: whether a token begins with it. */
  readonly #begins = new Uint8Array(0x10000);

  /** `patterns`: what is looked for, by the token that it stands for. MODEL_CORRUPT for nothing, and for two alike. */
  constructor(patterns: Iterable<readonly [pattern: string, token: AddedToken]>) {
    let isEmpty = true;
    for (const [pattern, token] of patterns) {
      isEmpty = false;
      if (pattern === '') refusePattern(token, 'nothing');
      this.#begins[pattern.charCodeAt(0)] = 1;
      let node = this.#root;
      for (let at = 0; at < pattern.length; at++) {
        const unit = pattern.charCodeAt(at);
        let next = node.next.get(unit);
        if (next === undefined) node.next.set(unit, (next = { next: new Map(), token: undefined }));
        node = next;
      }
      if (node.token !== undefined) refusePattern(token, `the same as ${quoted(node.token.content)}`);
      node.token = token;
    }
    this.isEmpty = isEmpty;
  }

  /** Whether a token may begin with this code unit. */
  mayBegin(unit: number): boolean {
    return this.#begins[unit] === 1;
  }

  /** The longest token that begins here, and where it ends; its flags are not looked at. */
  longestAt(text: string, at: number): { readonly token: AddedToken; readonly end: number } | undefined {
    let node: Node | undefined = this.#root;
    let token: AddedToken | undefined;
    let end = at;
    for (let place = at; place < text.length;) {
      node = node.next.get(text.charCodeAt(place++));
      if (node === undefined) break;
      if (node.token === undefined) continue;
      token = node.token;
      end = place;
    }
    return token === undefined ? undefined : { token, end };
  }

  /** Of a well-formed text, in order, looked for as they are asked for. */
  *pieces(text: string): Generator<Piece, void, undefined> {
    if (this.isEmpty) {
      if (text !== '') yield { start: 0, end: text.length, id: undefined };
      return;
    }
    let covered = 0; // by tokens and the stretches before them
    for (let at = 0; at < text.length;) {
      if (this.#begins[text.charCodeAt(at)] === 0) {
        at += 1;
        continue;
      }
      const found = this.longestAt(text, at);
      if (found === undefined) {
        at += 1;
        continue;
      }
      const { token, end } = found;
      // one that does not stand alone is passed over, with all that begins inside it
      if (!token.isSingleWord || standsAlone(text, at, end)) {
        const from = token.stripsLeft ? Math.max(covered, blanksBefore(text, at)) : at;
        if (covered < from) yield { start: covered, end: from, id: undefined };
        covered = token.stripsRight ? blanksBehind(text, end) : end;
        yield { start: from, end: covered, id: token.id };
      }
      at = end;
    }
    if (covered < text.length) yield { start: covered, end: text.length, id: undefined };
  }
}

/** Whether no word character stands beside text[start, end). */
export function standsAlone(text: string, start: number, end: number): boolean {
  const before = start === 0 ? undefined : codePointBefore(text, start);
  const behind = text.codePointAt(end);
  return (before === undefined || !isWordChar(before)) && (behind === undefined || !isWordChar(behind));
}

function codePointBefore(text: string, at: number): number {
  const isPair = at > 1 && (text.charCodeAt(at - 1) & 0xfc00) === 0xdc00;
  return text.codePointAt(isPair ? at - 2 : at - 1)!;
}

/** Where the blanks begin that end at `at`. */
export function blanksBefore(text: string, at: number): number {
  while (at > 0 && isSpace(text.charCodeAt(at - 1))) at--;
  return at;
}

/** Where the blanks end that begin at `at`. */
export function blanksBehind(text: string, at: number): number {
  while (at < text.length && isSpace(text.charCodeAt(at))) at++;
  return at;
}

/** Which of two tokens of one normalized form the official package finds is a matter of luck. */
function refusePattern({ content }: AddedToken, is: string): never {
  throw new ShoalError(
    'MODEL_CORRUPT',
    `added_tokens: ${quoted(content)} is looked for in normalized text, where it is ${is}`,
    { token: content },
  );
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem}`, { where: json.where });
}
