// Commands on sorted sets, but for those that block (session-commands.ts).

import { floatOf, integerOf, lexRange, rangeOf, scoreBound, type LexRange } from '../arguments.ts';
import { commandsOf, READS, SHRINKS, WRITES, type Command, type CommandContext, type Flavour } from '../command.ts';
import { scoreText } from '../numbers.ts';
import { CommandError, notModelled, syntaxError, type Reply } from '../replies.ts';
import { SortedSet, type Scored } from '../sorted-set.ts';
import { COMPACT_MEMBERS, pageOf, scanOptions } from './scan.ts';

const openSet = ({ keys }: CommandContext, key: string): SortedSet => keys.open(key, 'zset', () => new SortedSet());
const entriesOf = ({ keys }: CommandContext, key: string): readonly Scored[] => keys.get(key, 'zset')?.entries ?? [];

function told(context: CommandContext, entries: readonly Scored[], withScores: boolean): Reply {
  return entries.flatMap(({ member, score }) => (withScores ? [member, scoreText(score, context.flavour)] : [member]));
}

function add(context: CommandContext, args: readonly string[]): Reply {
  const [, key = ''] = args;
  const flags = new Set<string>();
  let from = 2;
  while (from < args.length && /^(?:nx|xx|gt|lt|ch|incr)$/i.test(args[from]!)) flags.add(args[from++]!.toUpperCase());
  const pairs = args.slice(from);
  if (pairs.length === 0 || pairs.length % 2 !== 0) throw syntaxError();
  if (flags.has('NX') && flags.has('XX'))
    throw new CommandError('ERR XX and NX options at the same time are not compatible');
  if ((flags.has('GT') && flags.has('LT')) || (flags.has('NX') && (flags.has('GT') || flags.has('LT'))))
    throw new CommandError('ERR GT, LT, and/or NX options at the same time are not compatible');
  if (flags.has('INCR') && pairs.length > 2)
    throw new CommandError('ERR INCR option supports a single increment-element pair');
  const scores = pairs.filter((_, at) => at % 2 === 0).map((text) => floatOf(text, context.flavour));
  context.keys.get(key, 'zset');
  let [added, updated, result]: [number, number, number | undefined] = [0, 0, undefined];
  const set = context.keys.get(key, 'zset') ?? (flags.has('XX') ? new SortedSet() : openSet(context, key));
  for (const [at, given] of scores.entries()) {
    const member = pairs[2 * at + 1]!;
    const had = set.scoreOf(member);
    const score = flags.has('INCR') && had !== undefined ? given + had : given;
    if (Number.isNaN(score)) throw new CommandError('ERR resulting score is not a number (NaN)');
    const isRefused =
      had === undefined
        ? flags.has('XX')
        : flags.has('NX') || (flags.has('GT') && score <= had) || (flags.has('LT') && score >= had);
    if (isRefused) continue;
    if (had === undefined) added++;
    else if (had !== score) updated++;
    set.set(member, score);
    result = score;
  }
  if (added + updated > 0) {
    context.keys.changed(key);
    context.signal(key);
  } else if (set.size === 0) context.keys.changed(key);
  if (flags.has('INCR')) return result === undefined ? null : scoreText(result, context.flavour);
  return flags.has('CH') ? added + updated : added;
}

function remove({ keys }: CommandContext, [, key = '', ...members]: readonly string[]): Reply {
  const set = keys.get(key, 'zset');
  if (set === undefined) return 0;
  const count = members.filter((member) => set.delete(member)).length;
  if (count > 0) keys.changed(key);
  return count;
}

type Filter = (entry: Scored) => boolean;

function byScore(least: string | undefined, most: string | undefined, flavour: Flavour): Filter {
  const [from, to] = [scoreBound(least, flavour), scoreBound(most, flavour)];
  return ({ score }) =>
    (from.isExclusive ? score > from.value : score >= from.value) &&
    (to.isExclusive ? score < to.value : score <= to.value);
}

/**
 * Members of a range by their bytes, as a compact set is looked through: from the first one that is above the least (or,
 * turned round, the last one below the most) as far as they belong to it. Where scores differ, that is not all that do.
 */
function inLexRange(
  { keys }: CommandContext,
  key: string,
  { isAbove, isBelow, isNothing }: LexRange,
  { isReverse = false, offset = 0, count = Infinity } = {},
): readonly Scored[] {
  const set = keys.get(key, 'zset');
  if (set === undefined || isNothing || offset < 0) return [];
  const { entries } = set;
  const [lowest, highest] = [entries[0]!, entries.at(-1)!];
  if (!set.isCompact && lowest.score !== highest.score)
    throw notModelled('a range by bytes in a large sorted set whose scores differ');
  if (!isAbove(highest.member) || !isBelow(lowest.member)) return [];
  const ordered = isReverse ? entries.toReversed() : entries;
  const [begins, goesOn] = isReverse ? [isBelow, isAbove] : [isAbove, isBelow];
  const from = ordered.findIndex(({ member }) => begins(member));
  if (from < 0 || !goesOn(ordered[from]!.member)) return [];
  const found = ordered.slice(from + offset);
  const end = found.findIndex(({ member }) => !goesOn(member));
  return found.slice(0, Math.min(end < 0 ? Infinity : end, count));
}

interface RangeOptions {
  readonly by: 'rank' | 'score' | 'lex';
  readonly isReverse: boolean;
  readonly words: readonly string[];
}

/** All forms of ZRANGE and its older kin, from the two bounds on. */
function range(context: CommandContext, key: string, bounds: readonly string[], given: RangeOptions): Reply {
  let { by, isReverse } = given;
  let [limit, withScores]: [readonly [number, number] | undefined, boolean] = [undefined, false];
  const { words } = given;
  for (let at = 0; at < words.length; at++) {
    const word = words[at]!.toUpperCase();
    if (word === 'WITHSCORES') withScores = true;
    else if (word === 'LIMIT' && at + 2 < words.length) limit = [integerOf(words[++at]), integerOf(words[++at])];
    else if (word === 'REV') isReverse = true;
    else if (word === 'BYSCORE') by = 'score';
    else if (word === 'BYLEX') by = 'lex';
    else throw syntaxError();
  }
  if (limit !== undefined && by === 'rank')
    throw new CommandError('ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX');
  if (withScores && by === 'lex')
    throw new CommandError('ERR syntax error, WITHSCORES not supported in combination with BYLEX');
  if (by === 'rank') {
    const [start, stop] = [integerOf(bounds[0]), integerOf(bounds[1])];
    const entries = entriesOf(context, key);
    const ordered = isReverse ? entries.toReversed() : entries;
    return told(context, ordered.slice(...rangeOf(entries.length, start, stop)), withScores);
  }
  const [least, most] = isReverse ? [bounds[1], bounds[0]] : bounds;
  const [offset, count] = limit ?? [0, -1];
  if (by === 'lex') {
    const place = { isReverse, offset, count: count < 0 ? Infinity : count };
    return told(context, inLexRange(context, key, lexRange(least, most), place), false);
  }
  const isIn = byScore(least, most, context.flavour);
  const inOrder = entriesOf(context, key).filter(isIn);
  const found = isReverse ? inOrder.toReversed() : inOrder;
  if (offset < 0) return [];
  return told(context, found.slice(offset, count < 0 ? undefined : offset + count), withScores);
}

const ranged =
  (by: RangeOptions['by'], isReverse: boolean, allowed: RegExp) =>
  (context: CommandContext, [, key = '', start = '', stop = '', ...words]: readonly string[]): Reply => {
    for (let at = 0; at < words.length; at++) {
      if (!allowed.test(words[at]!)) throw syntaxError();
      if (/^limit$/i.test(words[at]!)) at += 2;
    }
    return range(context, key, [start, stop], { by, isReverse, words });
  };

function removeWhere(context: CommandContext, key: string, isIn: (entry: Scored, rank: number) => boolean): Reply {
  return removeAll(context, key, entriesOf(context, key).filter(isIn));
}

function removeAll({ keys }: CommandContext, key: string, gone: readonly Scored[]): Reply {
  const set = keys.get(key, 'zset');
  if (set === undefined) return 0;
  for (const { member } of gone) set.delete(member);
  if (gone.length > 0) keys.changed(key);
  return gone.length;
}

function removeRanks(context: CommandContext, [, key = '', start, stop]: readonly string[]): Reply {
  const [from, to] = [integerOf(start), integerOf(stop)];
  const [first, end] = rangeOf(context.keys.get(key, 'zset')?.size ?? 0, from, to);
  return removeWhere(context, key, (_, rank) => rank >= first && rank < end);
}

/** Takes the lowest or the highest. */
export function popScored({ keys }: CommandContext, key: string, end: 'min' | 'max'): Scored | undefined {
  const set = keys.get(key, 'zset');
  const entry = end === 'min' ? set?.entries[0] : set?.entries.at(-1);
  if (set === undefined || entry === undefined) return undefined;
  set.delete(entry.member);
  keys.changed(key);
  return entry;
}

const notPositive = (): CommandError => new CommandError('ERR value is out of range, must be positive');

function pop(end: 'min' | 'max') {
  return (context: CommandContext, args: readonly string[]): Reply => {
    const [name = '', key = '', given] = args;
    if (args.length > 3) throw new CommandError(`ERR wrong number of arguments for '${name.toLowerCase()}' command`);
    const count = given === undefined ? 1 : integerOf(given, notPositive);
    if (count < 0) throw notPositive();
    const size = context.keys.get(key, 'zset')?.size ?? 0;
    return told(
      context,
      Array.from({ length: Math.min(count, size) }, () => popScored(context, key, end)!),
      true,
    );
  };
}

function rankOf(isReverse: boolean) {
  return ({ keys }: CommandContext, args: readonly string[]): Reply => {
    if (args.length > 3) throw syntaxError();
    const set = keys.get(args[1]!, 'zset');
    const at = set?.rankOf(args[2]!);
    if (set === undefined || at === undefined) return null;
    return isReverse ? set.size - 1 - at : at;
  };
}

function randomMember({ keys, random, flavour }: CommandContext, args: readonly string[]): Reply {
  const [, key = '', given, word] = args;
  const withScores = word !== undefined;
  if (args.length > 4 || (withScores && word.toUpperCase() !== 'WITHSCORES')) throw syntaxError();
  const entries = keys.get(key, 'zset')?.entries ?? [];
  const one = (): Scored => entries[Math.floor(random() * entries.length)]!;
  if (given === undefined) return entries.length === 0 ? null : one().member;
  const count = integerOf(given);
  if (entries.length === 0 || count === 0) return [];
  const chosen = count < 0 ? Array.from({ length: -count }, one) : shuffled(entries, random).slice(0, count);
  return chosen.flatMap(({ member, score }) => (withScores ? [member, scoreText(score, flavour)] : [member]));
}

/** All of them where so many are asked for; the order is chance. */
function shuffled(entries: readonly Scored[], random: () => number): Scored[] {
  const order = [...entries];
  for (let at = order.length - 1; at > 0; at--) {
    const other = Math.floor(random() * (at + 1));
    [order[at], order[other]] = [order[other]!, order[at]!];
  }
  return order;
}

function scan(context: CommandContext, args: readonly string[]): Reply {
  const { cursor, matches, count } = scanOptions(args.slice(2), false, context.flavour);
  const set = context.keys.get(args[1]!, 'zset') ?? new SortedSet();
  const members = set.entries.map(({ member }) => member);
  const [next, page] = members.length <= COMPACT_MEMBERS ? ['0', members] : pageOf(members, cursor, count);
  return [next, page.filter(matches).flatMap((member) => [member, scoreText(set.scoreOf(member)!, context.flavour)])];
}

const scoreOf = ({ keys, flavour }: CommandContext, key: string, member: string): Reply => {
  const score = keys.get(key, 'zset')?.scoreOf(member);
  return score === undefined ? null : scoreText(score, flavour);
};

export const SORTED_SET_COMMANDS: Command[] = [
  ...commandsOf(READS, {
    zcard: [2, ({ keys }, [, key = '']) => keys.get(key, 'zset')?.size ?? 0],
    zscore: [3, (context, [, key = '', member = '']) => scoreOf(context, key, member)],
    zmscore: [-3, (context, [, key = '', ...members]) => members.map((member) => scoreOf(context, key, member))],
    zcount: [
      4,
      (context, [, key = '', least, most]) => {
        const isIn = byScore(least, most, context.flavour);
        return entriesOf(context, key).filter(isIn).length;
      },
    ],
    zlexcount: [4, (context, [, key = '', least, most]) => inLexRange(context, key, lexRange(least, most)).length],
    zrange: [
      -4,
      (context, [, key = '', start = '', stop = '', ...words]) =>
        range(context, key, [start, stop], { by: 'rank', isReverse: false, words }),
    ],
    zrevrange: [-4, ranged('rank', true, /^withscores$/i)],
    zrangebyscore: [-4, ranged('score', false, /^(?:withscores|limit)$/i)],
    zrevrangebyscore: [-4, ranged('score', true, /^(?:withscores|limit)$/i)],
    zrangebylex: [-4, ranged('lex', false, /^limit$/i)],
    zrevrangebylex: [-4, ranged('lex', true, /^limit$/i)],
    zrank: [-3, rankOf(false)],
    zrevrank: [-3, rankOf(true)],
    zrandmember: [-2, randomMember],
    zscan: [-3, scan],
  }),
  ...commandsOf(SHRINKS, {
    zrem: [-3, remove],
    zpopmin: [-2, pop('min')],
    zpopmax: [-2, pop('max')],
    zremrangebyscore: [
      4,
      (context, [, key = '', least, most]) => removeWhere(context, key, byScore(least, most, context.flavour)),
    ],
    zremrangebylex: [
      4,
      (context, [, key = '', least, most]) => removeAll(context, key, inLexRange(context, key, lexRange(least, most))),
    ],
    zremrangebyrank: [4, removeRanks],
  }),
  ...commandsOf(WRITES, {
    zadd: [-4, add],
    zincrby: [
      4,
      (context, [name = '', key = '', by = '', member = '']) => add(context, [name, key, 'INCR', by, member]),
    ],
  }),
];
