// What a queue keeps beside its jobs, and of which type each key is. A key of another type stops everybody: a job whose
// id is the name of such a key makes one, and so may a slip by hand. They are named here, and moved aside with all that
// they hold. What becomes of a job that was set aside is repair's business (set-aside.ts).
//
// Why: docs/decisions/queue.md#ids-that-are-names-of-the-queues-own-keys-are-set-aside

import { randomUUID } from 'node:crypto';
import { ShoalError, keySpace } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { MOVE_WRONG_KEY } from './lua/scripts.generated.ts';

export interface QueuePlace {
  readonly prefix: string;
  /** A lane, or any other queue of BullMQ. */
  readonly queue: string;
}

export interface WrongKey {
  readonly key: string;
  readonly expected: string;
  readonly found: string;
}

/** "none": nothing has this name, but a job of that id could. What a queue of BullMQ has by a name of its own. */
export const TYPES_OF_QUEUE_KEYS = {
  wait: 'list',
  paused: 'list',
  active: 'list',
  prioritized: 'zset',
  delayed: 'zset',
  completed: 'zset',
  failed: 'zset',
  'waiting-children': 'zset',
  stalled: 'set',
  'stalled-check': 'string',
  marker: 'zset',
  meta: 'hash',
  events: 'stream',
  limiter: 'string',
  id: 'string',
  pc: 'string',
  repeat: 'zset',
  de: 'none',
  metrics: 'none',
  priority: 'none',
  relay: 'none',
} as const;

function ownKeys({ prefix, queue }: QueuePlace): readonly (readonly [key: string, type: string])[] {
  const keys = keySpace(prefix);
  return [
    ...Object.entries(TYPES_OF_QUEUE_KEYS).map(([name, type]) => [keys.job(queue, name), type] as const),
    [keys.order(queue), 'zset'],
    [keys.workers(queue), 'zset'],
    [keys.facts(queue), 'hash'],
    [keys.drained(queue), 'set'],
    [keys.cancelled(queue), 'string'],
    [keys.cancelledJobs(queue), 'zset'],
    [keys.admitted(queue), 'hash'],
    [keys.drain(queue), 'hash'],
    [keys.door(queue), 'zset'],
    [keys.janitor(queue), 'string'],
    [keys.jobless(queue), 'zset'],
    [keys.parked(queue), 'zset'],
    [keys.starts(queue), 'zset'],
    [keys.setAside(queue), 'zset'],
    [keys.clock(queue), 'string'],
    [keys.load(), 'hash'],
  ];
}

/** One round trip; some 30 keys are looked at. */
export async function findWrongKeys(connection: Redis, place: QueuePlace): Promise<WrongKey[]> {
  const all = ownKeys(place);
  const found = await Promise.all(all.map(([key]) => connection.type(key)));
  return all.flatMap(([key, expected], at) =>
    found[at] === 'none' || found[at] === expected ? [] : [{ key, expected, found: found[at] ?? '' }],
  );
}

/** Moves each aside, whatever it holds. Says which; what has been put right by others meanwhile is not among them. */
export async function moveWrongKeys(connection: Redis, place: QueuePlace): Promise<WrongKey[]> {
  const moved: WrongKey[] = [];
  const noted = keySpace(place.prefix).setAside(place.queue);
  for (const { key, expected } of await findWrongKeys(connection, place)) {
    const base = keySpace(place.prefix).job(place.queue, '');
    const id = key.startsWith(base) ? key.slice(base.length) : '';
    const name = `${id === '' ? key : id}:${Date.now()}-${randomUUID().slice(0, 8)}`;
    // the list of what was set aside may itself be what is wrong
    const index = key === noted ? `${noted}:index` : noted;
    const [found] = await runScript(connection, MOVE_WRONG_KEY, [
      [key, `${noted}:${name}`, index, expected, name, place.prefix, place.queue, id],
    ]);
    if (found !== null) moved.push({ key, expected, found: String(found) });
  }
  return moved;
}

/** What a server says of a command for another type of key, also from within a script or a transaction. */
export function isWrongType(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  // one level: ioredis also puts an error among its own previous ones
  const previous: unknown = Reflect.get(error, 'previousErrors');
  const all: readonly unknown[] = Array.isArray(previous) ? [error, ...(previous as unknown[])] : [error];
  return all.some((one) => one instanceof Error && one.message.includes('WRONGTYPE'));
}

export function queueDamaged(wrong: readonly WrongKey[], cause?: unknown): ShoalError<'QUEUE_DAMAGED'> {
  const told = wrong.map(({ key, expected, found }) =>
    expected === 'none'
      ? `${key} holds a job (${found}), but its id is a name that the queue keeps for itself`
      : `${key} should be a ${expected} and is a ${found}`,
  );
  return new ShoalError(
    'QUEUE_DAMAGED',
    `${told.join('; ')}. A job whose id is the name of a key of the queue does that. "shoal queue repair" moves it ` +
      'aside, loses nothing, and lets the queue go on',
    { keys: wrong },
    cause,
  );
}

/**
 * Does `work`; where it meets a key of another type, or such a key is there at all, throws QUEUE_DAMAGED with the names
 * of all such keys of these queues.
 */
export async function withSoundKeys<Value>(
  connection: Redis,
  places: readonly QueuePlace[],
  work: () => Promise<Value>,
): Promise<Value> {
  const looking = Promise.all(places.map((place) => findWrongKeys(connection, place)));
  const [wrong, done] = await Promise.allSettled([looking, work()]);
  if (wrong.status === 'fulfilled' && wrong.value.some((keys) => keys.length > 0))
    throw queueDamaged(wrong.value.flat(), done.status === 'rejected' ? done.reason : undefined);
  if (done.status === 'rejected') throw done.reason;
  return done.value;
}
