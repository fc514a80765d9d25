// Commands on lists, but for those that block (session-commands.ts).

import { integerOf, rangeOf } from '../arguments.ts';
import { commandsOf, READS, SHRINKS, WRITES, type Command, type CommandContext } from '../command.ts';
import { CommandError, NO_LIST, OK, syntaxError, type Reply } from '../replies.ts';

type End = 'left' | 'right';

function push(end: End, isIfThere: boolean) {
  return (context: CommandContext, [, key = '', ...values]: readonly string[]): Reply => {
    const { keys } = context;
    if (isIfThere && keys.get(key, 'list') === undefined) return 0;
    const list = keys.open(key, 'list', () => []);
    if (end === 'left') list.unshift(...values.toReversed());
    else list.push(...values);
    keys.changed(key);
    context.signal(key);
    return list.length;
  };
}

/** Takes one value. */
export function take({ keys }: CommandContext, key: string, end: End): string | undefined {
  const list = keys.get(key, 'list');
  if (list === undefined) return undefined;
  const value = end === 'left' ? list.shift() : list.pop();
  keys.changed(key);
  return value;
}

function pop(end: End) {
  return (context: CommandContext, args: readonly string[]): Reply => {
    const [name = '', key = '', given] = args;
    if (args.length > 3) throw new CommandError(`ERR wrong number of arguments for '${name.toLowerCase()}' command`);
    if (given === undefined) return take(context, key, end) ?? null;
    const count = integerOf(given, () => new CommandError('ERR value is out of range, must be positive'));
    if (count < 0) throw new CommandError('ERR value is out of range, must be positive');
    const list = context.keys.get(key, 'list');
    if (list === undefined) return NO_LIST;
    const taken = Array.from({ length: Math.min(count, list.length) }, () => take(context, key, end)!);
    return taken;
  };
}

function move(context: CommandContext, from: string, to: string, ends: readonly [End, End]): Reply {
  const { keys } = context;
  const list = keys.get(from, 'list');
  if (list === undefined) return null;
  keys.get(to, 'list'); // of another type: nothing is taken
  const value = take(context, from, ends[0])!;
  const target = keys.open(to, 'list', () => []);
  if (ends[1] === 'left') target.unshift(value);
  else target.push(value);
  keys.changed(to);
  context.signal(to);
  return value;
}

function endOf(word: string | undefined): End {
  const end = word?.toLowerCase();
  if (end !== 'left' && end !== 'right') throw syntaxError();
  return end;
}

function remove({ keys }: CommandContext, [, key = '', given, value = '']: readonly string[]): Reply {
  const count = integerOf(given);
  const list = keys.get(key, 'list');
  if (list === undefined) return 0;
  let left = count === 0 ? list.length : Math.abs(count);
  const before = list.length;
  const step = count < 0 ? -1 : 1;
  for (let at = count < 0 ? list.length - 1 : 0; at >= 0 && at < list.length && left > 0;) {
    if (list[at] === value) {
      list.splice(at, 1);
      left--;
      if (step < 0) at--;
    } else at += step;
  }
  if (list.length < before) keys.changed(key);
  return before - list.length;
}

function trimTo({ keys }: CommandContext, [, key = '', start, stop]: readonly string[]): Reply {
  const [from, to] = [integerOf(start), integerOf(stop)];
  const list = keys.get(key, 'list');
  if (list === undefined) return OK;
  const [first, end] = rangeOf(list.length, from, to);
  list.splice(end);
  list.splice(0, first);
  keys.changed(key);
  return OK;
}

function setAt({ keys }: CommandContext, [, key = '', place, value = '']: readonly string[]): Reply {
  const list = keys.get(key, 'list');
  if (list === undefined) throw new CommandError('ERR no such key');
  const at = integerOf(place);
  const index = at < 0 ? list.length + at : at;
  if (index < 0 || index >= list.length) throw new CommandError('ERR index out of range');
  list[index] = value;
  keys.changed(key);
  return OK;
}

function notNegative(text: string, name: string): number {
  const failure = (): CommandError => new CommandError(`ERR ${name} can't be negative`);
  const number = integerOf(text, failure);
  if (number < 0) throw failure();
  return number;
}

function positions({ keys }: CommandContext, args: readonly string[]): Reply {
  const [, key = '', value = '', ...words] = args;
  let [rank, count, most]: [number, number | undefined, number] = [1, undefined, 0];
  for (let at = 0; at < words.length; at += 2) {
    const given = words[at + 1];
    if (given === undefined) throw syntaxError();
    switch (words[at]!.toUpperCase()) {
      case 'RANK':
        rank = integerOf(given);
        if (rank === 0)
          throw new CommandError(
            "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... " +
              'or use negative to start from the end of the list',
          );
        break;
      case 'COUNT':
        count = notNegative(given, 'COUNT');
        break;
      case 'MAXLEN':
        most = notNegative(given, 'MAXLEN');
        break;
      default:
        throw syntaxError();
    }
  }
  const list = keys.get(key, 'list') ?? [];
  const found: number[] = [];
  let skipped = Math.abs(rank) - 1;
  const wanted = count === undefined ? 1 : count === 0 ? Infinity : count;
  const looked = most === 0 ? list.length : Math.min(most, list.length);
  for (let step = 0; step < looked && found.length < wanted; step++) {
    const at = rank > 0 ? step : list.length - 1 - step;
    if (list[at] !== value) continue;
    if (skipped > 0) skipped--;
    else found.push(at);
  }
  return count === undefined ? (found[0] ?? null) : found;
}

function insert({ keys }: CommandContext, [, key = '', where = '', pivot = '', value = '']: readonly string[]): Reply {
  const isBefore = where.toUpperCase() === 'BEFORE';
  if (!isBefore && where.toUpperCase() !== 'AFTER') throw syntaxError();
  const list = keys.get(key, 'list');
  if (list === undefined) return 0;
  const at = list.indexOf(pivot);
  if (at < 0) return -1;
  list.splice(isBefore ? at : at + 1, 0, value);
  keys.changed(key);
  return list.length;
}

export const LIST_COMMANDS: Command[] = [
  ...commandsOf(READS, {
    llen: [2, ({ keys }, [, key = '']) => keys.get(key, 'list')?.length ?? 0],
    lrange: [
      4,
      ({ keys }, [, key = '', start, stop]) => {
        const [from, to] = [integerOf(start), integerOf(stop)];
        const list = keys.get(key, 'list') ?? [];
        return list.slice(...rangeOf(list.length, from, to));
      },
    ],
    lindex: [
      3,
      ({ keys }, [, key = '', given]) => {
        const list = keys.get(key, 'list');
        return list?.at(integerOf(given)) ?? null;
      },
    ],
    lpos: [-3, positions],
  }),
  ...commandsOf(SHRINKS, {
    lpop: [-2, pop('left')],
    rpop: [-2, pop('right')],
    lrem: [4, remove],
    ltrim: [4, trimTo],
  }),
  ...commandsOf(WRITES, {
    lpush: [-3, push('left', false)],
    rpush: [-3, push('right', false)],
    lpushx: [-3, push('left', true)],
    rpushx: [-3, push('right', true)],
    lset: [4, setAt],
    linsert: [5, insert],
    rpoplpush: [3, (context, [, from = '', to = '']) => move(context, from, to, ['right', 'left'])],
    lmove: [5, (context, [, from = '', to = '', take1, put1]) => move(context, from, to, [endOf(take1), endOf(put1)])],
  }),
];
