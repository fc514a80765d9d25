// Lua's patterns (lstrlib.c of Lua 5.1): a matcher over strings of bytes. The functions of the string library that use it
// are in string-library.ts.

import { LuaError, type LuaValue } from './values.ts';

const MOST_CAPTURES = 32;
const UNCLOSED = -1;
const POSITION = -2;
const ESCAPE = '%';

interface Capture {
  start: number;
  length: number;
}

export class Matcher {
  readonly #text: string;
  readonly #pattern: string;
  #captures: Capture[] = [];

  constructor(text: string, pattern: string) {
    this.#text = text;
    this.#pattern = pattern;
  }

  /** Where a match that begins at `at` ends; undefined where there is none. `from` is 1 behind an anchor. */
  matchAt(at: number, from: number): number | undefined {
    this.#captures = [];
    const end = this.#match(at, from);
    return end < 0 ? undefined : end;
  }

  /** What the match caught: the whole of it where the pattern has no captures and `orWhole`. */
  captures(start: number, end: number, orWhole: boolean): LuaValue[] {
    if (this.#captures.length === 0 && orWhole) return [this.#text.slice(start, end)];
    return this.#captures.map((_, index) => this.capture(index, start, end));
  }

  capture(index: number, start: number, end: number): LuaValue {
    const capture = this.#captures[index];
    if (capture === undefined) {
      if (index === 0) return this.#text.slice(start, end);
      throw new LuaError('invalid capture index');
    }
    if (capture.length === UNCLOSED) throw new LuaError('unfinished capture');
    if (capture.length === POSITION) return capture.start + 1;
    return this.#text.slice(capture.start, capture.start + capture.length);
  }

  /** -1: no match. */
  #match(start: number, from: number): number {
    let [at, p] = [start, from];
    const pattern = this.#pattern;
    while (true) {
      if (p >= pattern.length) return at;
      const item = pattern[p]!;
      if (item === '(') {
        return pattern[p + 1] === ')' ? this.#open(at, p + 2, POSITION) : this.#open(at, p + 1, UNCLOSED);
      }
      if (item === ')') return this.#close(at, p + 1);
      if (item === '$' && p + 1 === pattern.length) return at === this.#text.length ? at : -1;
      if (item === ESCAPE) {
        const next = pattern[p + 1];
        if (next === 'b') {
          at = this.#balance(at, p + 2);
          if (at < 0) return -1;
          p += 4;
          continue;
        }
        if (next === 'f') {
          p += 2;
          if (pattern[p] !== '[') throw new LuaError("missing '[' after '%f' in pattern");
          const end = this.#itemEnd(p);
          const before = at === 0 ? 0 : this.#text.charCodeAt(at - 1);
          const here = at >= this.#text.length ? 0 : this.#text.charCodeAt(at);
          if (this.#inSet(before, p, end - 1) || !this.#inSet(here, p, end - 1)) return -1;
          p = end;
          continue;
        }
        if (next !== undefined && next >= '0' && next <= '9') {
          at = this.#repeated(at, next);
          if (at < 0) return -1;
          p += 2;
          continue;
        }
      }
      const end = this.#itemEnd(p);
      const isHere = at < this.#text.length && this.#isOne(at, p, end);
      switch (pattern[end]) {
        case '?': {
          if (isHere) {
            const found = this.#match(at + 1, end + 1);
            if (found >= 0) return found;
          }
          p = end + 1;
          continue;
        }
        case '*':
          return this.#most(at, p, end);
        case '+':
          return isHere ? this.#most(at + 1, p, end) : -1;
        case '-':
          return this.#least(at, p, end);
        default:
          if (!isHere) return -1;
          at++;
          p = end;
      }
    }
  }

  #most(at: number, p: number, end: number): number {
    let count = 0;
    while (at + count < this.#text.length && this.#isOne(at + count, p, end)) count++;
    for (; count >= 0; count--) {
      const found = this.#match(at + count, end + 1);
      if (found >= 0) return found;
    }
    return -1;
  }

  #least(from: number, p: number, end: number): number {
    for (let at = from; ; at++) {
      const found = this.#match(at, end + 1);
      if (found >= 0) return found;
      if (at >= this.#text.length || !this.#isOne(at, p, end)) return -1;
    }
  }

  #open(at: number, p: number, length: number): number {
    if (this.#captures.length >= MOST_CAPTURES) throw new LuaError('too many captures');
    this.#captures.push({ start: at, length });
    const found = this.#match(at, p);
    if (found < 0) this.#captures.pop();
    return found;
  }

  #close(at: number, p: number): number {
    const open = this.#captures.findLast(({ length }) => length === UNCLOSED);
    if (open === undefined) throw new LuaError('invalid pattern capture');
    open.length = at - open.start;
    const found = this.#match(at, p);
    if (found < 0) open.length = UNCLOSED;
    return found;
  }

  #repeated(at: number, digit: string): number {
    const capture = this.#captures[Number(digit) - 1];
    if (capture === undefined || capture.length === UNCLOSED) throw new LuaError('invalid capture index');
    const text = this.#text.slice(capture.start, capture.start + capture.length);
    return this.#text.startsWith(text, at) ? at + text.length : -1;
  }

  #balance(at: number, p: number): number {
    const [open, close] = [this.#pattern[p], this.#pattern[p + 1]];
    if (open === undefined || close === undefined) throw new LuaError('unbalanced pattern');
    if (this.#text[at] !== open) return -1;
    let depth = 1;
    for (let here = at + 1; here < this.#text.length; here++) {
      if (this.#text[here] === close) {
        if (--depth === 0) return here + 1;
      } else if (this.#text[here] === open) depth++;
    }
    return -1;
  }

  #itemEnd(from: number): number {
    let p = from;
    const pattern = this.#pattern;
    const item = pattern[p++];
    if (item === ESCAPE) {
      if (p >= pattern.length) throw new LuaError("malformed pattern (ends with '%')");
      return p + 1;
    }
    if (item !== '[') return p;
    if (pattern[p] === '^') p++;
    do {
      if (p >= pattern.length) throw new LuaError("malformed pattern (missing ']')");
      if (pattern[p++] === ESCAPE && p < pattern.length) p++;
    } while (pattern[p] !== ']');
    return p + 1;
  }

  #isOne(at: number, p: number, end: number): boolean {
    const code = this.#text.charCodeAt(at);
    switch (this.#pattern[p]) {
      case '.':
        return true;
      case ESCAPE:
        return isOfClass(code, this.#pattern[p + 1]!);
      case '[':
        return this.#inSet(code, p, end - 1);
      default:
        return this.#pattern.charCodeAt(p) === code;
    }
  }

  /** `p` is at the bracket that opens the set, `last` at the one that closes it. */
  #inSet(code: number, from: number, last: number): boolean {
    const pattern = this.#pattern;
    let p = from;
    let isIn = true;
    if (pattern[p + 1] === '^') {
      isIn = false;
      p++;
    }
    while (++p < last) {
      if (pattern[p] === ESCAPE) {
        p++;
        if (isOfClass(code, pattern[p]!)) return isIn;
      } else if (pattern[p + 1] === '-' && p + 2 < last) {
        p += 2;
        if (pattern.charCodeAt(p - 2) <= code && code <= pattern.charCodeAt(p)) return isIn;
      } else if (pattern.charCodeAt(p) === code) return isIn;
    }
    return !isIn;
  }
}

const CLASSES: Readonly<Record<string, (code: number) => boolean>> = {
  a: isLetter,
  c: (code) => code < 32 || code === 127,
  d: isDigit,
  l: (code) => code >= 97 && code <= 122,
  p: (code) => code > 32 && code < 127 && !isLetter(code) && !isDigit(code),
  s: (code) => code === 32 || (code >= 9 && code <= 13),
  u: (code) => code >= 65 && code <= 90,
  w: (code) => isLetter(code) || isDigit(code),
  x: (code) => isDigit(code) || (code >= 65 && code <= 70) || (code >= 97 && code <= 102),
  z: (code) => code === 0,
};

function isOfClass(code: number, name: string): boolean {
  const found = CLASSES[name.toLowerCase()];
  if (found === undefined) return name.charCodeAt(0) === code;
  return found(code) === name >= 'a';
}

function isLetter(code: number): boolean {
  return (code >= 65 && code <= 90) || (code >= 97 && code <= 122);
}

function isDigit(code: number): boolean {
  return code >= 48 && code <= 57;
}
