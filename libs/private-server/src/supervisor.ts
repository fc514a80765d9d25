// The supervisor of one private queue server. It is
//   serving   while commands are attached: the server runs and is started again when it dies;
//   lingering when the last command vanished without a farewell (it was killed): the server runs on for a while,
//     because whoever killed it may run it again, and its workers may still be finishing;
//   stopping  when the last command said farewell, the linger time ran out, a signal came, or the server cannot be
//             started: nobody can attach any more, the server writes everything and ends, then the run file goes.
// It begins lingering, so that it ends by itself when the command that started it dies before it attaches.
// It is never resumed from stopping: whoever comes too late is told so and starts another supervisor.

import { appendFileSync } from 'node:fs';
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { hostname } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import { isAlive, identityOf, ownIdentity, placeOfPids, type ProcessIdentity } from '@shoal/fetch/process-identity';
import { onMessage, send, type ToCommand, type ToSupervisor } from './control-protocol.ts';
import { writeDataWriter } from './data-writer.ts';
import { Guard } from './guard.ts';
import type { ServerProgram } from './program.ts';
import { QueueServer } from './queue-server.ts';
import { readRunFile, removeRunFile, RUN_VERSION, touchRunFile, writeRunFile } from './run-file.ts';
import { leaveSocketFolder, type Site } from './site.ts';
import { clearStaleSocket } from './socket-probe.ts';

export interface SupervisorOptions {
  readonly site: Site;
  readonly program: Pick<ServerProgram, 'path' | 'name' | 'version'>;
  readonly lingerMs: number;
}

type State =
  | { readonly name: 'serving' }
  | { readonly name: 'lingering'; readonly timer: NodeJS.Timeout }
  | { readonly name: 'stopping'; readonly gone: Promise<void> };

/** How often the run file is looked at: when it is gone, somebody deleted the cache below our feet. */
const RUN_FILE_CHECK_MS = 2_000;
/** The command that started us attaches at once, but on a machine with much to do that may be seconds later. */
const LEAST_FIRST_LINGER_MS = 10_000;

export class Supervisor {
  readonly #options: SupervisorOptions;
  readonly #attached = new Set<Socket>();
  readonly #listener: Server = createServer((socket) => this.#welcome(socket));
  readonly #server: QueueServer;
  readonly #finished = Promise.withResolvers<void>();
  #guard: Guard | undefined;
  #state: State;
  #isReady = false;

  constructor(options: SupervisorOptions) {
    this.#options = options;
    this.#state = this.#linger(Math.max(options.lingerMs, LEAST_FIRST_LINGER_MS));
    this.#server = new QueueServer({
      program: options.program.path,
      socket: options.site.socket,
      data: options.site.data,
      log: options.site.log,
      onStarted: (pid) => this.#attempt(() => this.#record(pid)),
      onReady: () => this.#ready(),
      onCrash: (found) => this.#crashed(found),
    });
  }

  /** Resolves once commands can attach; throws a plain sentence when this site cannot be used. */
  async start(): Promise<void> {
    const { site } = this.#options;
    await stopOrphan(readRunFile(site.runFile)?.server);
    const problem = (await clearStaleSocket(site.control)) ?? (await clearStaleSocket(site.socket));
    if (problem !== undefined) throw new Error(problem);
    this.#listener.listen(site.control);
    await once(this.#listener, 'listening');
    this.#guard = new Guard(site.socket);
    this.#record(undefined);
    setInterval(() => this.#checkRunFile(), RUN_FILE_CHECK_MS).unref();
    this.#note(`started for ${this.#options.program.path}`);
    this.#server.run().catch((error: unknown) => this.#giveUp((error as Error).message));
  }

  /** Resolves when nothing of it is left running. */
  finished(): Promise<void> {
    return this.#finished.promise;
  }

  stop(reason: string): Promise<void> {
    if (this.#state.name === 'stopping') return this.#state.gone;
    if (!this.#ownsSite()) return this.#abandonSite();
    return this.#leave(reason, async () => {
      this.#listener.close();
      await this.#server.stop();
    });
  }

  /**
   * The cache folder was deleted below our feet, and a new supervisor may have its own sockets at our paths by now.
   * Closing the listener would unlink its control socket, and a server that shuts down its queue socket: so neither is
   * closed, both just end.
   */
  #abandonSite(): Promise<void> {
    return this.#leave('the run file is gone: the cache folder was deleted', () => this.#server.kill());
  }

  #leave(reason: string, end: () => Promise<void>): Promise<void> {
    if (this.#state.name === 'lingering') clearTimeout(this.#state.timer);
    this.#note(`stopping: ${reason}`);
    const gone = (async () => {
      await end();
      await this.#guard?.stop();
      removeRunFile(this.#options.site.runFile);
      leaveSocketFolder(this.#options.site);
      for (const socket of this.#attached) socket.end();
      this.#note('stopped');
      this.#finished.resolve();
    })();
    this.#state = { name: 'stopping', gone };
    return gone;
  }

  #welcome(socket: Socket): void {
    socket.on('error', () => undefined); // a killed command; 'close' follows
    if (this.#state.name === 'stopping') {
      send(socket, { kind: 'stopping' });
      socket.end();
      return;
    }
    if (this.#state.name === 'lingering') clearTimeout(this.#state.timer);
    this.#state = { name: 'serving' };
    this.#attached.add(socket);
    onMessage<ToSupervisor>(socket, (message) => {
      if (message.kind === 'bye') this.#farewell(socket);
    });
    socket.on('close', () => this.#vanished(socket));
    send(socket, { kind: 'attached' });
    if (this.#isReady) send(socket, { kind: 'ready' });
  }

  #farewell(socket: Socket): void {
    this.#attached.delete(socket);
    const isLast = this.#attached.size === 0 && this.#state.name !== 'stopping';
    send(socket, { kind: isLast || this.#state.name === 'stopping' ? 'stopping' : 'left' });
    if (isLast) void this.stop('the last command left');
  }

  #vanished(socket: Socket): void {
    if (!this.#attached.delete(socket) || this.#attached.size > 0 || this.#state.name === 'stopping') return;
    this.#note(`the last command vanished; waiting ${this.#options.lingerMs} ms for another`);
    this.#state = this.#linger();
  }

  #linger(forMs = this.#options.lingerMs): State {
    return { name: 'lingering', timer: setTimeout(() => void this.stop('nobody came back'), forMs) };
  }

  /** Only a server that is ready has read the data that were there: from now on they are in its format. */
  #ready(): void {
    this.#isReady = true;
    if (this.#ownsSite()) this.#attempt(() => writeDataWriter(this.#options.site.data, this.#options.program));
    this.#note('the queue server is ready');
    this.#tellAll({ kind: 'ready' });
  }

  #crashed(found: string): void {
    this.#isReady = false;
    this.#attempt(() => this.#record(undefined));
    this.#note(`the queue server died and is started again: ${found}`);
    this.#tellAll({ kind: 'restarting', found });
  }

  #giveUp(message: string): void {
    this.#tellAll({ kind: 'failed', message });
    void this.stop(message);
  }

  #tellAll(message: ToCommand): void {
    for (const socket of this.#attached) send(socket, message);
  }

  #record(serverPid: number | undefined): void {
    const { site } = this.#options;
    if (serverPid !== undefined) this.#guard?.watch(serverPid);
    const server = serverPid === undefined ? undefined : identityOf(serverPid);
    writeRunFile(site.runFile, {
      version: RUN_VERSION,
      host: hostname(),
      place: placeOfPids(),
      supervisor: ownIdentity(),
      server,
      socket: site.socket,
      control: site.control,
    });
  }

  #checkRunFile(): void {
    if (this.#state.name === 'stopping') return;
    if (this.#ownsSite()) touchRunFile(this.#options.site.runFile);
    else void this.#abandonSite();
  }

  /** What cannot be looked at now has not gone. */
  #ownsSite(): boolean {
    try {
      return readRunFile(this.#options.site.runFile)?.supervisor.pid === process.pid;
    } catch {
      return true;
    }
  }

  /** While the disk takes nothing, what was written before stays: commands find the sockets, and the queue goes on. */
  #attempt(write: () => void): void {
    try {
      write();
    } catch (error) {
      this.#note(error instanceof Error ? error.message : String(error));
    }
  }

  #note(line: string): void {
    try {
      appendFileSync(this.#options.site.log, `${new Date().toISOString()} supervisor ${process.pid}: ${line}\n`, {
        mode: 0o600,
      });
    } catch {
      // the folder is gone, and with it whoever could have read this
    }
  }
}

/** A server whose supervisor was killed: the guard ends it too, but a guard can be killed as well. */
async function stopOrphan(server: ProcessIdentity | undefined): Promise<void> {
  if (server === undefined) return;
  const insistAt = performance.now() + 20_000;
  for (let turn = 0; isAlive(server); turn++) {
    if (turn === 0) process.kill(server.pid, 'SIGTERM');
    else if (performance.now() > insistAt) process.kill(server.pid, 'SIGKILL');
    await delay(10);
  }
}
