// The model of the queue server: connections, transactions, scripts, publishing, what blocks, and what a server refuses
// when it is ill. Commands on keys are in commands/, what belongs to a connection in session-commands.ts.
//
// A command runs to its end before another begins, as in the real server. When it is over, those are served that block
// on a key that got something, in the order in which they began to wait.

import type { Command, CommandContext, Flavour } from './command.ts';
import { HASH_COMMANDS } from './commands/hashes.ts';
import { KEY_COMMANDS } from './commands/keys.ts';
import { LIST_COMMANDS } from './commands/lists.ts';
import { SERVER_COMMANDS } from './commands/server.ts';
import { SET_COMMANDS } from './commands/sets.ts';
import { SORTED_SET_COMMANDS } from './commands/sorted-sets.ts';
import { STREAM_COMMANDS } from './commands/streams.ts';
import { STRING_COMMANDS } from './commands/strings.ts';
import { globMatcher } from './arguments.ts';
import type { ModelServerOptions, RestartOptions, ServerFaults, ServerSession } from './interface.ts';
import { Journal } from './journal.ts';
import { Keyspace } from './keyspace.ts';
import { REAL_COMMANDS } from './real-commands.ts';
import { Refusals } from './refusals.ts';
import { CommandError, Failure, NO_LIST, QUEUED, notModelled, type Reply } from './replies.ts';
import { RequestReader } from './resp.ts';
import { runScript, type Script } from './scripts.ts';
import { SESSION_COMMANDS, type SessionCommand } from './session-commands.ts';
import { Session } from './session.ts';

const COMMANDS = new Map<string, Command>(
  [
    ...KEY_COMMANDS,
    ...STRING_COMMANDS,
    ...HASH_COMMANDS,
    ...LIST_COMMANDS,
    ...SET_COMMANDS,
    ...SORTED_SET_COMMANDS,
    ...STREAM_COMMANDS,
    ...SERVER_COMMANDS,
  ].map((command) => [command.name, command]),
);

const KEPT_MS = 2_000;

export class ModelServer implements CommandContext {
  readonly faults: ServerFaults = { refuse: undefined, dropPublished: undefined, denied: undefined };
  readonly flavour: Flavour;
  readonly keys: Keyspace;
  readonly #options: ModelServerOptions;
  readonly #refusals: Refusals;
  readonly sessions = new Map<number, Session>();
  readonly scripts = new Map<string, Script>();
  readonly #watchers = new Map<string, Set<Session>>();
  #journal: Journal | undefined;
  #nextId = 1;
  /** Keys that got something while a command ran. */
  #signalled = new Set<string>();
  /** In the order in which they began to wait. */
  readonly #blocked = new Set<Session>();
  /** The hour of the command that runs. */
  #frozenNow: number | undefined;
  #draws: number[] = [];
  #changes = 0;
  #replayed: number[] | undefined;
  #elapsedMs = 0;
  #lastNow: number;
  #startedAt: number;

  constructor(options: ModelServerOptions) {
    this.#options = options;
    this.flavour = options.flavour ?? 'valkey-9';
    this.keys = new Keyspace(() => this.now());
    this.keys.onChange = (key) => this.#noticeChange(key);
    this.#refusals = new Refusals(this.faults, this.flavour);
    this.#lastNow = this.#startedAt = options.now();
    this.#journal = this.#newJournal();
  }

  /** A connection. Replies and pushes leave by `send`, in order; `onClose` hears that the server closed it. */
  connect(send: (bytes: Buffer) => void, onClose?: () => void): ServerSession {
    const session = new Session(this.#nextId++, send, onClose, this.now());
    this.sessions.set(session.id, session);
    const reader = new RequestReader();
    return {
      id: session.id,
      receive: (bytes) => {
        for (const request of reader.read(bytes)) this.#take(session, request);
      },
      close: () => this.drop(session),
    };
  }

  /** One command of a session that does not block, for tests: its reply, not its bytes. */
  execute(session: ServerSession, args: readonly (Buffer | string)[]): Reply {
    const known = this.sessions.get(session.id);
    if (known === undefined) throw new Error('the model knows no such session');
    let answer: Reply | undefined;
    this.#serve(
      known,
      args.map((arg) => (typeof arg === 'string' ? arg : arg.toString('latin1'))),
      (reply) => {
        answer ??= reply;
      },
    );
    if (answer === undefined) throw new Error('the command blocks');
    return answer;
  }

  /** When a command that blocks gives up, ms since 1970; undefined: none will. */
  nextWake(): number | undefined {
    const ends = [...this.#blocked].flatMap(({ waiting }) => waiting?.until ?? []);
    return ends.length === 0 ? undefined : Math.min(...ends);
  }

  /** Answers those whose time is over. */
  wake(): void {
    const now = this.now();
    for (const session of Array.from(this.#blocked))
      if (session.waiting?.until !== undefined && session.waiting.until <= now) this.#unblock(session, NO_LIST);
  }

  /** The process dies and starts again: connections and scripts are gone, and the youngest writes. */
  restart({ forgetMs }: RestartOptions): void {
    const kept = this.#options.keptMs ?? KEPT_MS;
    if (forgetMs > kept) throw new Error(`a restart forgets at most ${kept} ms (keptMs), not ${forgetMs}`);
    for (const session of Array.from(this.sessions.values())) this.drop(session, true);
    if (forgetMs > 0) this.#forget(this.#elapsed() - forgetMs);
    this.scripts.clear();
    this.#startedAt = this.now();
    this.#journal = this.#newJournal();
  }

  // As properties, because commands take them apart.
  readonly now = (): number => this.#frozenNow ?? this.#options.now();

  readonly random = (): number => {
    const drawn = this.#replayed === undefined ? this.#options.random() : this.#replayed.shift();
    if (drawn === undefined) throw new Error('a write was played back that draws more than it drew');
    this.#draws.push(drawn);
    return drawn;
  };

  readonly signal = (key: string): void => {
    if (this.#blocked.size > 0) this.#signalled.add(key);
  };

  readonly publish = (channel: string, message: string): number => {
    if (this.#replayed !== undefined) return 0;
    let receivers = 0;
    const tell = (session: Session, push: Reply): void => {
      receivers++;
      if (this.faults.dropPublished?.(channel, session.id) !== true) session.push(push);
    };
    for (const session of this.sessions.values())
      if (session.channels.has(channel)) tell(session, ['message', channel, message]);
    for (const session of this.sessions.values())
      for (const pattern of session.patterns)
        if (globMatcher(pattern)(channel)) tell(session, ['pmessage', pattern, channel, message]);
    return receivers;
  };

  get uptimeSeconds(): number {
    return Math.max(Math.floor((this.now() - this.#startedAt) / 1_000), 0);
  }

  /** Ends a connection; `byServer` where its client does not know yet. */
  drop(session: Session, byServer = false): void {
    if (!this.sessions.delete(session.id)) return;
    this.#blocked.delete(session);
    this.unwatch(session);
    session.end(byServer);
  }

  watch(session: Session, keys: readonly string[]): void {
    for (const key of keys) {
      this.keys.find(key);
      session.watched.add(key);
      const watchers = this.#watchers.get(key) ?? new Set();
      this.#watchers.set(key, watchers.add(session));
    }
  }

  unwatch(session: Session): void {
    for (const key of session.watched) {
      const watchers = this.#watchers.get(key);
      watchers?.delete(session);
      if (watchers?.size === 0) this.#watchers.delete(key);
    }
    session.watched.clear();
    session.isStale = false;
  }

  /** Runs what a session queued, as one. */
  transact(session: Session, commands: readonly (readonly string[])[]): Reply {
    for (const key of session.watched) this.keys.find(key);
    const isStale = session.isStale;
    this.unwatch(session);
    if (isStale) return NO_LIST;
    return this.#writing(commands, () => commands.map((args) => this.#runQueued(session, args)));
  }

  #take(session: Session, request: readonly string[]): void {
    if (session.isEnded) return;
    if (session.waiting !== undefined) session.pending.push(request);
    else this.#serve(session, request, (reply) => session.reply(reply));
  }

  /** One request of a session to its end, and whoever that wakes. */
  #serve(session: Session, request: readonly string[], answer: (reply: Reply) => void): void {
    session.lastCommand = (request[0] ?? '').toLowerCase();
    this.#frozenNow = this.#options.now();
    try {
      const reply = this.#dispatch(session, request);
      if (reply !== undefined) answer(reply);
      this.#serveBlocked();
    } finally {
      this.#frozenNow = undefined;
    }
  }

  /** Undefined: the reply comes later, or was pushed already. */
  #dispatch(session: Session, args: readonly string[]): Reply | undefined {
    const name = args[0]!.toLowerCase();
    const own = SESSION_COMMANDS.get(name);
    const command = COMMANDS.get(name);
    if (own === undefined && command === undefined) {
      if (REAL_COMMANDS.has(name)) throw notModelled(`the command ${name.toUpperCase()}`);
      if (session.queued !== undefined) session.isAborted = true;
      return unknownCommand(args);
    }
    const found = (own ?? command)!;
    const refusal = arityFailure(found, args) ?? this.#refusals.ofCommand(found, session);
    if (refusal !== undefined) {
      if (session.queued !== undefined) session.isAborted = true;
      return refusal;
    }
    if (session.queued !== undefined && own?.isOutsideTransactions !== true) {
      session.queued.push(args);
      return QUEUED;
    }
    if (own !== undefined) return this.#runOwn(session, own, args);
    return this.#writing([args], () => this.#run(command!, args));
  }

  #runOwn(session: Session, own: SessionCommand, args: readonly string[]): Reply | undefined {
    try {
      if (own.isScript === true) return this.#writing([args], () => own.run(this, session, args) as Reply);
      return own.run(this, session, args);
    } catch (error) {
      return failureOf(error);
    }
  }

  /** In a transaction nothing waits: what blocks answers at once. */
  #runQueued(session: Session, args: readonly string[]): Reply {
    const name = args[0]!.toLowerCase();
    const own = SESSION_COMMANDS.get(name);
    if (own === undefined) return this.#run(COMMANDS.get(name)!, args);
    session.isInTransaction = true;
    try {
      return own.run(this, session, args) ?? NO_LIST;
    } catch (error) {
      return failureOf(error);
    } finally {
      session.isInTransaction = false;
    }
  }

  #run(command: Command, args: readonly string[]): Reply {
    try {
      return command.run(this, args);
    } catch (error) {
      return failureOf(error);
    }
  }

  /** Keeps a note of what changed anything, for a restart that forgets. */
  #writing<T>(commands: readonly (readonly string[])[], run: () => T): T {
    const at = this.#elapsed();
    this.#journal?.turn(at);
    const before = this.#changes;
    this.#draws = [];
    const result = run();
    if (this.#changes > before)
      this.#journal?.add({ at, now: this.now(), refuse: this.faults.refuse, commands, draws: this.#draws });
    return result;
  }

  /** Runs a script, whoever asks. */
  runScript(script: Script, keys: readonly string[], args: readonly string[]): Reply {
    const refusal = this.#refusals.ofScript(script);
    if (refusal !== undefined) return refusal;
    let hasWritten = false;
    const isValkey = this.flavour === 'valkey-9';
    return runScript(script, keys, args, this.flavour, (words) => {
      const name = words[0]!.toLowerCase();
      const command = COMMANDS.get(name);
      if (command === undefined) {
        if (SESSION_COMMANDS.has(name))
          return new Failure(`ERR This ${isValkey ? 'Valkey' : 'Redis'} command is not allowed from script`);
        if (REAL_COMMANDS.has(name)) throw notModelled(`the command ${name.toUpperCase()}`);
        return new Failure(
          `ERR Unknown ${this.flavour === 'valkey-9' ? 'command' : 'Redis command'} called from script`,
        );
      }
      if (arityFailure(command, words) !== undefined)
        return new Failure(`ERR Wrong number of args calling ${isValkey ? 'command' : 'Redis command'} from script`);
      const refused = this.#refusals.inScript(command, script, hasWritten);
      if (refused !== undefined) return refused;
      if (command.isWrite) hasWritten = true;
      return this.#run(command, words);
    });
  }

  /** Lets a session wait until one of the keys has something for it. */
  block(session: Session, keys: readonly string[], until: number | undefined, serve: () => Reply | undefined): void {
    session.waiting = { keys, until, serve };
    this.#blocked.add(session);
  }

  /** A pop that was waited for is a write of its own, with other words. */
  popped<T>(command: readonly string[], run: () => T): T {
    return this.#writing([command], run);
  }

  #serveBlocked(): void {
    while (this.#signalled.size > 0) {
      const ready = this.#signalled;
      this.#signalled = new Set();
      for (const session of Array.from(this.#blocked)) {
        const { waiting } = session;
        if (waiting === undefined || !waiting.keys.some((key) => ready.has(key))) continue;
        let reply: Reply | undefined;
        try {
          reply = waiting.serve();
        } catch (error) {
          reply = failureOf(error);
        }
        if (reply !== undefined) this.#unblock(session, reply);
      }
    }
  }

  #unblock(session: Session, reply: Reply): void {
    this.#blocked.delete(session);
    session.waiting = undefined;
    session.reply(reply);
    for (let next = session.pending.shift(); next !== undefined; next = session.pending.shift()) {
      this.#take(session, next);
      if (session.waiting !== undefined) break;
    }
  }

  #noticeChange(key: string): void {
    this.#changes++;
    for (const session of this.#watchers.get(key) ?? []) session.isStale = true;
  }

  #newJournal(): Journal | undefined {
    const kept = this.#options.keptMs ?? KEPT_MS;
    return kept === 0 ? undefined : new Journal(kept, this.#elapsed(), () => this.keys.snapshot());
  }

  #elapsed(): number {
    if (this.#options.elapsed !== undefined) return this.#options.elapsed();
    const now = this.#options.now();
    this.#elapsedMs += Math.max(now - this.#lastNow, 0);
    this.#lastNow = now;
    return this.#elapsedMs;
  }

  /** Plays back what is older than `at`, each write at its own hour. */
  #forget(at: number): void {
    const { keys, writes } = this.#journal!.before(at);
    this.keys.restore(keys);
    const { refuse } = this.faults;
    const replaying = new Session(0, () => undefined, undefined, 0);
    for (const { now, commands, draws, refuse: then } of writes) {
      this.#frozenNow = now;
      this.#replayed = [...draws];
      this.faults.refuse = then;
      for (const args of commands) this.#runQueued(replaying, args);
    }
    this.faults.refuse = refuse;
    this.#replayed = undefined;
    this.#frozenNow = undefined;
    this.#signalled.clear();
  }
}

function unknownCommand([name = '', ...rest]: readonly string[]): Failure {
  const beginning = rest.map((arg) => `'${arg.slice(0, 128)}' `).join('');
  return new Failure(
    `ERR unknown command '${name.slice(0, 128)}', with args beginning with: ${beginning.slice(0, 128)}`,
  );
}

function arityFailure({ arity, name }: { arity: number; name: string }, args: readonly string[]): Failure | undefined {
  if (arity > 0 ? args.length === arity : args.length >= -arity) return undefined;
  return new Failure(`ERR wrong number of arguments for '${name}' command`);
}

function failureOf(error: unknown): Failure {
  if (error instanceof CommandError) return error.failure;
  throw error;
}
