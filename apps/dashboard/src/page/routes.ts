// The pages to look at: fleet, quarantine, what they are drawn with, and the stream that keeps the fleet page fresh.

import type { FastifyInstance, FastifyReply } from 'fastify';
import { ShoalError } from '@shoal/contract';
import { Quarantine, mainLanes } from '@shoal/queue';
import { refuse, visitorOf } from '../access/gate.ts';
import type { ActionTools } from '../actions/plans.ts';
import type { FleetReading } from '../fleet/fleet-reading.ts';
import type { LivePages } from '../fleet/live.ts';
import type { QueueNames } from '../fleet/queue-names.ts';
import type { FirstText, FirstTexts } from '../search/first-text.ts';
import type { Search } from '../search/search.ts';
import { laneOf, searchPage } from '../search/search-page.ts';
import { fleetPage } from './fleet-page.ts';
import { quarantinePage, type QuarantineOf } from './quarantine-page.ts';
import { SCRIPT } from './script.ts';
import { STYLE } from './style.ts';

export interface PagesParts {
  readonly readFleet: () => Promise<FleetReading>;
  readonly names: QueueNames;
  readonly tools: ActionTools;
  readonly live: LivePages;
  /** Jobs by an id or the beginning of one. */
  readonly look: (asked: string) => Promise<Search>;
  /** Undefined: nobody may see texts. */
  readonly texts: FirstTexts | undefined;
}

const MOST_QUARANTINED = 200;

export function addPages(app: FastifyInstance, { readFleet, names, tools, live, look, texts }: PagesParts): void {
  app.get('/', async (request, reply) => shown(reply, async () => fleetPage(await readFleet(), visitorOf(request))));
  app.get('/events', async (request, reply) => live.add(request, reply));
  app.get<{ Querystring: { queue?: string } }>('/quarantine', async (request, reply) =>
    shown(reply, async () => {
      const { queue } = request.query;
      const asked = typeof queue === 'string' ? [await names.known(queue)] : mainLanes(await names.now());
      return quarantinePage(await Promise.all(asked.map((name) => quarantineOf(name, tools))), visitorOf(request));
    }),
  );
  app.get<{ Querystring: { q?: string } }>('/search', async (request, reply) =>
    shown(reply, async () => {
      const search = await look(typeof request.query.q === 'string' ? request.query.q : '');
      return searchPage(search, visitorOf(request), await firstTextsOf(search, texts));
    }),
  );
  app.get('/page.css', async (_request, reply) => reply.type('text/css; charset=utf-8').send(STYLE));
  app.get('/page.js', async (_request, reply) => reply.type('text/javascript; charset=utf-8').send(SCRIPT));
  // addresses of 0.1.0, which had Bull Board here
  app.get('/queue/*', async (request, reply) => reply.redirect(`/queues${request.url}`, 301));
}

/** Sends a page, or one that says why there is none. */
async function shown(reply: FastifyReply, make: () => Promise<string>): Promise<void> {
  try {
    await reply.type('text/html; charset=utf-8').send(await make());
  } catch (error) {
    if (!(error instanceof ShoalError)) throw error;
    await refuse(reply, error.code === 'USAGE' ? 404 : 503, 'That cannot be shown', error.message);
  }
}

async function quarantineOf(queue: string, { redisUrl, prefix, log }: ActionTools): Promise<QuarantineOf> {
  const quarantine = new Quarantine({ redisUrl, prefix, queue, log });
  try {
    return { queue, jobs: await quarantine.list(0, MOST_QUARANTINED) };
  } finally {
    await quarantine.close();
  }
}

/** By lane; empty where nobody may see texts. */
async function firstTextsOf(
  { answer }: Search,
  texts: FirstTexts | undefined,
): Promise<ReadonlyMap<string, FirstText>> {
  if (texts === undefined || answer === undefined) return new Map();
  const lanes = answer.found.filter(({ state }) => state !== 'result-only' && state !== 'input-only');
  const read = lanes.map(async (seen) => [laneOf(seen), await texts.of(seen.queue, laneOf(seen), seen.jobId)] as const);
  return new Map(await Promise.all(read));
}
