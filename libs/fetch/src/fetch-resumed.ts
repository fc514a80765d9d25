// A file of known size and digest over HTTP(S), which goes on where it broke off: after a cut connection, after a
// refusal that passes (429, 5xx), and after this process was killed. What has arrived lies in `<destination>.part`; the
// file has its name only when its bytes are those that were promised. Waits are bounded: what brings no byte forward is
// tried a few times and then given up, and the part stays for the next try.

import { open, rename, rm, stat, writeFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import type { ShoalError } from '@shoal/contract';
import { ask, named, type Answer, type AskOptions } from './ask.ts';
import { hashFile, openHash, type FileDigest } from './digest.ts';
import { onDisk } from './disk-failure.ts';
import { fetchFailure, fetchReason } from './fetch-failure.ts';
import { writeAt } from './file.ts';

export interface Promised {
  readonly bytes: number;
  readonly digest: FileDigest;
}

export interface RetryTerms {
  /** Tries that bring no byte forward before it is given up. */
  readonly attempts: number;
  /** Before the second try; doubled from try to try. */
  readonly firstDelayMs: number;
  /** Longest wait that a server may ask for with Retry-After. */
  readonly longestWaitMs: number;
}

export const RETRIES: RetryTerms = { attempts: 5, firstDelayMs: 1_000, longestWaitMs: 60_000 };

export interface ResumedOptions extends AskOptions {
  readonly retries?: RetryTerms | undefined;
  /** Bytes of this file that are there, those of an earlier run included. */
  readonly onProgress?: (bytes: number) => void;
  /** Told before each wait. */
  readonly onWait?: (why: string, waitMs: number) => void;
  /** An error for an answer that is no file and will not be one later; undefined: to be tried again. */
  readonly refusal: (answer: Answer) => Promise<ShoalError | undefined> | ShoalError | undefined;
  /** An error where the answer is about other bytes than the promised ones; called before they are read. */
  readonly contradiction?: (answer: Answer) => ShoalError | undefined;
}

/** SETUP_FAILED (fetchReason says why), FILE_UNWRITABLE, or what `refusal` and `contradiction` give. */
export async function fetchResumed(
  url: string,
  destination: string,
  promised: Promised,
  options: ResumedOptions,
): Promise<void> {
  const part = `${destination}.part`;
  if (await isWhole(destination, promised)) return options.onProgress?.(promised.bytes);
  const isBegun = (await sizeOf(part)) > 0;
  await onDisk(part, () => receive(url, part, promised, options));
  let found = await digestOf(part, promised);
  if (found !== promised.digest.hex && isBegun) {
    await rm(part); // what an earlier run left there may be what is wrong
    await onDisk(part, () => receive(url, part, promised, options));
    found = await digestOf(part, promised);
  }
  if (found !== promised.digest.hex) {
    await rm(part, { force: true });
    throw wrongBytes(url, promised, found);
  }
  await onDisk(destination, () => rename(part, destination));
}

/**
 * An answer with status 200, waited for as `fetchResumed` waits where the other side has too much to do (429, 5xx). A
 * host that cannot be reached is not tried again: without a network that is known at once.
 */
export async function askPatiently(url: string, options: Omit<ResumedOptions, 'contradiction'>): Promise<Answer> {
  const { retries = RETRIES } = options;
  for (let turn = 1; ; turn++) {
    const answer = await ask(url, options);
    if (answer.status === 200) return answer;
    const problem = await problemOf(url, answer, options);
    if (turn >= retries.attempts) throw problem.error;
    await waitFor(problem, turn, options);
  }
}

async function isWhole(path: string, promised: Promised): Promise<boolean> {
  const found = await stat(path).catch(() => undefined);
  return found?.size === promised.bytes && (await digestOf(path, promised)) === promised.digest.hex;
}

async function digestOf(path: string, { bytes, digest }: Promised): Promise<string> {
  const hash = openHash(digest.algorithm, bytes);
  await hashFile(path, bytes, hash);
  return hash.digest('hex');
}

/** Fills the part up to its promised size. */
async function receive(url: string, part: string, promised: Promised, options: ResumedOptions): Promise<void> {
  const { retries = RETRIES } = options;
  let idle = 0;
  for (;;) {
    const before = await sizeOf(part);
    options.onProgress?.(Math.min(before, promised.bytes));
    if (before === promised.bytes) return before === 0 ? writeFile(part, '') : undefined;
    if (before > promised.bytes) await rm(part);
    const problem = await goOn(url, part, { before: before > promised.bytes ? 0 : before, promised, options });
    if (problem === undefined) continue;
    const isForward = (await sizeOf(part)) > before;
    idle = isForward ? 0 : idle + 1;
    if (idle >= retries.attempts) throw problem.error;
    await waitFor(problem, Math.max(1, idle), options);
  }
}

interface Problem {
  readonly error: Error;
  /** How long the server wants to be left alone. */
  readonly retryAfterMs?: number | undefined;
}

async function waitFor({ error, retryAfterMs }: Problem, turn: number, options: ResumedOptions): Promise<void> {
  const { retries = RETRIES, signal, onWait } = options;
  if (retryAfterMs !== undefined && retryAfterMs > retries.longestWaitMs) throw error;
  const waitMs = retryAfterMs ?? retries.firstDelayMs * 2 ** (turn - 1);
  onWait?.(error.message, waitMs);
  await delay(waitMs, undefined, { signal }).catch(() => signal?.throwIfAborted()); // with its own reason
}

interface Stretch {
  readonly before: number;
  readonly promised: Promised;
  readonly options: ResumedOptions;
}

/** One answer, appended to the part; what may pass is returned, what will not is thrown. */
async function goOn(url: string, part: string, stretch: Stretch): Promise<Problem | undefined> {
  const { before, promised, options } = stretch;
  // bytes are counted and hashed as they are stored there
  const range = before > 0 ? { range: `bytes=${before}-` } : {};
  const headers = { ...options.headers, 'accept-encoding': 'identity', ...range };
  let answer: Answer | undefined;
  try {
    answer = await ask(url, { ...options, headers });
    if (answer.status !== 200 && answer.status !== 206) return await problemOf(url, answer, options);
    const contradiction = options.contradiction?.(answer);
    if (contradiction !== undefined) throw contradiction;
    const start = answer.status === 206 ? startOf(answer) : 0;
    if (start > before)
      throw fetchFailure('failed', `${named(url)} was asked from ${before} and answers from ${start}`);
    await write(url, part, answer, { start, promised, options });
    return undefined;
  } catch (error) {
    answer?.drop();
    if (fetchReason(error) !== 'unreachable') throw error;
    return { error: error as Error };
  }
}

async function problemOf(url: string, answer: Answer, options: ResumedOptions): Promise<Problem> {
  const refused = await options.refusal(answer);
  answer.drop();
  if (refused !== undefined) throw refused;
  return {
    error: fetchFailure(
      'unreachable',
      `${named(url)} was asked for, and ${new URL(answer.lastUrl).host} answered with HTTP ${answer.status}`,
    ),
    retryAfterMs: waitAskedFor(answer),
  };
}

interface Place {
  readonly start: number;
  readonly promised: Promised;
  readonly options: ResumedOptions;
}

async function write(url: string, part: string, answer: Answer, { start, promised, options }: Place): Promise<void> {
  const file = await open(part, start === 0 ? 'w' : 'r+');
  let bytes = start;
  try {
    await file.truncate(start);
    for await (const chunk of answer.chunks()) {
      if (bytes + chunk.byteLength > promised.bytes)
        throw fetchFailure('mismatch', `${named(url)} has more than the ${promised.bytes} bytes that its list says`);
      await writeAt(file, chunk, bytes);
      bytes += chunk.byteLength;
      options.onProgress?.(bytes);
    }
    await file.sync();
  } finally {
    await file.close();
  }
  if (bytes < promised.bytes)
    throw fetchFailure('unreachable', `${named(url)} broke off after ${bytes} of ${promised.bytes} bytes`);
}

/** The first byte of a part of a file: "bytes 100-199/200". */
function startOf(answer: Answer): number {
  const start = /^bytes (\d+)-/.exec(answer.lastHeaders.get('content-range') ?? '')?.[1];
  return start === undefined ? Infinity : Number(start);
}

/** Seconds or a date; undefined where it says neither. */
function waitAskedFor(answer: Pick<Answer, 'lastHeaders'>): number | undefined {
  const value = answer.lastHeaders.get('retry-after');
  if (value === null) return undefined;
  const ms = /^\d+$/.test(value.trim()) ? Number(value) * 1_000 : Date.parse(value) - Date.now();
  return Number.isNaN(ms) ? undefined : Math.max(0, ms);
}

async function sizeOf(path: string): Promise<number> {
  return (await stat(path).catch(() => undefined))?.size ?? 0;
}

function wrongBytes(url: string, { digest }: Promised, found: string): ShoalError {
  return fetchFailure(
    'mismatch',
    `${named(url)} is not the file that its list names: ${digest.algorithm} should be ${digest.hex} and is ${found}. ` +
      'Nothing was kept of it. Try again; if it happens again, something between here and the source changes files.',
  );
}
