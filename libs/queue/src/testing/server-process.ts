// For tests: one process of a queue server, on a port of 127.0.0.1 or a unix socket; killed and started again in place.

import { spawn, type ChildProcess } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { closeConnection, openConnection, untilReady } from '../redis/connection.ts';
import { serverEnvironment } from '@shoal/private-server';

export class ServerProcess {
  readonly port: number;
  readonly busPort: number | undefined;
  readonly url: string;
  readonly #program: string;
  readonly #args: readonly string[];
  #child: ChildProcess | undefined;

  /** `port` 0 with a `url`: it listens elsewhere than on a port. */
  constructor(
    program: string,
    args: readonly string[],
    port: number,
    busPort?: number,
    url = `redis://127.0.0.1:${port}`,
  ) {
    this.#program = program;
    this.#args = args;
    this.port = port;
    this.busPort = busPort;
    this.url = url;
  }

  get pid(): number {
    return this.#child?.pid ?? 0;
  }

  get isRunning(): boolean {
    return this.#child !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  async start(): Promise<void> {
    this.#child = await launch(this.#program, this.#args, this.url);
  }

  /** SIGKILL; resolves when the process is gone. */
  async kill9(): Promise<void> {
    if (!this.isRunning) return;
    const gone = once(this.#child!, 'exit');
    this.#child!.kill('SIGKILL');
    await gone;
  }

  /** SIGSTOP and SIGCONT: it keeps its connections and answers nothing. */
  pause(isPaused: boolean): void {
    this.#child?.kill(isPaused ? 'SIGSTOP' : 'SIGCONT');
  }
}

/**
 * Under the range that outgoing connections get theirs from (Linux: 32,768 and more), so that none takes one before its
 * server starts.
 */
const FIRST_PORT = 12_000;
const PORTS = 20_000;
/** On a starved machine with a large append-only file. */
const START_MS = 60_000;

/** A port that was free a moment ago. */
export async function freePort(): Promise<number> {
  const port = FIRST_PORT + randomInt(PORTS);
  const probe = createServer().listen(port, '127.0.0.1');
  const isFree = await once(probe, 'listening').then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') return false;
      throw error;
    },
  );
  if (!isFree) return freePort();
  probe.close();
  await once(probe, 'close');
  return port;
}

/** Resolves once the server answers; rejects with its output when it exits instead. */
async function launch(program: string, args: readonly string[], url: string): Promise<ChildProcess> {
  const server = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'], env: serverEnvironment() });
  const killWithUs = (): void => void server.kill('SIGKILL');
  process.once('exit', killWithUs);
  server.once('exit', () => process.off('exit', killWithUs));
  const output: string[] = [];
  server.stdout.on('data', (chunk: Buffer) => output.push(chunk.toString()));
  server.stderr.on('data', (chunk: Buffer) => output.push(chunk.toString()));
  const died = new Promise<never>((_, reject) => {
    server.once('error', (error) =>
      reject(new Error(`the test server ${program} could not be started: ${error.message}`)),
    );
    server.once('exit', (code, signal) =>
      reject(new Error(`the test server ${program} ended (${code ?? signal}):\n${output.join('').slice(-2_000)}`)),
    );
  });
  died.catch(() => undefined);
  const control = openConnection({ url, name: 'test-server-start' });
  try {
    await Promise.race([untilReady(control, url, { waitMs: START_MS }), died]);
  } finally {
    await closeConnection(control);
  }
  return server;
}
