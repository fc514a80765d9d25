// Which revision of a model the fleet serves, for a client that was not told: a revision that nobody serves would make
// every job fail, and one must not have to look it up to embed a text. Where no worker is alive just now, what the last
// one left behind tells it: a producer may start before its workers do.

import { ShoalError, storedName } from '@shoal/contract';
import { Fleet } from '@shoal/queue';
import { answerWithin } from './cells/cell-line.ts';
import type { ClientOptions } from './embedding.ts';
import { cellsOf, serverOf } from './server-of.ts';

/** How long the other cells are waited for once one has told. */
const OTHERS_MS = 1_000;

/**
 * Of the model `name`, as it was asked for, whose main lane is `queue`. Throws MODEL_UNKNOWN when no worker tells it, or
 * two tell different ones; QUEUE_UNREACHABLE.
 */
export async function fleetRevision(
  options: Pick<ClientOptions, 'redisUrl' | 'connection' | 'cells' | 'prefix' | 'log'>,
  model: { readonly name: string; readonly queue: string },
): Promise<string> {
  if (options.cells === undefined) return revisionAt(options, model);
  const asked = cellsOf(options).map(({ address, prefix = options.prefix }) =>
    revisionAt({ ...options, redisUrl: address, ...(prefix !== undefined && { prefix }) }, model),
  );
  const first = await Promise.any(asked).catch(({ errors }: AggregateError) => Promise.reject(errors[0]));
  const told = await Promise.all(asked.map((one) => answerWithin(OTHERS_MS, one)));
  const revisions = [...new Set(told.flatMap((one) => one ?? []))];
  if (revisions.length <= 1) return first;
  throw new ShoalError(
    'MODEL_UNKNOWN',
    `the model "${model.name}" is given without its revision, and workers of the cells serve ${revisions.length} of them ` +
      `(${revisions.join(', ')}). Pass model: { name, revision }; shoal model list shows the revision`,
    { model: model.name, revisions },
  );
}

async function revisionAt(
  options: Pick<ClientOptions, 'redisUrl' | 'connection' | 'prefix' | 'log'>,
  { name, queue }: { readonly name: string; readonly queue: string },
): Promise<string> {
  const stored = storedName(name);
  const { prefix, log } = options;
  const fleet = await Fleet.connect({ redisUrl: serverOf(options), prefix, queue, log });
  try {
    const { workers } = await fleet.read();
    const alive = workers.flatMap(({ facts }) => facts?.model ?? []);
    const served = new Set(alive.length > 0 ? alive : [(await fleet.lastModel()) ?? '']);
    const revisions = [...served].flatMap((model) =>
      model.startsWith(`${stored}@`) ? [model.slice(stored.length + 1)] : [],
    );
    const [revision, ...others] = revisions;
    if (revision !== undefined && others.length === 0) return revision;
    const found =
      revision === undefined
        ? `no worker serves ${queue}, and none has left its name there`
        : `workers serve ${revisions.length} of them (${revisions.join(', ')})`;
    throw new ShoalError(
      'MODEL_UNKNOWN',
      `the model "${name}"${stored === name ? '' : ` ("${stored}" in the store)`} is given without its revision, and ` +
        `${found}. ${revision === undefined ? 'Start one (shoal worker --model NAME, or shoal up), or pass' : 'Pass'} ` +
        'model: { name, revision }; shoal model list shows the revision',
      { model: name, revisions },
    );
  } finally {
    await fleet.close();
  }
}
