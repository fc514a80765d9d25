// What several routes do alike.

import { setTimeout as after } from 'node:timers/promises';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Served } from './catalogue.ts';

/** A list of models does not wait for a queue server that hangs. */
export const SERVICE_MS = 1_000;

/** Vectors do not show that they are those of a trial. */
export async function tellTrial(reply: FastifyReply, { service }: Pick<Served, 'service'>): Promise<void> {
  if ((await service?.()) === 'simulation') void reply.header('x-shoal-simulated', '1');
}

/** The same as a field; no part of it where the model is computed. The queue server may be away. */
export async function simulatedNow({ service }: Pick<Served, 'service'>): Promise<{ readonly simulated?: true }> {
  if (service === undefined) return {};
  const found = await Promise.race([service(), after(SERVICE_MS, undefined, { ref: false })]);
  return found === 'simulation' ? { simulated: true } : {};
}

/** Nobody needs what was parsed once the route has read it, and a request may wait long. */
export function takenBody(request: FastifyRequest): unknown {
  const { body } = request;
  request.body = undefined;
  return body;
}
