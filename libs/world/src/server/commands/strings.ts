// Commands on strings.

import { integerOf } from '../arguments.ts';
import { commandsOf, READS, SHRINKS, WRITES, type Command, type CommandContext } from '../command.ts';
import { CommandError, OK, syntaxError, wrongType, type Reply } from '../replies.ts';
import { invalidExpire } from './keys.ts';

const MOST_BYTES = 512 << 20;

function store({ keys }: CommandContext, key: string, value: string, expireAt?: number): void {
  keys.put(key, { type: 'string', value, expireAt });
}

/** Keeps what it had of a time to live. */
function replace({ keys }: CommandContext, key: string, value: string): void {
  const entry = keys.find(key);
  keys.put(key, { type: 'string', value, expireAt: entry?.expireAt });
}

interface SetOptions {
  readonly condition: 'NX' | 'XX' | undefined;
  readonly isKeepingTtl: boolean;
  readonly isGet: boolean;
  readonly expireAt: number | undefined;
}

const UNITS: Readonly<Record<string, readonly [unit: number, isAbsolute: boolean]>> = {
  EX: [1_000, false],
  PX: [1, false],
  EXAT: [1_000, true],
  PXAT: [1, true],
};

function setOptions(context: CommandContext, args: readonly string[]): SetOptions {
  let [condition, isKeepingTtl, isGet, given]: [SetOptions['condition'], boolean, boolean, number | undefined] = [
    undefined,
    false,
    false,
    undefined,
  ];
  for (let at = 3; at < args.length; at++) {
    const word = args[at]!.toUpperCase();
    const unit = UNITS[word];
    if ((word === 'NX' || word === 'XX') && (condition === undefined || condition === word)) condition = word;
    else if (word === 'KEEPTTL' && given === undefined) isKeepingTtl = true;
    else if (word === 'GET') isGet = true;
    else if (unit !== undefined && given === undefined && !isKeepingTtl && at + 1 < args.length) {
      const amount = integerOf(args[++at]);
      if (amount <= 0 || !Number.isSafeInteger(amount * unit[0])) throw invalidExpire('set');
      given = amount * unit[0] + (unit[1] ? 0 : context.now());
    } else throw syntaxError();
  }
  return { condition, isKeepingTtl, isGet, expireAt: given };
}

function set(context: CommandContext, args: readonly string[]): Reply {
  const [, key = '', value = ''] = args;
  const { condition, isKeepingTtl, isGet, expireAt } = setOptions(context, args);
  const entry = context.keys.find(key);
  if (isGet && entry !== undefined && entry.type !== 'string') throw wrongType();
  const before = isGet ? ((entry?.value as string | undefined) ?? null) : OK;
  if ((condition === 'NX' && entry !== undefined) || (condition === 'XX' && entry === undefined))
    return isGet ? before : null;
  if (expireAt !== undefined && expireAt <= context.now()) context.keys.delete(key);
  else store(context, key, value, isKeepingTtl ? entry?.expireAt : expireAt);
  return before;
}

function setFor(unit: number) {
  return (context: CommandContext, args: readonly string[]): Reply => {
    const [name = '', key = '', given, value = ''] = args;
    const amount = integerOf(given);
    if (amount <= 0) throw invalidExpire(name);
    store(context, key, value, context.now() + amount * unit);
    return OK;
  };
}

function increase(context: CommandContext, key: string, by: number): Reply {
  const had = context.keys.get(key, 'string');
  const value = (had === undefined ? 0 : integerOf(had)) + by;
  if (!Number.isSafeInteger(value)) throw new CommandError('ERR increment or decrement would overflow');
  replace(context, key, String(value));
  return value;
}

function getRange({ keys }: CommandContext, args: readonly string[]): Reply {
  const [start, stop] = [integerOf(args[2]), integerOf(args[3])];
  const text = keys.get(args[1]!, 'string') ?? '';
  if (start < 0 && stop < 0 && start > stop) return '';
  const from = Math.max(start < 0 ? text.length + start : start, 0);
  const to = Math.min(Math.max(stop < 0 ? text.length + stop : stop, 0), text.length - 1);
  return from > to || text.length === 0 ? '' : text.slice(from, to + 1);
}

function setRange(context: CommandContext, args: readonly string[]): Reply {
  const [, key = '', offset, value = ''] = args;
  const at = integerOf(offset);
  if (at < 0) throw new CommandError('ERR offset is out of range');
  const had = context.keys.get(key, 'string') ?? '';
  if (value === '') return had.length;
  if (at + value.length > MOST_BYTES)
    throw new CommandError('ERR string exceeds maximum allowed size (proto-max-bulk-len)');
  const made = had.padEnd(at, '\0').slice(0, at) + value + had.slice(at + value.length);
  replace(context, key, made);
  return made.length;
}

function getEx(context: CommandContext, args: readonly string[]): Reply {
  const [, key = ''] = args;
  const value = context.keys.get(key, 'string');
  const words = args.slice(2).map((word) => word.toUpperCase());
  const unit = UNITS[words[0] ?? ''];
  if (
    words.length > 0 &&
    !(words.length === 1 && words[0] === 'PERSIST') &&
    !(words.length === 2 && unit !== undefined)
  )
    throw syntaxError();
  if (value === undefined) return null;
  if (unit !== undefined) {
    const amount = integerOf(args[3]);
    if (amount <= 0) throw invalidExpire('getex');
    const at = amount * unit[0] + (unit[1] ? 0 : context.now());
    if (at <= context.now()) context.keys.delete(key);
    else store(context, key, value, at);
  } else if (words.length === 1) store(context, key, value);
  return value;
}

function setMany(context: CommandContext, args: readonly string[]): Reply {
  if (args.length % 2 === 0) throw new CommandError("ERR wrong number of arguments for 'mset' command");
  for (let at = 1; at < args.length; at += 2) store(context, args[at]!, args[at + 1]!);
  return OK;
}

function getOf({ keys }: CommandContext, key: string): Reply {
  const entry = keys.find(key);
  return entry?.type === 'string' ? entry.value : null;
}

export const STRING_COMMANDS: Command[] = [
  ...commandsOf(READS, {
    get: [2, ({ keys }, [, key = '']) => keys.get(key, 'string') ?? null],
    mget: [-2, (context, args) => args.slice(1).map((key) => getOf(context, key))],
    strlen: [2, ({ keys }, [, key = '']) => keys.get(key, 'string')?.length ?? 0],
    getrange: [4, getRange],
  }),
  ...commandsOf(SHRINKS, {
    getdel: [
      2,
      ({ keys }, [, key = '']) => {
        const value = keys.get(key, 'string') ?? null;
        if (value !== null) keys.delete(key);
        return value;
      },
    ],
    getex: [-2, getEx],
  }),
  ...commandsOf(WRITES, {
    set: [-3, set],
    setnx: [
      3,
      (context, [, key = '', value = '']) => {
        if (context.keys.find(key) !== undefined) return 0;
        store(context, key, value);
        return 1;
      },
    ],
    setex: [4, setFor(1_000)],
    psetex: [4, setFor(1)],
    getset: [
      3,
      (context, [, key = '', value = '']) => {
        const had = context.keys.get(key, 'string') ?? null;
        store(context, key, value);
        return had;
      },
    ],
    mset: [-3, setMany],
    append: [
      3,
      (context, [, key = '', value = '']) => {
        const made = (context.keys.get(key, 'string') ?? '') + value;
        replace(context, key, made);
        return made.length;
      },
    ],
    setrange: [4, setRange],
    incr: [2, (context, [, key = '']) => increase(context, key, 1)],
    decr: [2, (context, [, key = '']) => increase(context, key, -1)],
    incrby: [3, (context, [, key = '', by]) => increase(context, key, integerOf(by))],
    decrby: [3, (context, [, key = '', by]) => increase(context, key, -integerOf(by))],
  }),
];
