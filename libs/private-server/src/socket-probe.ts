// What is behind a unix socket, asked in raw RESP, so that the supervisor loads no client library and stays small.
// Removes a socket file only when nobody listens there; never a file of another kind.

import { lstatSync, rmSync } from 'node:fs';
import { connect } from 'node:net';

/** `silent`: something listens, but what came back is no answer of a queue server. */
export type Probed = 'ready' | 'loading' | 'silent' | 'nobody';

/** Sends one inline command and returns the reply's first line; undefined when nobody listens. */
export function ask(path: string, command: string, timeoutMs: number): Promise<string | undefined> {
  return new Promise((resolve) => {
    const socket = connect(path);
    let reply = '';
    let isConnected = false;
    const finish = (): void => {
      socket.destroy();
      resolve(isConnected ? reply.split('\r\n')[0] : undefined);
    };
    socket.setTimeout(timeoutMs, finish).setEncoding('utf8');
    socket.on('connect', () => {
      isConnected = true;
      socket.write(`${command}\r\n`);
    });
    socket.on('data', (text: string) => {
      reply += text;
      if (reply.includes('\r\n')) finish();
    });
    socket.on('error', finish).on('close', finish);
  });
}

export async function probe(path: string): Promise<Probed> {
  const reply = await ask(path, 'PING', 1_000);
  if (reply === undefined) return 'nobody';
  if (reply === '+PONG') return 'ready';
  return reply.startsWith('-LOADING') ? 'loading' : 'silent';
}

/** Makes room at `path` for a socket of ours; returns why that cannot be, or undefined. */
export async function clearStaleSocket(path: string): Promise<string | undefined> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return undefined;
  if (!found.isSocket()) return `${path} is there and is not a socket: move it away`;
  if ((await probe(path)) !== 'nobody')
    return `${path} is in use by another program: end it (fuser ${path} names it) and try again`;
  rmSync(path, { force: true });
  return undefined;
}
