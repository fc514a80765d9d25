// How the HTTP interface ends: what is open is answered, what comes later on a connection that was open is refused,
// then every connection is closed. Node alone would wait for callers that keep theirs alive (72 s), and for those that
// have connected and said nothing yet. Fastify alone would refuse without a word to whoever counts answers; `createApp`
// tells it not to.

import { EventEmitter, once } from 'node:events';
import type { Socket } from 'node:net';
import type { FastifyInstance } from 'fastify';
import { RETRY_LOST_SERVER_SECONDS, unavailable } from './problem.ts';

/** The last scrape has what was refused. It takes no longer than its slowest source may (3 s). */
const ANSWERED_TO_THE_END = '/metrics';

/**
 * To be called once, before the first request. The returned function closes; it resolves when nothing listens any more.
 */
export function closer(app: FastifyInstance): () => Promise<void> {
  const open = new OpenAnswers();
  let isStopping = false;
  app.server.on('connection', (socket: Socket) => socket.once('close', () => open.dropAllOf(socket)));
  app.addHook('onRequest', async ({ raw, routeOptions }, reply) => {
    open.add(reply.raw, raw.socket);
    if (isStopping && routeOptions.url !== ANSWERED_TO_THE_END)
      throw unavailable(
        'stopping',
        'this server is stopping and takes nothing new; ask another one, or this one when it is back',
        RETRY_LOST_SERVER_SECONDS,
      );
  });
  app.addHook('onSend', async (_request, reply) => {
    if (isStopping) void reply.header('connection', 'close');
  });
  return async () => {
    isStopping = true;
    const closed = app.close();
    await open.allAnswered();
    app.server.closeAllConnections();
    await closed;
  };
}

/** Answers that were not written yet, each with the connection that its caller waits at. */
class OpenAnswers {
  private readonly sockets = new Map<EventEmitter, Socket>();
  private readonly events = new EventEmitter<{ none: [] }>();

  add(answer: EventEmitter, socket: Socket): void {
    this.sockets.set(answer, socket);
    answer.once('close', () => this.drop(answer)); // answered, or its caller left
  }

  /**
   * An answer whose turn on its connection never came does not close: one before it said `connection: close`, or its
   * caller left.
   */
  dropAllOf(socket: Socket): void {
    for (const [answer, itsSocket] of this.sockets) if (itsSocket === socket) this.drop(answer);
  }

  async allAnswered(): Promise<void> {
    if (this.sockets.size > 0) await once(this.events, 'none');
  }

  private drop(answer: EventEmitter): void {
    if (this.sockets.delete(answer) && this.sockets.size === 0) this.events.emit('none');
  }
}
