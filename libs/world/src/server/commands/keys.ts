// Commands on keys of any type: EXISTS, TTLs, RENAME, SCAN.

import { globMatcher, integerOf } from '../arguments.ts';
import { commandsOf, READS, SHRINKS, WRITES, type Command, type CommandContext } from '../command.ts';
import { cloneEntry } from '../keyspace.ts';
import { CommandError, OK, Status, syntaxError, type Reply } from '../replies.ts';
import { pageOf, scanOptions } from './scan.ts';

const remove = ({ keys }: CommandContext, args: readonly string[]): Reply =>
  args.slice(1).filter((key) => keys.delete(key)).length;

/** Ends a key at `at`; one whose time is over is gone at once. */
function expireAt({ keys, now }: CommandContext, args: readonly string[], at: number): Reply {
  const [, key = ''] = args;
  const flags = new Set(args.slice(3).map((word) => word.toUpperCase()));
  for (const flag of flags)
    if (!['NX', 'XX', 'GT', 'LT'].includes(flag)) throw new CommandError(`ERR Unsupported option ${flag}`);
  if (flags.has('NX') && flags.size > 1)
    throw new CommandError('ERR NX and XX, GT or LT options at the same time are not compatible');
  if (flags.has('GT') && flags.has('LT'))
    throw new CommandError('ERR GT and LT options at the same time are not compatible');
  if (!Number.isSafeInteger(at)) throw invalidExpire(args[0]!);
  const entry = keys.find(key);
  if (entry === undefined) return 0;
  const had = entry.expireAt;
  if (flags.has('NX') && had !== undefined) return 0;
  if (flags.has('XX') && had === undefined) return 0;
  if (flags.has('GT') && (had === undefined || at <= had)) return 0;
  if (flags.has('LT') && had !== undefined && at >= had) return 0;
  if (at <= now()) keys.delete(key);
  else {
    entry.expireAt = at;
    keys.changed(key);
  }
  return 1;
}

export function invalidExpire(command: string): CommandError {
  return new CommandError(`ERR invalid expire time in '${command.toLowerCase()}' command`);
}

/** -2: no key, -1: no end, else what is left in `unit` ms. */
function timeLeft({ keys, now }: CommandContext, key: string, unit: number): number {
  const entry = keys.find(key);
  if (entry === undefined) return -2;
  if (entry.expireAt === undefined) return -1;
  const left = Math.max(entry.expireAt - now(), 0);
  return unit === 1 ? left : Math.floor((left + unit / 2) / unit);
}

function endOf({ keys }: CommandContext, key: string, unit: number): number {
  const entry = keys.find(key);
  if (entry === undefined) return -2;
  if (entry.expireAt === undefined) return -1;
  return unit === 1 ? entry.expireAt : Math.floor((entry.expireAt + unit / 2) / unit);
}

function persist({ keys }: CommandContext, [, key = '']: readonly string[]): Reply {
  const entry = keys.find(key);
  if (entry?.expireAt === undefined) return 0;
  entry.expireAt = undefined;
  keys.changed(key);
  return 1;
}

function rename(context: CommandContext, [, from = '', to = '']: readonly string[], isUnlessThere: boolean): Reply {
  const { keys } = context;
  const entry = keys.find(from);
  if (entry === undefined) throw new CommandError('ERR no such key');
  if (isUnlessThere && keys.find(to) !== undefined) return 0;
  if (from !== to) {
    keys.delete(from);
    keys.put(to, entry);
    context.signal(to);
  }
  return isUnlessThere ? 1 : OK;
}

function copy(context: CommandContext, args: readonly string[]): Reply {
  const [, from = '', to = '', ...words] = args;
  const isReplacing = words.length === 1 && words[0]!.toUpperCase() === 'REPLACE';
  if (words.length > 0 && !isReplacing) throw syntaxError();
  if (from === to) throw new CommandError('ERR source and destination objects are the same');
  const entry = context.keys.find(from);
  if (entry === undefined || (!isReplacing && context.keys.find(to) !== undefined)) return 0;
  context.keys.put(to, cloneEntry(entry));
  context.signal(to);
  return 1;
}

function scan({ keys, flavour }: CommandContext, args: readonly string[]): Reply {
  const { cursor, matches, count, type } = scanOptions(args.slice(1), true, flavour);
  const [next, page] = pageOf(keys.keys(), cursor, count);
  return [next, page.filter((key) => matches(key) && (type === undefined || keys.find(key)?.type === type))];
}

const time =
  (unit: number, isAbsolute: boolean) =>
  (context: CommandContext, args: readonly string[]): Reply =>
    expireAt(context, args, integerOf(args[2]) * unit + (isAbsolute ? 0 : context.now()));

export const KEY_COMMANDS: Command[] = [
  ...commandsOf(READS, {
    exists: [-2, ({ keys }, args) => args.slice(1).filter((key) => keys.find(key) !== undefined).length],
    touch: [-2, ({ keys }, args) => args.slice(1).filter((key) => keys.find(key) !== undefined).length],
    type: [2, ({ keys }, [, key = '']) => new Status(keys.find(key)?.type ?? 'none')],
    ttl: [2, (context, [, key = '']) => timeLeft(context, key, 1_000)],
    pttl: [2, (context, [, key = '']) => timeLeft(context, key, 1)],
    expiretime: [2, (context, [, key = '']) => endOf(context, key, 1_000)],
    pexpiretime: [2, (context, [, key = '']) => endOf(context, key, 1)],
    keys: [2, ({ keys }, [, pattern = '']) => keys.keys().filter(globMatcher(pattern))],
    scan: [-2, scan],
    dbsize: [1, ({ keys }) => keys.size],
    randomkey: [
      1,
      ({ keys, random }) => {
        const names = keys.keys();
        return names[Math.floor(random() * names.length)] ?? null;
      },
    ],
  }),
  ...commandsOf(SHRINKS, {
    del: [-2, remove],
    unlink: [-2, remove],
    expire: [-3, time(1_000, false)],
    pexpire: [-3, time(1, false)],
    expireat: [-3, time(1_000, true)],
    pexpireat: [-3, time(1, true)],
    persist: [2, persist],
    rename: [3, (context, args) => rename(context, args, false)],
    renamenx: [3, (context, args) => rename(context, args, true)],
    flushall: [-1, flush],
    flushdb: [-1, flush],
  }),
  ...commandsOf(WRITES, { copy: [-3, copy] }),
];

function flush({ keys }: CommandContext, args: readonly string[]): Reply {
  if (args.length > 2 || (args.length === 2 && !/^(?:a?sync)$/i.test(args[1]!))) throw syntaxError();
  keys.clear();
  return OK;
}
