// JSON of megabytes, read without holding up the event loop: JSON.parse of 16 MiB of brackets takes 1.8 s, of numbers
// 150 ms (2026-11-26). The bytes are looked through first, in slices; lists are cut at commas into pieces, each parsed by
// itself, and put together again. What no request here has (objects in objects, lists in them, lists in lists in lists,
// hundreds of fields) is refused while looking: an object in a list, as a document may be one, has a few texts. The result is what JSON.parse gives; one text is the smallest piece there is.
//
// Two bodies of 16 MiB at a time, eleven kinds of them (one word, spaces, marks, Hangul, rows, ids, brackets), on two
// cores with a load of 30: the loop was held for 0.32 s at most, and health answered within 0.43 s (2026-11-26).
//
// A library that reads a stream of JSON would be less to keep, and was tried: @streamparser/json 0.0.26 takes 18 times as
// long as JSON.parse for 16 MiB of token ids or numbers, and more than 4 GB for as many brackets.

import { randomUUID } from 'node:crypto';
import { shortened } from './body-fields.ts';
import { invalid, type Problem } from './problem.ts';

/** Smaller bodies are parsed at once. */
export const LARGE_BYTES = 128 * 1024;
/** What is looked through, and parsed, without a turn of the event loop in between: 1 to 8 ms (2026-11-26). */
const SIZES = { slice: 256 * 1024, piece: 64 * 1024 } as const;
/** No request has more than two lists around a number, or three with a seed's activation. */
const MOST_LISTS = 3;
const MOST_FIELDS = 64;

/** A comma within lists, between two values. */
interface Cut {
  readonly at: number;
  /** Lists around it. */
  readonly lists: number;
  /** The field that the outermost of them is the value of. */
  readonly field: Field;
}

interface Sizes {
  readonly slice: number;
  readonly piece: number;
}

interface Field {
  readonly name: string;
}

const CODE = { quote: 34, comma: 44, colon: 58, open: 91, backslash: 92, close: 93, begin: 123, end: 125 } as const;

/**
 * `body` is UTF-8; each piece is read when its `turn` has come. Rejects with a Problem. `sizes` in bytes: tests take
 * small ones.
 */
export async function parseInTurns(body: Buffer, turn: () => Promise<void>, sizes: Sizes = SIZES): Promise<unknown> {
  const bytes = body.subarray(body[0] === 0xef && body[1] === 0xbb && body[2] === 0xbf ? 3 : 0);
  const cuts: Cut[] = [];
  for (const found of look(bytes, sizes)) {
    if (found !== undefined) cuts.push(found);
    else await turn();
  }
  const continued = randomUUID(); // a name that no field has
  let result: unknown;
  let list: unknown[] = [];
  for (let at = 0; at <= cuts.length; at++) {
    const [before, cut] = [cuts[at - 1], cuts[at]];
    const text = await decoded(bytes.subarray(before === undefined ? 0 : before.at + 1, cut?.at), turn, sizes);
    const head = before === undefined ? '' : `{"${continued}":${'['.repeat(before.lists)}`;
    const tail = cut === undefined ? '' : `${']'.repeat(cut.lists)}}`;
    await turn();
    const part = parsed(head + text + tail);
    if (before === undefined) result = part;
    else {
      const { [continued]: more, ...others } = part as Record<string, unknown>;
      append(list, more as unknown[], before.lists);
      Object.assign(result as object, others);
    }
    if (cut !== undefined && cut.field !== before?.field) list = Reflect.get(result as object, cut.field.name) as [];
  }
  return result;
}

/** Where the body may be cut, and undefined after each slice. Throws a Problem where it is none of ours. */
function* look(bytes: Buffer, sizes: Sizes): Generator<Cut | undefined, void, undefined> {
  let lists = 0;
  let isObject = false; // the body is one, and has begun
  let isWithin = false; // in an object of a list
  let fieldsWithin = 0;
  let last = 0; // the last byte that is no space, of a text its quote
  let lastCut = 0;
  let comma: Cut | undefined; // one to cut at, where a value follows
  let field: Field = { name: '' };
  let fields = 0;
  let textAt = -1; // where the last text began
  let textEnd = 0;
  let isText = false;
  let isEscaped = false;
  for (let from = 0; from < bytes.length; from += sizes.slice) {
    const to = Math.min(bytes.length, from + sizes.slice);
    for (let at = from; at < to; at++) {
      const byte = bytes[at]!;
      if (isText) {
        if (isEscaped) isEscaped = false;
        else if (byte === CODE.backslash) isEscaped = true;
        else if (byte === CODE.quote) {
          isText = false;
          textEnd = at + 1;
        }
        continue;
      }
      if (byte <= 32) continue;
      if (comma !== undefined) {
        if (byte !== CODE.comma && byte !== CODE.close && byte !== CODE.end && byte !== CODE.colon) {
          lastCut = comma.at;
          yield comma;
        }
        comma = undefined;
      }
      if (byte === CODE.quote) {
        isText = true;
        textAt = at;
      } else if (byte === CODE.begin) {
        if (isObject && (lists !== 1 || isWithin)) throw objectWithin(field);
        isWithin = isObject;
        fieldsWithin = 0;
        isObject = true;
      } else if (byte === CODE.end) isWithin = false;
      else if (byte === CODE.open) {
        if (!isObject) throw last === 0 ? noObject() : notJson();
        if (isWithin) throw objectWithin(field);
        if (++lists > MOST_LISTS) throw tooDeep(field);
      } else if (byte === CODE.close) lists = Math.max(0, lists - 1);
      else if (byte === CODE.colon && lists === 0 && textAt >= 0) {
        field = { name: nameOf(bytes.subarray(textAt, textEnd)) };
        if (++fields > MOST_FIELDS) throw tooManyFields();
      } else if (byte === CODE.comma && isWithin) {
        if (++fieldsWithin > MOST_FIELDS) throw tooManyFields();
      } else if (byte === CODE.comma && lists > 0 && at - lastCut >= sizes.piece)
        if (last !== CODE.open && last !== CODE.comma && last !== CODE.colon && last !== CODE.begin)
          comma = { at, lists, field };
      last = byte;
    }
    yield undefined;
  }
}

/** Long texts come by themselves, and are decoded in turns. */
async function decoded(bytes: Buffer, turn: () => Promise<void>, { slice }: Sizes): Promise<string> {
  let text = '';
  for (let from = 0; from < bytes.length;) {
    let to = Math.min(bytes.length, from + slice);
    while (to < bytes.length && (bytes[to]! & 0xc0) === 0x80) to += 1;
    text += bytes.toString('utf8', from, to);
    from = to;
    if (to < bytes.length) await turn();
  }
  return text;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw notJson();
  }
}

/** Of a name in quotes. One that is none is found out when its piece is parsed. */
function nameOf(bytes: Buffer): string {
  const name = parsed(bytes.toString());
  if (name === '__proto__') throw notJson();
  return String(name);
}

/** `more` begins within the last items of `list`, so many lists deep. */
function append(list: unknown[], more: readonly unknown[], lists: number): void {
  if (lists > 1) append(list.at(-1) as unknown[], more[0] as unknown[], lists - 1);
  for (let at = lists > 1 ? 1 : 0; at < more.length; at++) list.push(more[at]);
}

function notJson(): Problem {
  return invalid('invalid_json', null, 'the request cannot be read: its body is no valid JSON');
}

function noObject(): Problem {
  return invalid('invalid_type', null, 'the body must be a JSON object, found an array');
}

function objectWithin({ name }: Field): Problem {
  return invalid(
    'invalid_type',
    shortened(name),
    `"${shortened(name)}" has an object or a list where no field here takes any`,
  );
}

function tooDeep({ name }: Field): Problem {
  return invalid(
    'invalid_type',
    shortened(name),
    `"${shortened(name)}" has arrays more than ${MOST_LISTS} deep; no field here takes any`,
  );
}

function tooManyFields(): Problem {
  return invalid(
    'unknown_parameter',
    null,
    `the body has more than ${MOST_FIELDS} fields; no request here has as many`,
  );
}
