// Unicode's normal forms as the official `tokenizers` package has them, whose tables are older than those of the running
// Node: characters that only Node decomposes, reorders or joins are left as they are.

import { inCanonicalOrder, nfc } from './nfc.ts';
import { hasPoint, setOf } from './unicode-sets.ts';
import { CLASS_RANGES } from './unicode-classes.ts';
import { TABLE_RANGES } from './unicode-tables.ts';

export type NormalForm = 'NFC' | 'NFD' | 'NFKC' | 'NFKD';

/** What decomposes, is reordered or joined there. */
let known: Uint8Array | undefined;
/** By code point: not looked at yet, inert or known, foreign. */
let foreign: Uint8Array | undefined;

/** So many marks in a row that putting them in order one by one would be felt. */
const MANY_MARKS = /\p{M}{65,}/gu;

/** Text must be well-formed. Linear in its length. */
export function normalForm(text: string, form: NormalForm): string {
  if (form === 'NFC') return nfc(text);
  if (/^[\0-\x7f]*$/.test(text)) return text;
  let made = '';
  let start = 0; // of what has not been normalized yet
  for (let at = 0; at < text.length;) {
    const point = text.codePointAt(at)!;
    const size = point > 0xffff ? 2 : 1;
    if (point >= 0x300 && isForeign(point)) {
      made += ofRun(text.slice(start, at), form) + text.slice(at, at + size);
      start = at + size;
    }
    at += size;
  }
  return made + ofRun(text.slice(start), form);
}

function ofRun(run: string, form: NormalForm): string {
  const decomposed = form === 'NFD' ? 'NFD' : 'NFKD';
  const normal = run.replaceAll(MANY_MARKS, (marks) => inCanonicalOrder(marks, decomposed)).normalize(form);
  if (form === 'NFD' || form === 'NFKD' || /^[\0-\uffff]*$/u.test(normal)) return normal;
  let made = '';
  // joined by newer tables only
  for (const char of normal) made += isForeign(char.codePointAt(0)!) ? char.normalize('NFD') : char;
  return made;
}

function isForeign(point: number): boolean {
  foreign ??= new Uint8Array(0x110000);
  if (foreign[point] === 0) foreign[point] = asksMore(point) ? 2 : 1;
  return foreign[point] === 2;
}

/** Whether this Node does something with a character that the package does nothing with. */
function asksMore(point: number): boolean {
  known ??= setOf(CLASS_RANGES.DECOMPOSED, TABLE_RANGES.COMPATIBLE, TABLE_RANGES.JOINING);
  if (hasPoint(known, point)) return false;
  const char = String.fromCodePoint(point);
  return (
    char.normalize('NFKD') !== char ||
    // of a combining class: it moves behind U+0334 (class 1), or before U+0301 (class 230)
    `${char}\u0334`.normalize('NFD') !== `${char}\u0334` ||
    `\u0301${char}`.normalize('NFD') !== `\u0301${char}`
  );
}
