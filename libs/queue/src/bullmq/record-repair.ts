// Jobs whose hash cannot be read. BullMQ parses some fields of a hash whenever it meets the job; one that does not
// parse makes the claim throw after the job was taken, so that the job would come back with every lease for ever, and
// no listing that holds it can be shown. Such fields get a stand-in that can be parsed; what they held is kept in the
// hash beside them. Says what was damaged; what becomes of the job is for others to decide.
//
// Why: docs/decisions/queue.md#a-record-that-bullmq-cannot-read-is-repaired-then-failed

import { keySpace } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { FIND_CLAIM, REPAIR_RECORD } from './lua/scripts.generated.ts';

export interface DamagedField {
  readonly field: string;
  /** As it was found; undefined when it was not there. */
  readonly was: Buffer | undefined;
  /** '': the field goes. */
  readonly standIn: string;
  /** What is wrong with it, to follow the field's name; undefined for a counter, whose loss costs the job nothing. */
  readonly problem: string | undefined;
}

/** As the server has them; a record need not be text. */
export type JobFields = Readonly<Partial<Record<(typeof READ_FIELDS)[number], Buffer | null>>>;

/**
 * Every field that the pinned BullMQ parses, counts up or cannot do without; see Job.fromJSON, its Redis backend and
 * scripts.
 */
export const READ_FIELDS = [
  'name',
  'data',
  'opts',
  'progress',
  'parent',
  'parentKey',
  'timestamp',
  'atm',
  'ats',
  'stc',
] as const;
const STAND_INS = { data: () => '{}', opts: () => '{}', progress: () => '0', parent: parentByKey } as const;
const PARSED_FIELDS = ['data', 'opts', 'progress', 'parent'] as const;
const COUNTERS = ['atm', 'ats', 'stc'] as const;
/** Of what a field held, so much is kept. */
const MOST_KEPT = 64 * 1024;
/** What the field that is kept is called. */
export const KEPT = 'damaged:';

/** Pure. `fields`: of the job's hash. Nothing for a job that can be read. */
export function damageIn(fields: JobFields): DamagedField[] {
  const parsed = PARSED_FIELDS.flatMap((field) => {
    const was = fields[field] ?? undefined;
    const problem = was === undefined || was.length === 0 ? undefined : problemOf(field, was);
    return problem === undefined ? [] : [{ field, was, standIn: STAND_INS[field](fields), problem }];
  });
  const counted = COUNTERS.flatMap((field) => {
    const was = fields[field] ?? undefined;
    return was === undefined || /^\d{1,15}$/.test(was.toString())
      ? []
      : [{ field, was, standIn: '0', problem: undefined }];
  });
  return [...(isGone(fields) ? orphan(fields) : []), ...parsed, ...counted];
}

/** The hash was deleted while its id was somewhere in the queue; BullMQ makes a new one of what it adds itself. */
export function isGone({ name, data }: JobFields): boolean {
  return (name ?? null) === null && (data ?? null) === null;
}

/** What a job fails with, for people; undefined when it need not fail. */
export function damageSentence(damage: readonly DamagedField[]): string | undefined {
  if (damage.some(({ field }) => field === 'name'))
    return 'its record is gone; only its id was left in the queue. Add the job again';
  const fatal = damage.filter(({ problem }) => problem !== undefined);
  if (fatal.length === 0) return undefined;
  const told = fatal.map(({ field, problem }) => `"${field}" ${problem}`).join(', ');
  return (
    `its record cannot be read: ${told}. What was found is kept in the job's field${fatal.length > 1 ? 's' : ''} ` +
    `${fatal.map(({ field }) => `"${KEPT}${field}"`).join(', ')}. Add the job again`
  );
}

function missing(field: string, standIn: string): DamagedField {
  return { field, was: undefined, standIn, problem: 'is missing' };
}

/** Only the id is left of it: what its record must have to be read. */
function orphan({ opts, timestamp }: JobFields): DamagedField[] {
  return [
    missing('name', 'gone'),
    missing('data', '{}'),
    ...(opts ? [] : [missing('opts', '{}')]),
    ...(timestamp ? [] : [missing('timestamp', String(Date.now()))]),
  ];
}

/**
 * The same as the parent's key says, or the parent would never hear of this job's end. Nothing where there is no such
 * key.
 */
function parentByKey({ parentKey }: JobFields): string {
  const match = /^(.+):([^:]+)$/.exec(parentKey?.toString() ?? '');
  return match === null ? '' : JSON.stringify({ id: match[2], queueKey: match[1] });
}

function problemOf(field: string, bytes: Buffer): string | undefined {
  try {
    const value: unknown = JSON.parse(bytes.toString());
    const isObject = typeof value === 'object' && value !== null;
    return isObject || field === 'data' || field === 'progress'
      ? undefined
      : `is ${bytes.toString().slice(0, 20)}, not an object`;
  } catch (error) {
    return `is not JSON (${error instanceof Error ? error.message.slice(0, 120) : ''})`;
  }
}

export interface JobPlace {
  readonly prefix: string;
  readonly queue: string;
  readonly jobId: string;
}

/**
 * Makes a job's hash readable; what was lost decides whether the job fails when it is claimed. Resolves to what was
 * damaged: nothing when it could be read all along. May be repeated.
 */
export async function repairJob(connection: Redis, { prefix, queue, jobId }: JobPlace): Promise<DamagedField[]> {
  const key = keySpace(prefix).job(queue, jobId);
  const damage = damageIn(await readFields(connection, key));
  await repairRecord(connection, key, damage);
  return damage;
}

export async function readFields(connection: Redis, key: string): Promise<JobFields> {
  const values = await connection.hmgetBuffer(key, ...READ_FIELDS);
  return Object.fromEntries(READ_FIELDS.map((field, index) => [field, values[index]]));
}

export async function repairRecord(connection: Redis, key: string, damage: readonly DamagedField[]): Promise<void> {
  if (damage.length === 0) return;
  await runScript(connection, REPAIR_RECORD, [
    [
      key,
      MOST_KEPT,
      damageSentence(damage) ?? '',
      KEPT,
      ...damage.flatMap(({ field, was, standIn }) => [field, was ?? '', standIn, was === undefined ? 0 : 1]),
    ],
  ]);
}

/** Which job a token has claimed, when the claim itself could not say. */
export async function claimedBy(
  connection: Redis,
  { prefix, queue }: Omit<JobPlace, 'jobId'>,
  token: string,
): Promise<string | undefined> {
  const keys = keySpace(prefix);
  const [jobId] = await runScript(connection, FIND_CLAIM, [[keys.job(queue, 'active'), keys.job(queue, ''), token]]);
  return Buffer.isBuffer(jobId) ? jobId.toString() : undefined;
}
