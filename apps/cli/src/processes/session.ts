// What a command needs that embeds, besides its model: a queue server, a client, and somebody who runs the jobs. Opened
// in this order, each said aloud when it takes starting; released in the reverse order on every way out. What can be
// refused by looking at the model alone is refused before a server or a worker starts.

import { ShoalError, isShoalError, queueOf } from '@shoal/contract';
import { cacheFolder, type Settings, type Tokenizer } from '@shoal/core';
import { ShoalClient } from '@shoal/client';
import { openTokenizer, type StoredModel } from '@shoal/models';
import {
  checkServer,
  closeConnection,
  liveWorkers,
  openConnection,
  queueService,
  untilReady,
  type QueuePlace,
  type Redis,
} from '@shoal/queue';
import { attachServer } from '@shoal/private-server';
import { WorkerKeeper, forkWorker } from './keep-worker.ts';
import { untilItAnswers } from './queue-connection.ts';
import { noticesOf } from './notices.ts';
import { AskedCells, beginningCell } from './session-cells.ts';
import { WaitingNotice } from './waiting-notice.ts';
import { settingsEnvironment } from '../settings.ts';
import { say, type Terminal } from '../terminal.ts';

export interface Session {
  readonly model: StoredModel;
  readonly tokenizer: Tokenizer;
  readonly client: ShoalClient;
  /** Vectors that come are those of a simulation. */
  readonly isTrial: boolean;
  /** Aborted when the person interrupts, and when no worker can be kept alive; its reason is what to report. */
  readonly signal: AbortSignal;
  /** Rows arrived. */
  noteProgress(): void;
}

export interface SessionOptions {
  readonly settings: Settings;
  readonly isQuiet: boolean;
  /** Nothing came for so long for a reason that somebody has to remove: the command ends. Undefined: it waits. */
  readonly waitLimitMs?: number | undefined;
}

/** Runs `use` with everything in place; nothing that was started here is left when this resolves or rejects. */
export async function withSession<Result>(
  terminal: Terminal,
  options: SessionOptions & { readonly model: StoredModel },
  use: (session: Session) => Promise<Result>,
): Promise<Result> {
  const { maxTokens } = options.settings;
  const tokenizer = await openTokenizer(options.model, maxTokens === undefined ? {} : { maxTokens });
  const withOne = options.settings.cells === undefined ? withServer : withCells;
  return withOne(terminal, options, (server) => withWorker(terminal, { ...options, server, tokenizer }, use));
}

/** Runs `use` with a cell that answers, home where it does. */
async function withCells<Result>(
  terminal: Terminal,
  { settings, isQuiet }: SessionOptions,
  use: (server: QueueServer) => Promise<Result>,
): Promise<Result> {
  terminal.signal.throwIfAborted();
  const { address, prefix } = await beginningCell(terminal, settings, isQuiet);
  return use({ redisUrl: address, prefix, lost: new AbortController().signal });
}

export interface QueueServer {
  readonly redisUrl: string;
  /** Of the cell that it is, where that has its own. */
  readonly prefix?: string | undefined;
  /** Aborted when a private server cannot be brought back. */
  readonly lost: AbortSignal;
}

/**
 * Runs `use` with a queue server: the one that is configured, which has to answer, else this user's private one, which
 * does. Asked here, because each of the processes that a command starts would tell of a server that does not. Throws
 * CONFIG_INVALID or QUEUE_UNREACHABLE.
 */
export async function withServer<Result>(
  terminal: Terminal,
  { settings, isQuiet }: SessionOptions,
  use: (server: QueueServer) => Promise<Result>,
): Promise<Result> {
  terminal.signal.throwIfAborted();
  const losing = new AbortController();
  const server = await attachServer({
    cacheDir: cacheFolder(settings.cacheDir, terminal.environment),
    redisUrl: settings.redisUrl,
    onProgress: (step) => {
      if (!isQuiet) say(terminal, step);
    },
    onLost: (failure) => losing.abort(failure),
    signal: terminal.signal,
  });
  try {
    if (!server.isPrivate)
      await untilItAnswers({
        redisUrl: server.url,
        prefix: settings.prefix,
        signal: terminal.signal,
        onSlow: (line) => (isQuiet ? undefined : say(terminal, line)),
      }).catch(withTheOtherCure);
    return await use({ redisUrl: server.url, lost: losing.signal });
  } finally {
    await server.release();
  }
}

/** A command that starts a server of its own where none is set says so; a client of the SDK cannot. */
function withTheOtherCure(error: unknown): never {
  if (isShoalError(error, 'QUEUE_UNREACHABLE') && error.message.endsWith(' to one that runs'))
    throw new ShoalError(error.code, `${error.message}; unset, Shoal starts its own`, error.fields, error);
  throw error;
}

interface WorkerSessionOptions extends SessionOptions {
  readonly server: QueueServer;
  readonly model: StoredModel;
  readonly tokenizer: Tokenizer;
}

async function withWorker<Result>(
  terminal: Terminal,
  options: WorkerSessionOptions,
  use: (session: Session) => Promise<Result>,
): Promise<Result> {
  const { settings, server, model, tokenizer } = options;
  const { prefix = settings.prefix } = server;
  const queue = queueOf(model);
  const connection = openConnection({ url: server.redisUrl, prefix, name: 'shoal-cli' });
  const cells = settings.cells === undefined ? undefined : new AskedCells(settings.cells, settings.prefix);
  const ofAll = <Answer>(question: (asked: Redis, place: QueuePlace) => Promise<Answer>): Promise<Answer[]> =>
    cells?.ask((asked, own) => question(asked, { prefix: own, queue })) ??
    question(connection, { prefix, queue }).then((answer) => [answer]);
  try {
    await untilReady(connection, server.redisUrl);
    for (const warning of (await checkServer(connection, { isUnsafeAllowed: settings.unsafeServer === 'warn' }))
      .warnings)
      if (!options.isQuiet) say(terminal, warning);
    const isTrial = (await ofAll(queueService)).includes('simulation');
    if (isTrial) sayTrial(terminal, { prefix, queue });
    const keeper = keepWorkerFor(terminal, options, async () => {
      const found = await ofAll((asked, place) => liveWorkers(asked, queue, place.prefix));
      return found.flat().length;
    });
    const waiting = new WaitingNotice(terminal, { ...options, hasCells: settings.cells !== undefined });
    const failed = AbortSignal.any([keeper.failed, server.lost, waiting.tooLong]);
    try {
      const client = await ShoalClient.connect({
        redisUrl: settings.cells === undefined ? server.redisUrl : settings.redisUrl,
        cells: settings.cells,
        prefix: settings.prefix,
        payloadServers: settings.payloadServers,
        jobTexts: settings.jobTexts,
        log: noticesOf(terminal, options),
        model,
        tokenizer,
        limits: settings,
        onHeldBack: holdBackNotice(terminal, options),
        onWaiting: (found) => waiting.tell(found, client.counts()),
        notServedAfterMs: Infinity, // with no worker, one is started here
      });
      try {
        return await use({
          model,
          tokenizer,
          client,
          isTrial,
          signal: AbortSignal.any([terminal.signal, failed]),
          noteProgress: () => keeper.noteProgress(),
        });
      } catch (error) {
        throw failed.aborted ? failed.reason : error; // whatever the abort made of the client's work
      } finally {
        waiting.stop();
        await client.close();
      }
    } finally {
      await keeper.stop();
    }
  } finally {
    await Promise.all([closeConnection(connection), cells?.close()]);
  }
}

/** Said to quiet commands as well: what they write does not show where its vectors came from. */
function sayTrial(terminal: Terminal, place: QueuePlace): void {
  say(
    terminal,
    `warning: ${place.queue} under ${place.prefix} is for a trial (simServes): the vectors that come are not those ` +
      'of the model',
  );
}

/** Says once that the queue is full: what is slow for a reason should not look stuck. */
function holdBackNotice(terminal: Terminal, { isQuiet }: SessionOptions): (retryAfterMs: number | undefined) => void {
  let isSaid = isQuiet;
  return (retryAfterMs) => {
    if (isSaid || retryAfterMs === undefined) return;
    isSaid = true;
    say(terminal, 'the queue is full; this goes on at the speed of its workers');
  };
}

function keepWorkerFor(
  terminal: Terminal,
  { settings, server, model, isQuiet }: WorkerSessionOptions,
  countWorkers: () => Promise<number>,
): WorkerKeeper {
  // The kind of its own, too: a person whose workers serve similarity has that in the environment, and such a worker
  // would never touch these jobs.
  const environment = {
    ...terminal.environment,
    ...settingsEnvironment({
      ...settings,
      redisUrl: server.redisUrl,
      prefix: server.prefix ?? settings.prefix,
      kind: 'embed',
      device: 'cpu',
      metricsPort: 0,
      workerName: undefined,
    }),
  };
  const queue = queueOf(model);
  return new WorkerKeeper({
    startWorker: () => forkWorker('cpu-worker', environment, settings.logLevel === 'debug' ? 'inherit' : 'pipe'),
    countWorkers,
    onStart: (attempt) => {
      if (!isQuiet)
        say(
          terminal,
          attempt === 1
            ? `no worker serves ${queue}; starting one on the CPU for as long as this command runs`
            : 'the worker is gone; starting another one',
        );
    },
  });
}
