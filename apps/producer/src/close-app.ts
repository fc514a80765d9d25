// How the HTTP interface ends: what is open is answered, then every connection is closed. Node alone would wait for callers
// that keep theirs alive (72 s), and for those that have connected and said nothing yet.

import { EventEmitter, once } from 'node:events';
import type { FastifyInstance } from 'fastify';

/** To be called once, before the first request. The returned function closes; it resolves when nothing listens any more. */
export function closer(app: FastifyInstance): () => Promise<void> {
  const open = new Set<object>();
  const answered = new EventEmitter<{ all: [] }>();
  let isStopping = false;
  app.addHook('onRequest', async (_request, reply) => {
    open.add(reply);
    reply.raw.once('close', () => {
      open.delete(reply); // answered, or its caller left
      if (open.size === 0) answered.emit('all');
    });
  });
  app.addHook('onSend', async (_request, reply) => {
    if (isStopping) void reply.header('connection', 'close');
  });
  return async () => {
    isStopping = true;
    const closed = app.close();
    if (open.size > 0) await once(answered, 'all');
    app.server.closeAllConnections();
    await closed;
  };
}
