// Commands that belong to a connection: greetings, transactions, scripts, subscriptions, and those that block.

import { configOf, infoText } from './info.ts';
import { floatOf, integerOf } from './arguments.ts';
import { popScored } from './commands/sorted-sets.ts';
import { take } from './commands/lists.ts';
import { bytesOf } from './commands/server.ts';
import { readStreams, streamRead } from './commands/streams.ts';
import type { ModelServer } from './model-server.ts';
import { scoreText } from './numbers.ts';
import { CommandError, Failure, NO_LIST, OK, notModelled, type Reply } from './replies.ts';
import { scriptOf, type Script } from './scripts.ts';
import type { Session } from './session.ts';

export interface SessionCommand {
  readonly name: string;
  readonly arity: number;
  readonly isWrite: boolean;
  readonly needsMemory: boolean;
  /** It is not queued in a transaction. */
  readonly isOutsideTransactions?: boolean;
  readonly isForSubscribers?: boolean;
  readonly runsWhileLoading?: boolean;
  readonly isScript?: boolean;
  /** Undefined: nothing to say now. */
  readonly run: (server: ModelServer, session: Session, args: readonly string[]) => Reply | undefined;
}

type Flags = Partial<Omit<SessionCommand, 'name' | 'arity' | 'run'>>;

function group(
  flags: Flags,
  table: Readonly<Record<string, readonly [arity: number, run: SessionCommand['run']]>>,
): SessionCommand[] {
  return Object.entries(table).map(([name, [arity, run]]) => ({
    name,
    arity,
    run,
    isWrite: false,
    needsMemory: false,
    ...flags,
  }));
}

function hello(server: ModelServer, session: Session, args: readonly string[]): Reply {
  const [, version = '2', ...words] = args;
  if (version !== '2') return new Failure('NOPROTO unsupported protocol version');
  for (let at = 0; at < words.length; at += 2) {
    const word = words[at]!.toUpperCase();
    if (word !== 'SETNAME') throw notModelled(`HELLO ${word}`);
    session.name = words[at + 1] ?? '';
  }
  const isValkey = server.flavour === 'valkey-9';
  const role = server.faults.refuse === 'readonly' ? 'replica' : 'master';
  const facts: readonly (readonly [string, Reply])[] = [
    ['server', isValkey ? 'valkey' : 'redis'],
    ['version', isValkey ? '9.1.2' : '7.0.15'],
    ['proto', 2],
    ['id', session.id],
    ['mode', 'standalone'],
    ['role', role],
    ['modules', []],
  ];
  return facts.flat();
}

function client(server: ModelServer, session: Session, args: readonly string[]): Reply {
  const [, what = '', ...words] = args;
  switch (what.toUpperCase()) {
    case 'SETNAME':
      if (/[^!-~]/.test(words[0] ?? ''))
        throw new CommandError('ERR Client names cannot contain spaces, newlines or special characters.');
      session.name = words[0] ?? '';
      return OK;
    case 'GETNAME':
      return session.name === '' ? null : session.name;
    case 'ID':
      return session.id;
    case 'SETINFO':
      // Redis 7.0 knows no such word; clients go on without.
      if (server.flavour === 'redis-7.0')
        throw new CommandError("ERR Unknown subcommand or wrong number of arguments for 'SETINFO'. Try CLIENT HELP.");
      session.library.set((words[0] ?? '').toLowerCase(), words[1] ?? '');
      return OK;
    case 'INFO':
      return `${lineOf(server, session)}\n`;
    case 'LIST':
      if (words.length > 0) throw notModelled('CLIENT LIST with a choice');
      return [...server.sessions.values()].map((one) => `${lineOf(server, one)}\n`).join('');
    case 'KILL':
      return kill(server, session, words);
    default:
      throw notModelled(`CLIENT ${what.toUpperCase()}`);
  }
}

function lineOf(server: ModelServer, session: Session): string {
  const age = Math.max(Math.floor((server.now() - session.since) / 1_000), 0);
  const flags =
    session.waiting !== undefined ? 'b' : session.isSubscribed ? 'P' : session.queued !== undefined ? 'x' : 'N';
  return (
    `id=${session.id} addr=127.0.0.1:${20_000 + session.id} laddr=127.0.0.1:6379 fd=${7 + session.id} name=${session.name} ` +
    `age=${age} idle=0 flags=${flags} db=0 sub=${session.channels.size} psub=${session.patterns.size} ssub=0 ` +
    `multi=${session.queued?.length ?? -1} watch=${session.watched.size} cmd=${session.lastCommand} user=default ` +
    `lib-name=${session.library.get('lib-name') ?? ''} lib-ver=${session.library.get('lib-ver') ?? ''} resp=2`
  );
}

function kill(server: ModelServer, session: Session, words: readonly string[]): Reply {
  let [id, type, isSkippingMe]: [number | undefined, string | undefined, boolean] = [undefined, undefined, true];
  for (let at = 0; at < words.length; at += 2) {
    const [word, value = ''] = [words[at]!.toUpperCase(), words[at + 1]];
    if (word === 'ID') id = integerOf(value);
    else if (word === 'TYPE') type = value.toLowerCase();
    else if (word === 'SKIPME') isSkippingMe = value.toLowerCase() === 'yes';
    else throw notModelled(`CLIENT KILL ${word}`);
  }
  const chosen = [...server.sessions.values()].filter(
    (one) =>
      (id === undefined || one.id === id) &&
      (type === undefined || type === (one.isSubscribed ? 'pubsub' : 'normal')) &&
      !(isSkippingMe && one === session),
  );
  for (const one of chosen) server.drop(one, true);
  return chosen.length;
}

function info(server: ModelServer): Reply {
  const entries = server.keys.keys().map((key) => [key, server.keys.find(key)!] as const);
  const { refuse } = server.faults;
  const usedBytes = entries.reduce((bytes, [key, entry]) => bytes + bytesOf(key, entry), 1_000_000);
  return infoText({
    flavour: server.flavour,
    uptimeSeconds: server.uptimeSeconds,
    clients: server.sessions.size,
    usedBytes,
    maxMemoryBytes: refuse === 'oom' ? usedBytes - 1 : 0,
    keys: entries.length,
    expiring: entries.filter(([, { expireAt }]) => expireAt !== undefined).length,
    isLoading: refuse === 'loading',
    isReplica: refuse === 'readonly',
    isDiskFull: refuse === 'misconf',
  });
}

function exec(server: ModelServer, session: Session): Reply {
  const { queued, isAborted } = session;
  if (queued === undefined) return new Failure('ERR EXEC without MULTI');
  session.queued = undefined;
  session.isAborted = false;
  if (!isAborted) return server.transact(session, queued);
  server.unwatch(session);
  return new Failure('EXECABORT Transaction discarded because of previous errors.');
}

function scripts(server: ModelServer, _: Session, args: readonly string[]): Reply {
  const [, what = '', ...words] = args;
  switch (what.toUpperCase()) {
    case 'LOAD': {
      const script = loaded(server, words[0] ?? '');
      return script.sha;
    }
    case 'EXISTS':
      return words.map((sha) => (server.scripts.has(sha.toLowerCase()) ? 1 : 0));
    case 'FLUSH':
      server.scripts.clear();
      return OK;
    default:
      throw notModelled(`SCRIPT ${what.toUpperCase()}`);
  }
}

const evaluate =
  (find: (server: ModelServer, text: string) => Script | undefined) =>
  (server: ModelServer, _: Session, [, text = '', count, ...rest]: readonly string[]): Reply => {
    const keyCount = integerOf(count);
    if (keyCount > rest.length) return new Failure("ERR Number of keys can't be greater than number of args");
    if (keyCount < 0) return new Failure("ERR Number of keys can't be negative");
    const found = find(server, text);
    if (found === undefined)
      return new Failure(`NOSCRIPT No matching script.${server.flavour === 'valkey-9' ? '' : ' Please use EVAL.'}`);
    return server.runScript(found, rest.slice(0, keyCount), rest.slice(keyCount));
  };

function loaded(server: ModelServer, text: string): Script {
  const found = scriptOf(text);
  server.scripts.set(found.sha, found);
  return found;
}

const known = (server: ModelServer, sha: string): Script | undefined => server.scripts.get(sha.toLowerCase());

function subscribe(kind: 'channels' | 'patterns', word: string) {
  return (_: ModelServer, session: Session, [, ...names]: readonly string[]): undefined => {
    for (const name of names) {
      session[kind].add(name);
      session.push([word, name, session.channels.size + session.patterns.size]);
    }
  };
}

function unsubscribe(kind: 'channels' | 'patterns', word: string) {
  return (_: ModelServer, session: Session, [, ...given]: readonly string[]): undefined => {
    const names = given.length > 0 ? given : [...session[kind]];
    for (const name of names) {
      session[kind].delete(name);
      session.push([word, name, session.channels.size + session.patterns.size]);
    }
    if (names.length === 0) session.push([word, null, session.channels.size + session.patterns.size]);
  };
}

/** In seconds, with parts of them; 0: for ever. */
function timeOut(server: ModelServer, text: string | undefined): number | undefined {
  const seconds = floatOf(text, 'redis-7.0', 'ERR timeout is not a float or out of range');
  if (seconds < 0) throw new CommandError('ERR timeout is negative');
  return seconds === 0 ? undefined : Math.ceil(server.now() + seconds * 1_000);
}

/** Answers now, or waits. In a transaction it answers now in any case. */
function orWait(
  server: ModelServer,
  session: Session,
  keys: readonly string[],
  until: number | undefined,
  serve: () => Reply | undefined,
): Reply | undefined {
  const reply = serve();
  if (reply !== undefined) return reply;
  if (session.isInTransaction) return NO_LIST;
  server.block(session, keys, until, serve);
  return undefined;
}

function popScoredOrWait(end: 'min' | 'max') {
  return (server: ModelServer, session: Session, args: readonly string[]): Reply | undefined => {
    const keys = args.slice(1, -1);
    const until = timeOut(server, args.at(-1));
    return orWait(server, session, keys, until, () => {
      for (const key of keys) {
        if ((server.keys.get(key, 'zset')?.size ?? 0) === 0) continue;
        const { member, score } = server.popped([`zpop${end}`, key], () => popScored(server, key, end)!);
        return [key, member, scoreText(score, server.flavour)];
      }
      return undefined;
    });
  };
}

function popOrWait(end: 'left' | 'right') {
  return (server: ModelServer, session: Session, args: readonly string[]): Reply | undefined => {
    const keys = args.slice(1, -1);
    const until = timeOut(server, args.at(-1));
    return orWait(server, session, keys, until, () => {
      for (const key of keys) {
        if (server.keys.get(key, 'list') === undefined) continue;
        return [key, server.popped([end === 'left' ? 'lpop' : 'rpop', key], () => take(server, key, end)!)];
      }
      return undefined;
    });
  };
}

function readOrWait(server: ModelServer, session: Session, args: readonly string[]): Reply | undefined {
  const read = streamRead(server, args);
  if (read.blockMs === undefined) return readStreams(server, read) ?? NO_LIST;
  const until = read.blockMs === 0 ? undefined : server.now() + read.blockMs;
  const keys = read.streams.map(({ key }) => key);
  return orWait(server, session, keys, until, () => readStreams(server, read));
}

function quit(server: ModelServer, session: Session): undefined {
  session.reply(OK);
  server.drop(session, true);
}

const ALL: SessionCommand[] = [
  ...group(
    { isOutsideTransactions: true, runsWhileLoading: true },
    {
      multi: [
        1,
        (_, session) => {
          if (session.queued !== undefined) return new Failure('ERR MULTI calls can not be nested');
          session.queued = [];
          return OK;
        },
      ],
      exec: [1, exec],
      discard: [
        1,
        (server, session) => {
          if (session.queued === undefined) return new Failure('ERR DISCARD without MULTI');
          session.queued = undefined;
          session.isAborted = false;
          server.unwatch(session);
          return OK;
        },
      ],
      watch: [
        -2,
        (server, session, [, ...keys]) => {
          if (session.queued !== undefined) return new Failure('ERR WATCH inside MULTI is not allowed');
          server.watch(session, keys);
          return OK;
        },
      ],
    },
  ),
  ...group({ isOutsideTransactions: true, runsWhileLoading: true, isForSubscribers: true }, { quit: [-1, quit] }),
  ...group(
    { runsWhileLoading: true },
    {
      unwatch: [
        1,
        (server, session) => {
          server.unwatch(session);
          return OK;
        },
      ],
      hello: [-1, hello],
      client: [-2, client],
      info: [-1, info],
      config: [
        -2,
        (_, __, [, what = '', ...patterns]) => {
          if (what.toUpperCase() !== 'GET') throw notModelled(`CONFIG ${what.toUpperCase()}`);
          return configOf(patterns);
        },
      ],
      slowlog: [
        -2,
        (_, __, [, what = '']) => {
          if (what.toUpperCase() === 'LEN') return 0;
          throw notModelled(`SLOWLOG ${what.toUpperCase()}`);
        },
      ],
      auth: [
        -2,
        () =>
          new Failure(
            'ERR AUTH <password> called without any password configured for the default user. Are you sure your ' +
              'configuration is correct?',
          ),
      ],
      select: [
        2,
        (_, __, [, index]) => {
          if (integerOf(index, () => new CommandError('ERR invalid DB index')) === 0) return OK;
          throw notModelled('databases beside 0');
        },
      ],
    },
  ),
  ...group(
    { runsWhileLoading: true, isForSubscribers: true },
    {
      subscribe: [-2, subscribe('channels', 'subscribe')],
      psubscribe: [-2, subscribe('patterns', 'psubscribe')],
      unsubscribe: [-1, unsubscribe('channels', 'unsubscribe')],
      punsubscribe: [-1, unsubscribe('patterns', 'punsubscribe')],
    },
  ),
  ...group({}, { script: [-2, scripts], xread: [-4, readOrWait] }),
  ...group({ isScript: true }, { eval: [-3, evaluate(loaded)], evalsha: [-3, evaluate(known)] }),
  ...group(
    { isWrite: true },
    {
      bzpopmin: [-3, popScoredOrWait('min')],
      bzpopmax: [-3, popScoredOrWait('max')],
      blpop: [-3, popOrWait('left')],
      brpop: [-3, popOrWait('right')],
    },
  ),
];

export const SESSION_COMMANDS: ReadonlyMap<string, SessionCommand> = new Map(
  ALL.map((command) => [command.name, command]),
);
