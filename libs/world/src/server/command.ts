// What a command is to whoever runs it.

import type { Keyspace } from './keyspace.ts';
import type { Reply } from './replies.ts';

export type Flavour = 'valkey-9' | 'redis-7.0';

/** What commands of the keyspace see. Those of connections and scripts see the session besides (session-commands.ts). */
export interface CommandContext {
  readonly keys: Keyspace;
  readonly flavour: Flavour;
  /** Wall clock, ms since 1970; it stands still while a command or a script runs. */
  readonly now: () => number;
  /** In [0, 1). */
  readonly random: () => number;
  readonly publish: (channel: string, message: string) => number;
  /** Wakes whoever blocks on a key that got something. */
  readonly signal: (key: string) => void;
}

export interface Command {
  readonly name: string;
  /** Words with its name; negative: at least so many. */
  readonly arity: number;
  /** It may change something: refused on a full disk and on a replica. */
  readonly isWrite: boolean;
  /** It may take memory: refused when that is full. */
  readonly needsMemory: boolean;
  /** Scripts may not call it. */
  readonly isForbiddenInScripts?: boolean;
  readonly run: (context: CommandContext, args: readonly string[]) => Reply;
}

type Run = Command['run'];

/** Of a table of commands: `get: [arity, run]`; the flags are those of COMMAND INFO. */
export function commandsOf(
  flags: { readonly isWrite: boolean; readonly needsMemory: boolean; readonly isForbiddenInScripts?: boolean },
  table: Readonly<Record<string, readonly [arity: number, run: Run]>>,
): Command[] {
  return Object.entries(table).map(([name, [arity, run]]) => ({ name, arity, run, ...flags }));
}

export const READS = { isWrite: false, needsMemory: false };
export const WRITES = { isWrite: true, needsMemory: true };
/** Writes that take no memory: deletions and the like run on a full server. */
export const SHRINKS = { isWrite: true, needsMemory: false };
