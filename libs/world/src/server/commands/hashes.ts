// Commands on hashes. Fields come in the order in which they were set, as in a compact hash of a real server; a large one
// there has an order of its own.

import { integerOf } from '../arguments.ts';
import { commandsOf, READS, SHRINKS, WRITES, type Command, type CommandContext } from '../command.ts';
import { CommandError, OK, type Reply } from '../replies.ts';
import { COMPACT_MEMBERS, pageOf, scanOptions } from './scan.ts';

const openHash = ({ keys }: CommandContext, key: string): Map<string, string> =>
  keys.open(key, 'hash', () => new Map());

function set(context: CommandContext, args: readonly string[]): number {
  const [name = '', key = ''] = args;
  if (args.length % 2 !== 0)
    throw new CommandError(`ERR wrong number of arguments for '${name.toLowerCase()}' command`);
  const hash = openHash(context, key);
  const before = hash.size;
  for (let at = 2; at < args.length; at += 2) hash.set(args[at]!, args[at + 1]!);
  context.keys.changed(key);
  return hash.size - before;
}

function remove({ keys }: CommandContext, [, key = '', ...fields]: readonly string[]): Reply {
  const hash = keys.get(key, 'hash');
  if (hash === undefined) return 0;
  const count = fields.filter((field) => hash.delete(field)).length;
  if (count > 0) keys.changed(key);
  return count;
}

function increase(context: CommandContext, [, key = '', field = '', given]: readonly string[]): Reply {
  const by = integerOf(given);
  const had = context.keys.get(key, 'hash')?.get(field);
  const value =
    (had === undefined ? 0 : integerOf(had, () => new CommandError('ERR hash value is not an integer'))) + by;
  if (!Number.isSafeInteger(value)) throw new CommandError('ERR increment or decrement would overflow');
  openHash(context, key).set(field, String(value));
  context.keys.changed(key);
  return value;
}

function scan({ keys, flavour }: CommandContext, args: readonly string[]): Reply {
  const { cursor, matches, count } = scanOptions(args.slice(2), false, flavour);
  const hash = keys.get(args[1]!, 'hash') ?? new Map<string, string>();
  const [next, page] = hash.size <= COMPACT_MEMBERS ? ['0', [...hash.keys()]] : pageOf([...hash.keys()], cursor, count);
  return [next, page.filter(matches).flatMap((field) => [field, hash.get(field)!])];
}

export const HASH_COMMANDS: Command[] = [
  ...commandsOf(READS, {
    hget: [3, ({ keys }, [, key = '', field = '']) => keys.get(key, 'hash')?.get(field) ?? null],
    hmget: [
      -3,
      ({ keys }, [, key = '', ...fields]) => {
        const hash = keys.get(key, 'hash');
        return fields.map((field) => hash?.get(field) ?? null);
      },
    ],
    hgetall: [2, ({ keys }, [, key = '']) => [...(keys.get(key, 'hash') ?? [])].flat()],
    hkeys: [2, ({ keys }, [, key = '']) => [...(keys.get(key, 'hash')?.keys() ?? [])]],
    hvals: [2, ({ keys }, [, key = '']) => [...(keys.get(key, 'hash')?.values() ?? [])]],
    hlen: [2, ({ keys }, [, key = '']) => keys.get(key, 'hash')?.size ?? 0],
    hexists: [3, ({ keys }, [, key = '', field = '']) => (keys.get(key, 'hash')?.has(field) === true ? 1 : 0)],
    hstrlen: [3, ({ keys }, [, key = '', field = '']) => keys.get(key, 'hash')?.get(field)?.length ?? 0],
    hscan: [-3, scan],
  }),
  ...commandsOf(SHRINKS, { hdel: [-3, remove] }),
  ...commandsOf(WRITES, {
    hset: [-4, set],
    hmset: [
      -4,
      (context, args) => {
        set(context, args);
        return OK;
      },
    ],
    hsetnx: [
      4,
      (context, [, key = '', field = '', value = '']) => {
        const hash = openHash(context, key);
        if (hash.has(field)) return 0;
        hash.set(field, value);
        context.keys.changed(key);
        return 1;
      },
    ],
    hincrby: [4, increase],
  }),
];
