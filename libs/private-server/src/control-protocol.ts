// What a command and the supervisor say to each other over the control socket: one JSON object a line. The connection
// itself is the attachment: a command that is killed detaches because its end closes.

import type { Socket } from 'node:net';

export type ToCommand =
  /** The supervisor counts this connection. */
  | { readonly kind: 'attached' }
  /** The queue server answers. Sent again after each restart. */
  | { readonly kind: 'ready' }
  /** The queue server died and is being started again. */
  | { readonly kind: 'restarting'; readonly found: string }
  /** The supervisor gave up; it exits after this. */
  | { readonly kind: 'failed'; readonly message: string }
  /** Answer to `bye`: others are attached, the server stays. */
  | { readonly kind: 'left' }
  /** Answer to `bye` of the last one, or to a connection that came too late: the supervisor exits after this. */
  | { readonly kind: 'stopping' };

export interface ToSupervisor {
  readonly kind: 'bye';
}

/** What the supervisor tells the command that started it, over the IPC channel, once. */
export type Launched = { readonly kind: 'listening' } | { readonly kind: 'unfit'; readonly message: string };

export function send(socket: Socket, message: ToCommand | ToSupervisor): void {
  if (socket.writable) socket.write(`${JSON.stringify(message)}\n`);
}

/**
 * Calls `listener` once per line. Lines that are not JSON are dropped: they come from a program that is none of ours.
 */
export function onMessage<Message extends ToCommand | ToSupervisor>(
  socket: Socket,
  listener: (message: Message) => void,
): void {
  let rest = '';
  socket.setEncoding('utf8').on('data', (text: string) => {
    const lines = (rest + text).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      const message = parse<Message>(line);
      if (message !== undefined) listener(message);
    }
  });
}

function parse<Message>(line: string): Message | undefined {
  try {
    return JSON.parse(line) as Message;
  } catch {
    return undefined;
  }
}
