// Which pages of other origins a browser lets ask this server: those of the setting httpCors, none without it. Keys
// travel in headers and never in cookies, so no credentials are allowed.

import cors from '@fastify/cors';
import type { FastifyInstance } from 'fastify';

/** What a page may read beside what browsers show anyhow. */
const EXPOSED = [
  'retry-after',
  'x-request-id',
  'x-shoal-simulated',
  'x-shoal-truncated',
  ...['requests', 'texts', 'tokens'].flatMap((kind) =>
    ['limit', 'remaining', 'reset'].map((what) => `x-ratelimit-${what}-${kind}`),
  ),
];
/** How long a browser need not ask again, in seconds. */
const MAX_AGE = 600;

/** `origins`: separated by commas, such as https://app.example.com, or * for every one. */
export async function addCors(app: FastifyInstance, origins: string | undefined): Promise<void> {
  if (origins === undefined) return;
  const listed = origins.split(',').map((origin) => origin.trim());
  await app.register(cors, {
    origin: listed.includes('*') ? '*' : listed,
    methods: ['GET', 'HEAD', 'POST', 'DELETE'],
    exposedHeaders: EXPOSED,
    maxAge: MAX_AGE,
    strictPreflight: false,
  });
}
