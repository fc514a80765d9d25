// What an interrupted run needs in order to go on: which request it was and how far its file got. Kept as a small JSON
// file beside the partial one, replaced as a whole, written after the rows it counts have reached the disk.

import { readFile, rename, rm, writeFile } from 'node:fs/promises';
import { isObjectAddress } from '../input/object-address.ts';
import type { InputIdentity } from '@shoal/worker/files/record';

/** Everything that decides what the rows are. */
export interface RunRequest {
  readonly inputs: readonly InputIdentity[];
  /** name@revision */
  readonly model: string;
  /** By flag, as text. */
  readonly options: Readonly<Record<string, string>>;
}

export interface RunState {
  readonly v: 1;
  /** Names the jobs of the run, so that asking again finds what was computed already. */
  readonly runId: string;
  readonly request: RunRequest;
  readonly rows: number;
  /** Good records of the input that these rows cover; more than rows where some failed and were skipped. */
  readonly position: number;
  /** Which of several output files is being written, from 0; the ones before it are whole and have their names. */
  readonly shard: number;
  /** Size of the partial file that holds these rows, or those of the shard. */
  readonly bytes: number;
  /** Size of the list of ids beside it (beside.ts); absent: no row has one. */
  readonly idBytes?: number;
  /** What goes on with it, as it was typed. */
  readonly command?: string;
}

/** Counted up when the same file becomes other rows: a run of an older version is not gone on with then. */
export const READING_RULES = 2;
/** What they are called among the options of a request. */
export const READING_RULES_NAME = 'rules by which this version reads files';

/** Among the options of a request whose vectors a simulated device gives, for a trial (simServes). */
export const TRIAL_NAME = 'trial';

/** The same request, whose vectors are simulated ones or those of the model. */
export function withOrigin(request: RunRequest, isTrial: boolean): RunRequest {
  const { [TRIAL_NAME]: _, ...options } = request.options;
  return { ...request, options: isTrial ? { ...options, [TRIAL_NAME]: 'yes' } : options };
}

/** How often rows that came are made safe; what came after the last time is computed again by a resumed run. */
export const CHECKPOINT_MS = 1_000;

/** The state at `path`, or undefined when there is none that can be used. */
export async function readRunState(path: string): Promise<RunState | undefined> {
  const content = await readFile(path, 'utf8').catch(() => undefined);
  if (content === undefined) return undefined;
  try {
    const parsed: unknown = JSON.parse(content);
    return isRunState(parsed) ? parsed : undefined;
  } catch {
    return undefined;
  }
}

/** Replaces the state as a whole; when that fails, the one before stays. */
export async function writeRunState(path: string, state: RunState): Promise<void> {
  try {
    await writeFile(`${path}.new`, `${JSON.stringify(state, null, 1)}\n`, { flush: true });
    await rename(`${path}.new`, path);
  } catch (error) {
    await rm(`${path}.new`, { force: true });
    throw error;
  }
}

/** Why the rows of `before` cannot be continued by `now`, one sentence each. Empty: they can. */
export function differences(before: RunRequest, now: RunRequest): readonly string[] {
  const found = before.model === now.model ? [] : [`the model was ${before.model} and is ${now.model}`];
  for (const flag of new Set([...Object.keys(before.options), ...Object.keys(now.options)])) {
    const [then, today] = [before.options[flag], now.options[flag]];
    if (flag === TRIAL_NAME && then !== today) {
      found.push(originDifference(then !== undefined));
      continue;
    }
    // rows that came without a failure are the same rows, whatever a failure would have done
    const isMilder = flag === '--on-error' && then === 'fail';
    if (then !== today && !isMilder) found.push(`${flag} was ${then ?? 'not given'} and is ${today ?? 'not given'}`);
  }
  if (before.inputs.length !== now.inputs.length)
    found.push(`there were ${before.inputs.length} input files and are ${now.inputs.length}`);
  else for (const [at, input] of now.inputs.entries()) found.push(...inputDifferences(before.inputs[at]!, input));
  return found;
}

function originDifference(wasTrial: boolean): string {
  return wasTrial
    ? 'its vectors are simulated ones, of a trial (simServes), and there is no trial now'
    : 'its vectors are those of the model, and there is a trial now (simServes), whose vectors are simulated';
}

function inputDifferences(before: InputIdentity, now: InputIdentity): readonly string[] {
  if (before.path !== now.path) return [`the input was ${before.path} and is ${now.path}`];
  if (before.bytes !== now.bytes) return [`${now.path} had ${before.bytes} bytes and has ${now.bytes}`];
  if (before.head !== now.head)
    return [isObjectAddress(now.path) ? `${now.path} was replaced` : `the beginning of ${now.path} has changed`];
  if (before.modifiedMs !== now.modifiedMs)
    return [`${now.path} was modified ${new Date(now.modifiedMs).toISOString()}, after the first run began to read it`];
  return [];
}

function isRunState(value: unknown): value is RunState {
  if (!isRecord(value) || value['v'] !== 1 || typeof value['runId'] !== 'string' || !isRecord(value['request']))
    return false;
  const { inputs, model, options } = value['request'];
  return (
    ['rows', 'position', 'shard', 'bytes'].every(
      (key) => Number.isSafeInteger(value[key]) && Number(value[key]) >= 0,
    ) &&
    typeof model === 'string' &&
    isRecord(options) &&
    Array.isArray(inputs) &&
    inputs.every(isIdentity)
  );
}

function isIdentity(value: unknown): value is InputIdentity {
  return (
    isRecord(value) &&
    typeof value['path'] === 'string' &&
    typeof value['bytes'] === 'number' &&
    typeof value['modifiedMs'] === 'number' &&
    typeof value['head'] === 'string'
  );
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
