// A real server of our own whose clock stands still until it is set (clock.c), and a connection to it that sends many
// commands at once and hands out replies as the model makes them. Linux only, with a C compiler.

import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Failure, NO_LIST, Status, type Reply } from '../replies.ts';

/** Sets the hour for all that follows; ms since 1970, a whole number of them. */
export const clockCommand = (ms: number): string[] => ['DEBUG', 'SLEEP', String(ms)];

/** Why no such server can be had here, if so. */
export function whyNoClock(): string | undefined {
  if (process.platform !== 'linux') return 'the clock of a real server can be set on Linux only';
  try {
    execFileSync('cc', ['--version'], { stdio: 'ignore' });
    return undefined;
  } catch {
    return 'there is no C compiler "cc", which builds what sets the clock of a real server';
  }
}

export class RealServer {
  readonly #process: ChildProcess;
  readonly #folder: string;
  readonly #socket: Socket;
  #waiting: { readonly done: (text: string) => void; readonly fail: (why: Error) => void } | undefined;
  #ending = '';
  #chunks: string[] = [];
  #asked = 0;

  private constructor(process: ChildProcess, folder: string, socket: Socket, said: () => string) {
    this.#process = process;
    this.#folder = folder;
    this.#socket = socket.setEncoding('latin1');
    socket.on('data', (chunk) => this.#take(chunk as unknown as string));
    socket.on('close', () => this.#waiting?.fail(new Error(`the real server is gone: ${said()}`)));
  }

  /** Starts `program`. Throws with its last lines where it does not come up, or its clock cannot be set. */
  static async start(program: string): Promise<RealServer> {
    const folder = mkdtempSync(join(tmpdir(), 'shoal-conformance-'));
    const library = join(folder, 'clock.so');
    const source = fileURLToPath(new URL('clock.c', import.meta.url));
    execFileSync('cc', ['-O2', '-shared', '-fPIC', '-o', library, source, '-ldl']);
    const path = join(folder, 'socket');
    const child = spawn(program, [...ARGUMENTS, '--dir', folder, '--unixsocket', path], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, LD_PRELOAD: library, LC_ALL: 'C' },
    });
    let said = '';
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (bytes) => (said = `${said}${bytes}`.slice(-2_000)));
    const server = new RealServer(child, folder, await connected(path, child, () => said), () => said);
    const [, , hour] = await server.ask([clockCommand(PROBE_MS), ['DEBUG', 'SET-ACTIVE-EXPIRE', '0'], ['TIME']]);
    if (JSON.stringify(hour) === JSON.stringify([String(PROBE_MS / 1_000), '0'])) return server;
    await server.stop();
    throw new Error(`the clock of ${program} cannot be set: asked for ${PROBE_MS} ms it says ${JSON.stringify(hour)}`);
  }

  /** One reply for each command, in order. One call at a time. */
  async ask(commands: readonly (readonly string[])[]): Promise<Reply[]> {
    if (this.#waiting !== undefined) throw new Error('one call at a time');
    const last = `end ${this.#asked++}`;
    this.#ending = `$${last.length}\r\n${last}\r\n`;
    const answered = new Promise<string>((done, fail) => (this.#waiting = { done, fail }));
    this.#socket.write([...commands, ['ECHO', last]].map(request).join(''), 'latin1');
    const text = await answered;
    return repliesIn(text, commands.length);
  }

  async stop(): Promise<void> {
    this.#socket.destroy();
    const gone = once(this.#process, 'exit');
    // its clock stands still, so that it would not come to end itself
    this.#process.kill('SIGKILL');
    await gone;
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #take(chunk: string): void {
    this.#chunks.push(chunk);
    const isWhole =
      chunk.length >= this.#ending.length
        ? chunk.endsWith(this.#ending)
        : this.#chunks.slice(-2).join('').endsWith(this.#ending);
    if (!isWhole || this.#waiting === undefined) return;
    const [{ done }, text] = [this.#waiting, this.#chunks.join('')];
    this.#waiting = undefined;
    this.#chunks = [];
    done(text);
  }
}

const PROBE_MS = 1_700_000_000_000;
const ARGUMENTS = '--port 0 --save "" --appendonly no --enable-debug-command yes --slowlog-log-slower-than -1'
  .split(' ')
  .map((word) => (word === '""' ? '' : word));

async function connected(path: string, child: ChildProcess, said: () => string): Promise<Socket> {
  for (let tries = 0; child.exitCode === null && tries < 1_000; tries++) {
    const socket = connect(path);
    const isThere = await new Promise<boolean>((done) => {
      socket.once('connect', () => done(true)).once('error', () => done(false));
    });
    if (isThere) return socket;
    await pause(10);
  }
  child.kill('SIGKILL');
  throw new Error(`the real server does not come up: ${said()}`);
}

function request(args: readonly string[]): string {
  let text = `*${args.length}\r\n`;
  for (const arg of args) text += `$${arg.length}\r\n${arg}\r\n`;
  return text;
}

function repliesIn(text: string, count: number): Reply[] {
  let at = 0;
  const next = (): Reply => {
    const end = text.indexOf('\r\n', at);
    const line = text.slice(at + 1, end);
    const kind = text[at];
    at = end + 2;
    switch (kind) {
      case '+':
        return new Status(line);
      case '-':
        return new Failure(line);
      case ':':
        return Number(line);
      case '$': {
        if (line === '-1') return null;
        const from = at;
        at += Number(line) + 2;
        return text.slice(from, at - 2);
      }
      case '*':
        return line === '-1' ? NO_LIST : Array.from({ length: Number(line) }, next);
      default:
        throw new Error(`the real server answers what is not RESP2: ${kind}${line}`);
    }
  };
  return Array.from({ length: count }, next);
}
