// Commands about the server itself that scripts may call too: TIME, PUBLISH, MEMORY USAGE, PING.

import { commandsOf, READS, SHRINKS, type Command, type CommandContext } from '../command.ts';
import type { Entry } from '../keyspace.ts';
import { CommandError, Status, notModelled, type Reply } from '../replies.ts';

function time({ now }: CommandContext): Reply {
  const ms = now();
  const whole = Math.floor(ms);
  return [String(Math.floor(whole / 1_000)), String((whole % 1_000) * 1_000 + Math.floor((ms - whole) * 1_000))];
}

function texts(values: Iterable<string>): number {
  let bytes = 0;
  for (const value of values) bytes += value.length + 16;
  return bytes;
}

/** What a key takes, about: its bytes and something for each part. Real servers count their structures. */
export function bytesOf(key: string, entry: Entry): number {
  const own = 56 + key.length;
  switch (entry.type) {
    case 'string':
      return own + entry.value.length;
    case 'hash':
      return own + texts([...entry.value].flat());
    case 'list':
    case 'set':
      return own + texts(entry.value);
    case 'zset':
      return own + texts(entry.value.entries.map(({ member }) => member)) + 8 * entry.value.size;
    case 'stream':
      return own + texts(entry.value.entries.flatMap(({ fields }) => fields));
  }
}

function memory({ keys }: CommandContext, args: readonly string[]): Reply {
  const [, what = '', key = ''] = args;
  if (what.toUpperCase() !== 'USAGE') throw notModelled(`MEMORY ${what.toUpperCase()}`);
  if (args.length !== 3 && args.length !== 5) throw new CommandError('ERR syntax error');
  const entry = keys.find(key);
  return entry === undefined ? null : bytesOf(key, entry);
}

export const SERVER_COMMANDS: Command[] = [
  ...commandsOf(READS, {
    time: [1, time],
    ping: [-1, (_, [, text]) => text ?? new Status('PONG')],
    echo: [2, (_, [, text = '']) => text],
    memory: [-2, memory],
  }),
  ...commandsOf(SHRINKS, {
    publish: [3, ({ publish }, [, channel = '', message = '']) => publish(channel, message)],
    wait: [3, () => 0],
  }),
];
