// EVAL and EVALSHA: runs compiled scripts against the keyspace, with values turned over as Redis documents.

import { createHash } from 'node:crypto';
import {
  LuaError,
  LuaTable,
  NotModelled,
  ScriptRandom,
  compileScript,
  display,
  first,
  type CompiledScript,
  type LuaFunction,
  type LuaValue,
  type ScriptHost,
} from '../lua/index.ts';
import type { Flavour } from './command.ts';
import { argumentText } from './numbers.ts';
import { CommandError, Failure, NoList, Status, type Reply } from './replies.ts';

export interface Script {
  readonly sha: string;
  readonly text: string;
  /** It says of itself that it writes nothing, and that it may run where memory is full. */
  readonly isReadOnly: boolean;
  readonly allowsOom: boolean;
  /** Without a first line of flags a server looks at each command for itself. */
  readonly hasFlags: boolean;
  readonly run: CompiledScript;
}

/** Compiled ones, of all servers of this process: a script is the same everywhere. */
const COMPILED = new Map<string, Script>();

export const sha1Of = (text: string): string => createHash('sha1').update(text, 'latin1').digest('hex');

/** Throws CommandError for what does not compile, and NotModelled for what the model does not have. */
export function scriptOf(text: string): Script {
  const sha = sha1Of(text);
  const known = COMPILED.get(sha);
  if (known !== undefined) return known;
  const line = /^#!([^\n]*)/.exec(text)?.[1];
  const flags = line === undefined ? [] : flagsIn(line);
  let run: CompiledScript;
  try {
    run = compileScript(text);
  } catch (error) {
    if (error instanceof NotModelled) throw error;
    throw new CommandError(`ERR Error compiling script (new function): ${(error as Error).message}`);
  }
  const script: Script = {
    sha,
    text,
    isReadOnly: flags.includes('no-writes'),
    allowsOom: flags.includes('allow-oom') || flags.includes('no-writes'),
    hasFlags: line !== undefined,
    run,
  };
  COMPILED.set(sha, script);
  return script;
}

function flagsIn(line: string): string[] {
  const [engine, ...words] = line.trim().split(/\s+/);
  if (engine !== 'lua') throw new CommandError(`ERR Unexpected engine in script shebang: ${engine ?? ''}`);
  const given = words.map((word) => {
    const flags = /^flags=(.*)$/.exec(word)?.[1];
    if (flags === undefined) throw new CommandError(`ERR Unknown lua shebang option: ${word}`);
    return flags.split(',').filter((flag) => flag !== '');
  });
  for (const flag of given.flat())
    if (!['no-writes', 'allow-oom', 'allow-stale', 'no-cluster', 'allow-cross-slot-keys'].includes(flag))
      throw new CommandError(`ERR Unexpected flag in script shebang: ${flag}`);
  return given.flat();
}

/** Runs a command of a script, and says what it answered. */
export type RunInScript = (args: readonly string[]) => Reply;

/** What the script answered; a failure where it raised an error. Throws NotModelled only. */
export function runScript(
  script: Script,
  keys: readonly string[],
  args: readonly string[],
  flavour: Flavour,
  runCommand: RunInScript,
): Reply {
  const host = new Host(flavour, runCommand);
  try {
    return toReply(first(script.run(host, new LuaTable([...keys]), new LuaTable([...args]))), flavour, 0);
  } catch (error) {
    if (error instanceof LuaError)
      return raised(error.value, placeIn(script, host, flavour), error.isWithoutLine ? undefined : host.line);
    if (error instanceof RangeError) return raised('stack overflow', placeIn(script, host, flavour), host.line);
    throw error;
  }
}

/** Valkey 9 does not name the script any more. */
function placeIn({ sha }: Script, { line }: Host, flavour: Flavour): string {
  return ` script: ${flavour === 'valkey-9' ? '' : `${sha}, `}on @user_script:${line}.`;
}

/** The reply of an error that nobody in the script caught. */
function raised(value: LuaValue, where: string, line: number | undefined): Failure {
  if (value instanceof LuaTable) {
    const text = value.get('err');
    return new Failure(typeof text === 'string' ? `${text}${where}` : `ERR unknown error${where}`);
  }
  const text = typeof value === 'string' ? value : display(value);
  const placed = line === undefined || text.startsWith('user_script:') ? text : `user_script:${line}: ${text}`;
  return new Failure(`ERR ${placed}${where}`);
}

class Host implements ScriptHost {
  line = 0;
  turns = 0;
  readonly #random = new ScriptRandom();
  readonly #flavour: Flavour;
  readonly #run: RunInScript;

  constructor(flavour: Flavour, run: RunInScript) {
    this.#flavour = flavour;
    this.#run = run;
  }

  readonly call: LuaFunction = (...args) => {
    const reply = this.#ask(args);
    if (reply instanceof Failure) throw new LuaError(errorTable(reply.text));
    return fromReply(reply);
  };

  readonly pcall: LuaFunction = (...args) => fromReply(this.#ask(args));

  readonly others: Readonly<Record<string, LuaFunction>> = {
    error_reply: (text) => {
      if (typeof text !== 'string') throw new LuaError(errorTable('ERR wrong number or type of arguments'));
      return errorTable(text.replace(/^-/, ''));
    },
    status_reply: (text) => {
      if (typeof text !== 'string') throw new LuaError(errorTable('ERR wrong number or type of arguments'));
      const table = new LuaTable();
      table.set('ok', text);
      return table;
    },
    sha1hex: (text) => sha1Of(display(text)),
    log: () => [],
    math_random: (low, high) => {
      const value = this.#random.next();
      if (typeof low !== 'number') return value;
      const [from, to] = typeof high === 'number' ? [low, high] : [1, low];
      if (from > to) throw new LuaError("bad argument #1 to 'random' (interval is empty)");
      return Math.floor(value * (to - from + 1)) + from;
    },
  };

  #ask(args: readonly LuaValue[]): Reply {
    if (args.length === 0) return new Failure('ERR Please specify at least one argument for this redis.call() call');
    const texts: string[] = [];
    for (const arg of args) {
      if (typeof arg === 'string') texts.push(arg);
      else if (typeof arg === 'number') texts.push(argumentText(arg, this.#flavour));
      else
        return new Failure(
          `ERR ${this.#flavour === 'valkey-9' ? 'Command' : 'Lua redis lib command'} arguments must be strings or integers`,
        );
    }
    return this.#run(texts);
  }
}

function errorTable(text: string): LuaTable {
  const table = new LuaTable();
  table.set('err', text);
  return table;
}

function fromReply(reply: Reply): LuaValue {
  if (typeof reply === 'string' || typeof reply === 'number') return reply;
  if (reply === null || reply instanceof NoList) return false;
  if (reply instanceof Failure) return errorTable(reply.text);
  if (reply instanceof Status) {
    const table = new LuaTable();
    table.set('ok', reply.text);
    return table;
  }
  const list: LuaValue[] = [];
  for (const item of reply) list.push(fromReply(item));
  return new LuaTable(list);
}

const MOST_NESTED = 100;

function toReply(value: LuaValue, flavour: Flavour, depth: number): Reply {
  switch (typeof value) {
    case 'string':
      return value;
    case 'number':
      return toInteger(value);
    case 'boolean':
      return value ? 1 : null;
    case 'object':
      break;
    default:
      return null;
  }
  if (!(value instanceof LuaTable)) return null;
  if (depth > MOST_NESTED) return new Failure('ERR reached lua stack limit');
  const error = value.get('err');
  if (typeof error === 'string') return new Failure(error);
  const status = value.get('ok');
  if (typeof status === 'string') return new Status(status.replaceAll(/[\r\n]/g, ' '));
  for (const name of ['double', 'map', 'set', 'big_number', 'verbatim_string'])
    if (value.get(name) !== undefined)
      throw new NotModelled(`the model has no RESP3 value "${name}" in a script's reply`);
  const list: Reply[] = [];
  for (let at = 1; ; at++) {
    const item = value.get(at);
    if (item === undefined) return list;
    list.push(toReply(item, flavour, depth + 1));
  }
}

/** A C cast: towards zero; what does not fit is the smallest number. JavaScript's zero has no sign here. */
function toInteger(value: number): number {
  if (!(Math.abs(value) < 2 ** 63)) return -(2 ** 63);
  return Math.trunc(value) + 0;
}
