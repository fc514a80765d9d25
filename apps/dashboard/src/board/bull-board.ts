// Bull Board behind the fleet page, at /queues: every queue as BullMQ has it, to look at and nothing else. Texts are begun
// and vectors left out. Queues that come later appear by themselves. Its page asks a font server of another company; that
// link is taken out of it, and the reader's own fonts serve.

import { createBullBoard } from '@bull-board/api';
import { BullMQAdapter } from '@bull-board/api/bullMQAdapter';
import { FastifyAdapter } from '@bull-board/fastify';
import type { FastifyInstance } from 'fastify';
import type { BoardQueue } from '@shoal/queue';
import { shorten } from './shorten.ts';

export const BOARD_PATH = '/queues';

/** Shows these queues from now on. */
export type ShowQueues = (queues: readonly BoardQueue[]) => void;

export function addBoard(app: FastifyInstance): ShowQueues {
  const serverAdapter = new FastifyAdapter();
  serverAdapter.setBasePath(BOARD_PATH);
  const board = createBullBoard({
    queues: [],
    serverAdapter,
    options: { uiConfig: { boardTitle: 'Shoal', hideDocsLink: true, sortQueues: true, showMetrics: false } },
  });
  void app.register(
    async (scope) => {
      scope.addHook('onSend', async (_request, reply, payload) =>
        String(reply.getHeader('content-type') ?? '').startsWith('text/html') ? withoutFonts(payload) : payload,
      );
      await scope.register(serverAdapter.registerPlugin());
    },
    { prefix: BOARD_PATH },
  );
  const shown = new Map<string, BullMQAdapter>();
  return (queues) => {
    for (const queue of queues) if (!shown.has(queue.name)) shown.set(queue.name, adapterOf(queue));
    board.replaceQueues(queues.map(({ name }) => shown.get(name)!));
  };
}

function withoutFonts(payload: unknown): unknown {
  return typeof payload === 'string'
    ? payload.replaceAll(/<link[^>]*fonts\.(?:googleapis|gstatic)\.com[^>]*>/g, '')
    : payload;
}

/** BullMQ has no state for jobs that were cancelled, and Bull Board no list of its own for them. */
const ABOUT_FAILED =
  'Cancelled jobs are listed, and counted, among the failed ones; their name says so. shoal queue counts tells them apart.';
const ABOUT_QUARANTINE =
  'Quarantine: jobs that killed their executor, or seemed to. Nobody claims them and no worker is needed. Look at each, ' +
  'then return or drop it: on the page Quarantine of this dashboard, or with shoal queue quarantine.';

/** Of a job as BullMQ writes it down. */
function nameOf({ name, failedReason }: { readonly name?: string; readonly failedReason?: string }): string {
  return failedReason?.startsWith('CANCELLED:') === true ? `${name ?? ''} (cancelled)` : (name ?? '');
}

function adapterOf(queue: BoardQueue): BullMQAdapter {
  const isQuarantine = queue.name.endsWith('-quarantine');
  const options = { readOnlyMode: true, allowRetries: false };
  const adapter = isQuarantine
    ? new QuarantineAdapter(queue, { ...options, description: ABOUT_QUARANTINE })
    : new BullMQAdapter(queue, { ...options, description: ABOUT_FAILED });
  adapter.setFormatter('name', nameOf);
  for (const field of ['data', 'returnValue', 'progress'] as const)
    adapter.setFormatter(field, (value: unknown) => shorten(value));
  return adapter;
}

/** Whether it has workers is no question: Bull Board would warn that there are none, and somebody would start one. */
class QuarantineAdapter extends BullMQAdapter {
  override getWorkers(): Promise<never> {
    return Promise.reject(new Error('no worker serves a quarantine'));
  }
}
