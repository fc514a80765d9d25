// Commands on sets. Members come in the order in which they were added; a real set of whole numbers is in their order,
// and a large one in an order of its own.

import { commandsOf, READS, SHRINKS, WRITES, type Command, type CommandContext } from '../command.ts';
import type { Reply } from '../replies.ts';
import { COMPACT_MEMBERS, pageOf, scanOptions } from './scan.ts';

function add({ keys }: CommandContext, [, key = '', ...members]: readonly string[]): Reply {
  const set = keys.open(key, 'set', () => new Set());
  const before = set.size;
  for (const member of members) set.add(member);
  if (set.size > before) keys.changed(key);
  return set.size - before;
}

function remove({ keys }: CommandContext, [, key = '', ...members]: readonly string[]): Reply {
  const set = keys.get(key, 'set');
  if (set === undefined) return 0;
  const count = members.filter((member) => set.delete(member)).length;
  if (count > 0) keys.changed(key);
  return count;
}

function scan({ keys, flavour }: CommandContext, args: readonly string[]): Reply {
  const { cursor, matches, count } = scanOptions(args.slice(2), false, flavour);
  const members = [...(keys.get(args[1]!, 'set') ?? [])];
  const [next, page] = members.length <= COMPACT_MEMBERS ? ['0', members] : pageOf(members, cursor, count);
  return [next, page.filter(matches)];
}

export const SET_COMMANDS: Command[] = [
  ...commandsOf(READS, {
    scard: [2, ({ keys }, [, key = '']) => keys.get(key, 'set')?.size ?? 0],
    sismember: [3, ({ keys }, [, key = '', member = '']) => (keys.get(key, 'set')?.has(member) === true ? 1 : 0)],
    smismember: [
      -3,
      ({ keys }, [, key = '', ...members]) => {
        const set = keys.get(key, 'set');
        return members.map((member) => (set?.has(member) === true ? 1 : 0));
      },
    ],
    smembers: [2, ({ keys }, [, key = '']) => [...(keys.get(key, 'set') ?? [])]],
    sscan: [-3, scan],
  }),
  ...commandsOf(SHRINKS, { srem: [-3, remove] }),
  ...commandsOf(WRITES, { sadd: [-3, add] }),
];
