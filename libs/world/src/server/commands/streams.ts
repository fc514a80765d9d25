// Commands on streams, without groups. `MAXLEN ~` cuts whole nodes of 100 entries, as real servers do with entries of
// ordinary size (stream-node-max-entries; a node of 4,096 bytes ends earlier there).

import { upToZero } from '../../lua/numbers.ts';
import { integerOf } from '../arguments.ts';
import { commandsOf, READS, SHRINKS, WRITES, type Command, type CommandContext } from '../command.ts';
import { CommandError, NO_LIST, notModelled, syntaxError, type Reply } from '../replies.ts';
import { Stream, compareIds, idText, type StreamEntry, type StreamId } from '../stream.ts';

const NODE_ENTRIES = 100;
const FIRST: StreamId = { ms: 0, seq: 0 };
const LAST: StreamId = { ms: Infinity, seq: Infinity };

const invalidId = (): CommandError => new CommandError('ERR Invalid stream ID specified as stream command argument');

/** As C's strtoull reads its parts: with space and a plus before them, and a byte 0 ends it. */
function idOf(given: string, otherSeq: number): StreamId {
  const text = upToZero(given);
  const found = /^\s*\+?(\d+)(?:-\s*\+?(\d+))?$/.exec(text);
  if (found === null || given.length > MOST_ID_BYTES) throw invalidId();
  return { ms: idPart(found[1]!), seq: found[2] === undefined ? otherSeq : idPart(found[2]) };
}

const MOST_ID_BYTES = 127;

function idPart(digits: string): number {
  const value = Number(digits);
  if (Number.isSafeInteger(value)) return value;
  if (BigInt(digits) >= 2n ** 64n) throw invalidId();
  throw notModelled('ids of streams beyond 2^53');
}

const toldEntry = (entry: StreamEntry): Reply => [idText(entry), [...entry.fields]];

interface Trim {
  readonly by: 'MAXLEN' | 'MINID';
  readonly isAbout: boolean;
  readonly threshold: string;
}

/** `MAXLEN [=|~] n [LIMIT n]`; the words that are left begin at `end`. */
function trimAt(args: readonly string[], from: number): { trim: Trim | undefined; isNotMaking: boolean; end: number } {
  let [trim, isNotMaking, at]: [Trim | undefined, boolean, number] = [undefined, false, from];
  for (; at < args.length; at++) {
    const word = args[at]!.toUpperCase();
    if (word === 'NOMKSTREAM') isNotMaking = true;
    else if (word === 'MAXLEN' || word === 'MINID') {
      const mark = args[at + 1] === '~' || args[at + 1] === '=' ? args[++at] : undefined;
      const threshold = args[++at];
      if (threshold === undefined) throw syntaxError();
      if (word === 'MAXLEN' && integerOf(threshold) < 0)
        throw new CommandError('ERR The MAXLEN argument must be >= 0.');
      trim = { by: word, isAbout: mark === '~', threshold };
    } else if (word === 'LIMIT') throw notModelled('LIMIT of a trimmed stream');
    else break;
  }
  return { trim, isNotMaking, end: at };
}

/** How many entries went. */
function trimmed(stream: Stream, { by, isAbout, threshold }: Trim): number {
  const { entries } = stream;
  let surplus: number;
  if (by === 'MAXLEN') surplus = Math.max(entries.length - integerOf(threshold), 0);
  else {
    const least = idOf(threshold, 0);
    const at = entries.findIndex((entry) => compareIds(entry, least) >= 0);
    surplus = at < 0 ? entries.length : at;
  }
  if (isAbout) {
    // Nodes end where so many were ever added; what of the first one is gone already counts as its own.
    const firstNode = Math.min(NODE_ENTRIES - ((stream.added - entries.length) % NODE_ENTRIES), entries.length);
    if (surplus < entries.length)
      surplus = surplus < firstNode ? 0 : firstNode + Math.floor((surplus - firstNode) / NODE_ENTRIES) * NODE_ENTRIES;
  }
  entries.splice(0, surplus);
  return surplus;
}

function add(context: CommandContext, args: readonly string[]): Reply {
  const [, key = ''] = args;
  const { trim, isNotMaking, end } = trimAt(args, 2);
  const [given, ...fields] = args.slice(end);
  const wanted = given === undefined ? undefined : newId(given);
  if (wanted === undefined || fields.length === 0 || fields.length % 2 !== 0)
    throw new CommandError("ERR wrong number of arguments for 'xadd' command");
  const existing = context.keys.get(key, 'stream');
  if (existing === undefined && isNotMaking) return null;
  const id = wanted(existing?.lastId ?? FIRST, context.now());
  const stream = context.keys.open(key, 'stream', () => new Stream());
  stream.entries.push({ ...id, fields });
  stream.lastId = id;
  stream.added++;
  if (trim !== undefined) trimmed(stream, trim);
  context.keys.changed(key);
  context.signal(key);
  return idText(id);
}

/** Reads what is given, before the key is looked at; what it makes is the hour, and behind the last one where the clock went back. */
function newId(given: string): (last: StreamId, now: number) => StreamId {
  if (given === '*')
    return (last, now) => (now > last.ms ? { ms: Math.floor(now), seq: 0 } : { ms: last.ms, seq: last.seq + 1 });
  const isOpen = given.endsWith('-*');
  const wanted = idOf(isOpen ? given.slice(0, -2) : given, 0);
  if (!isOpen && wanted.ms === 0 && wanted.seq === 0)
    throw new CommandError('ERR The ID specified in XADD must be greater than 0-0');
  return (last) => {
    const id = isOpen ? { ms: wanted.ms, seq: wanted.ms === last.ms ? last.seq + 1 : 0 } : wanted;
    if (compareIds(id, last) <= 0)
      throw new CommandError('ERR The ID specified in XADD is equal or smaller than the target stream top item');
    return id;
  };
}

function bound(text: string, otherSeq: number): { readonly id: StreamId; readonly isExclusive: boolean } {
  const isExclusive = text.startsWith('(');
  const name = isExclusive ? text.slice(1) : text;
  if (isExclusive && (name === '-' || name === '+')) throw invalidId();
  return { id: name === '-' ? FIRST : name === '+' ? LAST : idOf(name, otherSeq), isExclusive };
}

function range(isReverse: boolean) {
  return ({ keys }: CommandContext, args: readonly string[]): Reply => {
    const [, key = '', one = '', other = '', word, given] = args;
    if (args.length > 4 && (args.length !== 6 || word?.toUpperCase() !== 'COUNT')) throw syntaxError();
    const count = given === undefined ? Infinity : Math.max(integerOf(given), 0);
    const [from, to] = isReverse ? [bound(other, 0), bound(one, Infinity)] : [bound(one, 0), bound(other, Infinity)];
    const stream = keys.get(key, 'stream');
    if (stream === undefined) return [];
    if (count === 0) return NO_LIST;
    const found = stream.entries.filter((entry) => {
      const [low, high] = [compareIds(entry, from.id), compareIds(entry, to.id)];
      return (from.isExclusive ? low > 0 : low >= 0) && (to.isExclusive ? high < 0 : high <= 0);
    });
    return (isReverse ? found.toReversed() : found).slice(0, count).map(toldEntry);
  };
}

function remove({ keys }: CommandContext, [, key = '', ...ids]: readonly string[]): Reply {
  const stream = keys.get(key, 'stream');
  if (stream === undefined) return 0;
  const wanted = ids.map((text) => idOf(text, 0));
  const before = stream.entries.length;
  stream.entries = stream.entries.filter((entry) => !wanted.some((id) => compareIds(id, entry) === 0));
  if (stream.entries.length < before) keys.changed(key);
  return before - stream.entries.length;
}

function trimStream({ keys }: CommandContext, args: readonly string[]): Reply {
  const found = trimAt(args, 2);
  if (found.trim === undefined || found.end < args.length) throw syntaxError();
  const stream = keys.get(args[1]!, 'stream');
  if (stream === undefined) return 0;
  const count = trimmed(stream, found.trim);
  if (count > 0) keys.changed(args[1]!);
  return count;
}

export interface StreamRead {
  readonly count: number;
  /** Undefined: it does not block. 0: for ever. */
  readonly blockMs: number | undefined;
  readonly streams: readonly { readonly key: string; readonly after: StreamId }[];
}

/** XREAD's words; `$` is the last id as it is now, and Valkey's `+` what has the last entry behind it. */
export function streamRead({ keys, flavour }: CommandContext, args: readonly string[]): StreamRead {
  let [count, blockMs, at]: [number, number | undefined, number] = [Infinity, undefined, 1];
  for (; at < args.length; at++) {
    const word = args[at]!.toUpperCase();
    if (word === 'COUNT' && at + 1 < args.length) count = Math.max(integerOf(args[++at]), 0) || Infinity;
    else if (word === 'BLOCK' && at + 1 < args.length) {
      blockMs = integerOf(args[++at], () => new CommandError('ERR timeout is not an integer or out of range'));
      if (blockMs < 0) throw new CommandError('ERR timeout is negative');
    } else if (word === 'STREAMS') break;
    else throw syntaxError();
  }
  const names = args.slice(at + 1);
  if (names.length === 0 || names.length % 2 !== 0)
    throw new CommandError(
      "ERR Unbalanced 'xread' list of streams: for each stream key an ID or '$' must be specified.",
    );
  const half = names.length / 2;
  const streams = names.slice(0, half).map((key, index) => {
    const [id, stream] = [names[half + index]!, keys.get(key, 'stream')];
    if (id === '$') return { key, after: stream?.lastId ?? FIRST };
    if (id === '+' && flavour === 'valkey-9') return { key, after: beforeLast(stream) };
    return { key, after: idOf(id, 0) };
  });
  return { count, blockMs, streams };
}

function beforeLast(stream: Stream | undefined): StreamId {
  const last = stream?.entries.at(-1);
  if (last === undefined) return stream?.lastId ?? FIRST;
  return last.seq > 0 ? { ms: last.ms, seq: last.seq - 1 } : { ms: last.ms - 1, seq: Infinity };
}

/** What there is now; undefined where there is nothing. */
export function readStreams({ keys }: CommandContext, { streams, count }: StreamRead): Reply | undefined {
  const found = streams.flatMap(({ key, after }) => {
    const entries = (keys.get(key, 'stream')?.entries ?? []).filter((entry) => compareIds(entry, after) > 0);
    return entries.length === 0 ? [] : [[key, entries.slice(0, count).map(toldEntry)]];
  });
  return found.length === 0 ? undefined : found;
}

export const STREAM_COMMANDS: Command[] = [
  ...commandsOf(READS, {
    xlen: [2, ({ keys }, [, key = '']) => keys.get(key, 'stream')?.entries.length ?? 0],
    xrange: [-4, range(false)],
    xrevrange: [-4, range(true)],
    // In a script and in a transaction it does not wait; a session's is in session-commands.ts.
    xread: [-4, (context, args) => readStreams(context, streamRead(context, args)) ?? NO_LIST],
  }),
  ...commandsOf(SHRINKS, { xdel: [-3, remove], xtrim: [-4, trimStream] }),
  ...commandsOf(WRITES, { xadd: [-5, add] }),
];
