// How a Lua script is called: by its hash, loaded again whenever the server does not know it (first use, a restart).
// Like every command of command-pipeline.ts, a call may be executed twice, so each script here may be.
//
// The scripts are the .lua files of the lua/ folders, which tools/build-lua.ts turns into constants. Nothing is filled
// into them: a number that the script alone uses stands in it, and what TypeScript knows as well is an argument. So a
// file is what the server runs, parses by itself, and has one hash, whoever builds it.

import type { Redis } from './connection.ts';
import { inParts } from './in-parts.ts';
import {
  askAll,
  askOnce,
  valueOf,
  type Argument,
  type Command,
  type Reply,
  type RetryOptions,
} from './command-pipeline.ts';

/**
 * A text that begins with `#!lua flags=no-writes` reads only: the server runs it although its memory or its disk is
 * full, so that whoever looks sees the queue. One that begins with `#!lua flags=allow-oom` only shrinks or marks what is stored, so that it works when the
 * memory of the server is full, which is when it is needed most: without the flag SET is refused there.
 */
export interface Script {
  /** Its room and its file: "bullmq/add-jobs" is bullmq/lua/add-jobs.lua. */
  readonly name: string;
  readonly lua: string;
  readonly sha: string;
  /** 0 where the number of keys depends on the call. */
  readonly keyCount: number;
}

/**
 * One reply per list of arguments (keys first), in order, all sent in one write. Throws QUEUE_UNREACHABLE once the
 * connection is closed for good, and the server's own error when it refuses for a reason that will not pass.
 */
export async function runScript(
  connection: Redis,
  called: Script,
  calls: readonly (readonly Argument[])[],
  options: RetryOptions = {},
): Promise<unknown[]> {
  const commands = calls.map((values): Command => ['EVALSHA', called.sha, called.keyCount, ...values]);
  const replies = await askAll(connection, commands, options);
  // Where the script was missing nothing was executed. It can be missing again after another restart.
  for (let missing = missingIn(replies); missing.length > 0; missing = missingIn(replies)) {
    const [loaded] = await askAll(connection, [['SCRIPT', 'LOAD', called.lua]], options);
    if (loaded !== undefined) valueOf(loaded);
    const again = await askAll(
      connection,
      missing.map((index) => commands[index]!),
      options,
    );
    for (const [at, index] of missing.entries()) replies[index] = again[at]!;
  }
  return replies.map(valueOf);
}

/** Of a script that does the same for many items: the keys and the arguments of one. */
export interface ScriptItem {
  readonly keys: readonly string[];
  readonly values: readonly Argument[];
}

/** So many items take the server less than half a millisecond, in which it does nothing else. */
const ITEMS_PER_CALL = 32;

/**
 * For scripts whose KEYS and ARGV are those of all items, one after the other, and which answer with a list: one value
 * for each item, in order. A call by itself costs the server 4 to 8 µs, and who sends it 10 to 20 (Valkey 9.1,
 * 2026-11).
 */
export async function runScriptOver(
  connection: Redis,
  called: Omit<Script, 'keyCount'>,
  items: readonly ScriptItem[],
  options: RetryOptions = {},
): Promise<unknown[]> {
  const answers = await Promise.all(
    inParts(items, ITEMS_PER_CALL).map(async (group) => {
      const keys = group.flatMap((item) => item.keys);
      const [answer] = await runScript(
        connection,
        { ...called, keyCount: keys.length },
        [[...keys, ...group.flatMap((item) => item.values)]],
        options,
      );
      return answer as unknown[];
    }),
  );
  return answers.flat();
}

/**
 * One call that is sent before this returns and waits out nothing: a fault that will pass, a full server above all, is
 * thrown as it came.
 */
export async function runScriptOnce(connection: Redis, called: Script, values: readonly Argument[]): Promise<unknown> {
  const call: readonly Command[] = [['EVALSHA', called.sha, called.keyCount, ...values]];
  let replies = await askOnce(connection, call);
  while (missingIn(replies).length > 0) {
    const [loaded] = await askOnce(connection, [['SCRIPT', 'LOAD', called.lua]]);
    if (loaded !== undefined) valueOf(loaded);
    replies = await askOnce(connection, call);
  }
  return valueOf(replies[0]!);
}

function missingIn(replies: readonly Reply[]): number[] {
  return replies.flatMap((reply, index) => (!reply.ok && reply.error.message.startsWith('NOSCRIPT') ? [index] : []));
}
