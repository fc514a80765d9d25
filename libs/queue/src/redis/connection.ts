// The only maker of connections to the queue server. A connection reconnects for as long as it lives: a server that
// restarts (the private one behind a unix socket above all: ENOENT, ECONNREFUSED) is normal. Commands wait meanwhile
// and are sent again, so whoever sends one must be able to repeat it. No 'error' event is ever left without a listener,
// no message carries a password. Carries no bullmq: the executor loads this file too.
//
// Why: docs/decisions/queue.md#commands-are-sent-one-by-one-and-leave-together

import { Socket } from 'node:net';
import { DEFAULT_PREFIX, ShoalError } from '@shoal/contract';
import { redactUrl, type Logger } from '@shoal/core';
import { backoffMs, descriptorFailure, type Backoff, type BufferPool } from '@shoal/core/base';
import { Redis, type RedisOptions } from 'ioredis';
import { countReconnect } from './process-counts.ts';
import { addressText, givenOptions, type ServerAddress } from './given-connection.ts';
import { checkSchema } from './schema.ts';
import { DEAF_MS, askNowAndThen } from './ask-now-and-then.ts';
import { tellOutages } from './outage-lines.ts';
import { AWAY_MS, SLOW_MS } from './patience.ts';
import { addressOf } from './server-address.ts';
import { tlsCure } from './tls.ts';

export type { Redis } from 'ioredis';

export interface ConnectionOptions {
  /**
   * redis://, rediss://, unix:///path/of/the.sock, redis+sentinel:// or redis+cluster://, see server-address.ts; or the
   * settings of a connection that somebody has, see given-connection.ts.
   */
  readonly url: ServerAddress;
  /** Hash tag of the keys that will be used; in a cluster it decides on the node. Default {shoal}. */
  readonly prefix?: string | undefined;
  /** Shown by CLIENT LIST. */
  readonly name: string;
  /** Where replies of 8 KB and more are put; see large-replies.ts. */
  readonly pool?: BufferPool | undefined;
  readonly log?: Logger | undefined;
}

const RETRY: Backoff = { firstMs: 50, mostMs: 2_000 };
/** A peer that does not answer a goodbye in this time is left without one. */
const GOODBYE_MS = 500;

/** A Sentinel that has not said by then who is master is passed over: one that hangs would be waited for for ever. */
const SENTINEL_ANSWER_MS = 2_000;

/** So much is on its way at once: the server has work while more of it is made. */
const MOST_JOINED_BYTES = 262_144;

/**
 * What is sent within one turn of the event loop goes out in one write. A claim or a round of endings is dozens of
 * commands, and a system call for each costs client and server more than the commands do.
 */
class CorkedRedis extends Redis {
  private isJoining = false;

  override sendCommand(...args: Parameters<Redis['sendCommand']>): unknown {
    if (this.status === 'connect' && !isOfHandshake(args[0])) return this.postpone(...args);
    const socket: unknown = Reflect.get(this, 'stream');
    if (!(socket instanceof Socket)) return super.sendCommand(...args);
    if (!this.isJoining) this.join(socket);
    const answer = super.sendCommand(...args);
    if (socket.writableLength >= MOST_JOINED_BYTES) {
      socket.uncork();
      socket.cork();
    }
    return answer;
  }

  /**
   * Until the handshake is over. ioredis sends at once what a server answers while it loads, INFO among it, and forgets
   * it when the connection breaks before it is ready: nobody would ever answer (6.0.0, closeHandler).
   */
  private postpone(...[command, stream]: Parameters<Redis['sendCommand']>): unknown {
    const { offlineQueue, condition } = this as unknown as Unpublished;
    offlineQueue.push({ command, stream, select: condition.select });
    return command.promise;
  }

  /**
   * To leave a server for another is no goodbye: ioredis would end for good while it asks where to connect, and listens
   * to a socket that closes already once more each time (6.0.0).
   */
  override disconnect(reconnect = false): void {
    const socket: unknown = Reflect.get(this, 'stream');
    const isOpen = socket instanceof Socket && !socket.destroyed;
    const isAsking = this.status === 'connecting' && !isOpen;
    const isLeaving = isOpen && socket.writableEnded;
    if (!(reconnect && (isAsking || isLeaving))) super.disconnect(reconnect);
  }

  private join(socket: Socket): void {
    this.isJoining = true;
    socket.cork();
    setImmediate(() => {
      this.isJoining = false;
      socket.uncork();
    });
  }
}

/** What ioredis has for itself. */
interface Unpublished {
  readonly offlineQueue: { push(item: object): void };
  readonly condition: { readonly select: number };
  /** What a connection that broke had not answered, until the next one is ready. */
  readonly prevCommandQueue?: { shift(): { readonly command: { reject(error: Error): void } } | undefined } | null;
}

function isOfHandshake({ name, args }: Parameters<Redis['sendCommand']>[0]): boolean {
  return ['hello', 'auth', 'client', 'select', 'readonly'].includes(name) || (name === 'info' && args.length === 0);
}

/** Begins to connect and returns at once. Throws CONFIG_INVALID for a URL it cannot understand. */
export function openConnection(options: ConnectionOptions): Redis {
  const redisOptions: RedisOptions & { replyMapping: 'legacy' } = {
    ...(typeof options.url === 'string' ? addressOf(options.url, options.prefix, options) : givenOptions(options.url)),
    replyMapping: 'legacy', // what BullMQ expects of replies
    connectionName: options.name,
    disconnectTimeout: GOODBYE_MS,
    socketTimeout: DEAF_MS,
    sentinelCommandTimeout: SENTINEL_ANSWER_MS,
    maxRetriesPerRequest: null, // BullMQ demands it; and a command that waits is what every caller here wants
    retryStrategy: (times) => backoffMs(times - 1, RETRY),
  };
  const connection = new CorkedRedis(redisOptions);
  hearReadyCheck(connection);
  const { url, name, log } = options;
  if (log !== undefined) tellOutages(connection, { name, server: addressText(url), log, describe });
  else connection.on('error', () => undefined); // ioredis would print its stack; whoever asked waits the outage out
  countReconnects(connection);
  askNowAndThen(connection);
  answerAtEnd(connection);
  return connection;
}

/**
 * Rejects what nobody will answer once the connection is closed for good. ioredis does so with what it has sent and what
 * waits, but not with what it was about to send again: a connection that broke, and was made anew and closed before it
 * was ready, left its callers to wait for ever (6.0.0, flushQueue).
 */
export function answerAtEnd(connection: Redis): void {
  connection.on('end', () => {
    const { prevCommandQueue: left } = connection as unknown as Unpublished;
    for (let item = left?.shift(); item !== undefined; item = left?.shift())
      item.command.reject(new Error('Connection is closed.'));
  });
}

/**
 * Opens a connection and resolves once the server answers and this process can read what is under the prefix. Throws
 * CONFIG_INVALID, QUEUE_UNREACHABLE, or QUEUE_UNSAFE for structures of a newer version, and then leaves nothing open.
 */
export async function connected(options: ConnectionOptions): Promise<Redis> {
  const connection = openConnection(options);
  try {
    await untilReady(connection, options.url);
    await checkSchema(connection, options.prefix ?? DEFAULT_PREFIX);
    return connection;
  } catch (error) {
    await closeConnection(connection);
    throw error;
  }
}

/** How long a server is waited for. */
export interface Patience {
  /**
   * Left out: 5 s where connections are refused or hung up on, as by a server that is about to start, and 30 s where
   * nothing is refused, as by one that is slow or says that it cannot serve yet.
   */
  readonly waitMs?: number | undefined;
  /** Told once what is waited for, in a line for a person, when a server turns out to be slow. */
  readonly onSlow?: ((line: string) => void) | undefined;
}

/** Resolves when the server answers; throws QUEUE_UNREACHABLE when it does not in time, at once when it refuses us. */
export async function untilReady(
  connection: Redis,
  address: ServerAddress,
  { waitMs, onSlow }: Patience = {},
): Promise<void> {
  const url = typeof address === 'string' ? address : addressText(address);
  if (connection.status === 'ready') return;
  let lastError: Error | undefined;
  let notYet: Error | undefined;
  let giveUp: (() => void) | undefined;
  let [isOpen, hasHungUp, wasDeaf, isLate] = [connection.status === 'connect', false, false, false];
  const beganMs = performance.now();
  let limitMs = waitMs ?? AWAY_MS;
  const isSilent = (): boolean => !hasHungUp && (isOpen || lastError === undefined);
  const judge = (): void => {
    if (giveUp === undefined || connection.status === 'ready') return;
    if (isLate || waitMs !== undefined || !isSilent()) return giveUp();
    isLate = true;
    limitMs = SLOW_MS;
    timer = setTimeout(giveUp, SLOW_MS - AWAY_MS);
    onSlow?.(slowLine(url, loading.has(connection) ? 'still reads its data' : whatIsSlow(isOpen, notYet)));
  };
  // where the loop stood still, what came meanwhile is heard first
  let timer = setTimeout(() => setImmediate(judge), limitMs);
  const notSilentAnyMore = (): void => {
    if (!isLate || isSilent()) return;
    limitMs = Math.round(performance.now() - beganMs);
    giveUp?.();
  };
  const listeners = {
    error(error: Error): void {
      if (isDeafness(error)) return void (wasDeaf = true);
      if (isTimeOut(error) || isPassingRefusal(error)) return void (notYet = error);
      lastError = error;
      if (isRefusal(error)) giveUp?.();
      else notSilentAnyMore();
    },
    end: () => giveUp?.(),
    connect(): void {
      isOpen = true;
      lastError = undefined; // what was before is over
    },
    close(): void {
      hasHungUp ||= isOpen && !wasDeaf && notYet === undefined; // else it was us
      [isOpen, wasDeaf] = [false, false];
      notSilentAnyMore();
    },
  };
  try {
    await new Promise<void>((resolve, reject) => {
      giveUp = () => {
        const seen = { isClosing: hasHungUp, isSilent: isOpen && !hasHungUp, isLoading: loading.has(connection) };
        reject(unreachableError(url, lastError ?? notYet, limitMs, seen));
      };
      connection.once('ready', resolve);
      connection.on('error', listeners.error);
      connection.once('end', listeners.end);
      connection.on('connect', listeners.connect).on('close', listeners.close);
      if (connection.status !== 'end') return;
      lastError = new Error('the connection is closed');
      giveUp();
    });
  } finally {
    giveUp = undefined;
    clearTimeout(timer);
    connection.off('error', listeners.error);
    connection.off('end', listeners.end);
    connection.off('connect', listeners.connect).off('close', listeners.close);
  }
}

/** What closing needs of a connection; BullMQ's wrapper around one has it too. */
export interface Closable {
  readonly status: string;
  once(event: 'end', listener: () => void): unknown;
  connect(): Promise<void>;
  disconnect(): void;
}

/** Closes a connection and waits until its socket is gone. Commands that still wait are rejected. */
export async function closeConnection(connection: Closable): Promise<void> {
  if (connection.status === 'end') return;
  await new Promise<void>((resolve) => {
    connection.once('end', resolve);
    const isBetweenAttempts = connection.status === 'reconnecting';
    connection.disconnect();
    if (!isBetweenAttempts) return;
    // Without a socket, `disconnect` only clears the retry timer: no 'end', and waiting commands would wait for ever.
    // An attempt that is called off at once takes the ordinary way out.
    connection.connect().catch(() => undefined);
    connection.disconnect();
  });
}

/** The connection broke, or was closed by us, before the reply came: the command may or may not have been executed. */
export function isConnectionFault(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code: unknown = Reflect.get(error, 'code');
  return (
    (typeof code === 'string' && /^E(CONN|PIPE|NOENT|TIMEDOUT|HOST|NET|AI_|[MN]FILE$)/.test(code)) ||
    /Connection is closed|Command aborted|Stream isn't writeable|max retries per request|Command timed out/.test(
      error.message,
    )
  );
}

/** The server refused a write because its memory is full (a script that writes is refused with the same word). */
export function isServerFull(error: unknown): boolean {
  return error instanceof Error && /^OOM |(-|\b)OOM command not allowed|EXECABORT.*OOM/.test(error.message);
}

/** The server cannot serve now and says that this will pass: loading, failing over, its disk full, busy in a script. */
export function isPassingRefusal(error: unknown): boolean {
  return (
    error instanceof Error &&
    /^(LOADING|READONLY|MASTERDOWN|MISCONF|BUSY|TRYAGAIN|CLUSTERDOWN|NOREPLICAS|UNBLOCKED|MOVED|ASK)\b/.test(
      error.message,
    )
  );
}

/**
 * The server reads and takes no writes: its disk is full or its append-only file cannot be written (MISCONF), it
 * follows another server (READONLY), or too few follow it (NOREPLICAS).
 */
export function refusesWrites(error: unknown): boolean {
  return error instanceof Error && /^(MISCONF|READONLY|NOREPLICAS)\b/.test(error.message);
}

/** Worth trying again after a pause. */
export function isPassingFault(error: unknown): boolean {
  return isConnectionFault(error) || isServerFull(error) || isPassingRefusal(error);
}

/** Those whose server has said, when it was asked last, that it still reads its data. */
const loading = new WeakSet<Redis>();

/**
 * ioredis asks INFO whether the server is ready, and waits for as long as it loads. Where INFO is not allowed it prints
 * advice, a line for each connection; who needs INFO says so itself (server-check.ts).
 */
function hearReadyCheck(connection: Redis): void {
  const info = connection.info.bind(connection) as (...args: unknown[]) => unknown;
  Reflect.set(connection, 'info', (...args: unknown[]) => {
    const [callback] = args;
    if (typeof callback !== 'function') return info(...args);
    return info((error: Error | null, text: unknown) => {
      if (/^loading:1/m.test(String(text))) loading.add(connection);
      else loading.delete(connection);
      const isDenied = error?.message.includes('NOPERM') === true;
      Reflect.apply(callback, undefined, isDenied ? [null, ''] : [error, text]);
    });
  });
  connection.on('close', () => loading.delete(connection));
}

function countReconnects(connection: Redis): void {
  let [wasReady, isLost] = [false, false];
  connection.on('close', () => (isLost = wasReady));
  connection.on('ready', () => {
    if (isLost) countReconnect();
    [wasReady, isLost] = [true, false];
  });
}

/** The server answered, and will answer the same next time: wrong password, no permission, not a Redis at all. */
function isRefusal(error: Error): boolean {
  return (
    tlsCure(error) !== undefined ||
    /WRONGPASS|NOAUTH|NOPERM|invalid password/.test(error.message) ||
    /DB index is out of range|Protocol error|wrong number of arguments/.test(error.message)
  );
}

function slowLine(url: string, what: string): string {
  return `waiting for the queue server at ${redactUrl(url)}, which ${what}${url.startsWith('rediss') ? `; ${PLAIN}` : ''}`;
}

function whatIsSlow(isOpen: boolean, notYet: Error | undefined): string {
  if (notYet !== undefined && isPassingRefusal(notYet)) return `cannot serve yet: ${describe(notYet)}`;
  return isOpen ? 'takes connections and has not answered yet' : 'has neither answered nor refused yet';
}

/** A plain server takes the greeting of TLS for the beginning of a command and waits for its end. */
const PLAIN = 'if it speaks no TLS, write redis:// instead of rediss://';

/** A server of TLS hangs up on who speaks none, and says nothing. */
function maybeTls(url: string): string | undefined {
  return /^redis(\+|:)/.test(url)
    ? 'What listens there takes connections and closes them: if it speaks TLS, write rediss:// instead of redis://'
    : undefined;
}

function unreachableError(
  url: string,
  cause: Error | undefined,
  waitMs: number,
  { isClosing, isSilent, isLoading }: Record<'isClosing' | 'isSilent' | 'isLoading', boolean>,
): ShoalError<'QUEUE_UNREACHABLE'> {
  if (isLoading) return notYetServing(url, 'it still reads its data');
  if (cause !== undefined && isPassingRefusal(cause)) return notYetServing(url, describe(cause), cause);
  const starved = descriptorFailure(cause);
  if (starved !== undefined) {
    return new ShoalError(
      'QUEUE_UNREACHABLE',
      `no connection to the queue server at ${redactUrl(url)}: ${starved.message}`,
      { server: redactUrl(url) },
      cause,
    );
  }
  const found = cause === undefined ? `no answer within ${waitMs} ms` : describe(cause).replace(/\.$/, '');
  const cure = cause === undefined ? (isClosing ? maybeTls(url) : undefined) : tlsCure(cause);
  if (cure !== undefined) {
    return new ShoalError(
      'QUEUE_UNREACHABLE',
      `no connection to the queue server at ${redactUrl(url)}: ${found}. ${cure}`,
      { server: redactUrl(url) },
      cause,
    );
  }
  if (cause !== undefined && isRefusal(cause)) {
    return new ShoalError(
      'QUEUE_UNREACHABLE',
      `the queue server at ${redactUrl(url)} answers and refuses us: ${found}. Check user, ` +
        'password and database in redisUrl (REDIS_URL), and that it is a Redis or Valkey that listens there',
      { server: redactUrl(url) },
      cause,
    );
  }
  if (cause === undefined && isSilent && url.startsWith('unix:')) return silentHere(url, waitMs);
  return new ShoalError(
    'QUEUE_UNREACHABLE',
    `the queue server at ${redactUrl(url)} does not answer: ${found}. ` +
      (url.startsWith('rediss') && (cause === undefined || isTimeOut(cause)) ? `I${PLAIN.slice(1)}. ` : '') +
      'Start it, or set redisUrl (REDIS_URL) to ' +
      'one that runs',
    { server: redactUrl(url) },
    cause,
  );
}

/** It answers, and starting another one would not help. */
function notYetServing(url: string, found: string, cause?: Error): ShoalError<'QUEUE_UNREACHABLE'> {
  return new ShoalError(
    'QUEUE_UNREACHABLE',
    `the queue server at ${redactUrl(url)} answers and cannot serve yet: ${found.replace(/\.$/, '')}. Try again when ` +
      'it is through with that, which its log tells, or set redisUrl (REDIS_URL) to another one',
    { server: redactUrl(url) },
    cause,
  );
}

/** A process that was stopped takes connections all the same: the system does it in its stead. */
function silentHere(url: string, waitMs: number): ShoalError<'QUEUE_UNREACHABLE'> {
  const socket = redactUrl(url).replace(/^unix:(?:\/\/)?/, '');
  return new ShoalError(
    'QUEUE_UNREACHABLE',
    `the queue server at ${redactUrl(url)} takes connections and says nothing for ${waitMs} ms: it is stopped, or busy ` +
      `with one long command. fuser ${socket} names its process: kill -CONT lets a stopped one go on, and a private ` +
      'server that is ended is started again with what it had',
    { server: redactUrl(url) },
  );
}

/** Of a limit that we set ourselves, for a connection or for what a Sentinel or node says. */
function isTimeOut(error: Error): boolean {
  return Reflect.get(error, 'code') === 'ETIMEDOUT' || error.message.includes('Command timed out');
}

/** We hung up, after DEAF_MS. */
function isDeafness(error: Error): boolean {
  return error.message.startsWith('Socket timeout');
}

/** Node gives an AggregateError without a message when a name has several addresses and none answers. */
function describe(error: Error): string {
  const code: unknown = Reflect.get(error, 'code');
  return error.message || (typeof code === 'string' ? code : error.name);
}
