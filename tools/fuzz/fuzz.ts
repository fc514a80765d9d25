// A fuzzer's run: damaged files through our reader and through a second one. A finding is a crash, a hang, memory
// without bound, an error that is no code of ours, or values that the second reader does not find in the same file.

import { Dice } from './dice.ts';
import { digestOf, type FuzzedReader, type Values } from './fuzzed-reader.ts';
import type { Ending, KeptProcess } from './kept-process.ts';
import { mutate } from './mutations.ts';

export interface Finding {
  readonly reader: string;
  readonly seed: number;
  readonly number: number;
  readonly what: string;
  readonly bytes: Buffer;
}

export interface Report {
  readonly reader: string;
  readonly cases: number;
  readonly refused: number;
  /** Read, and a second reader read the same. */
  readonly equal: number;
  /** Read, and the second reader could not tell. */
  readonly undecided: number;
  readonly findings: readonly Finding[];
}

export interface FuzzOptions {
  readonly seed: number;
  readonly cases: number;
  /** The first case's number; default 0. */
  readonly from?: number;
  /** More findings than this end the run. Default 20. */
  readonly mostFindings?: number;
  /** Of each file that is hard to read. Default 50,000. */
  readonly hardCharacters?: number;
  /** Ends the run between two files: whoever waits no more leaves the process to the next reader. */
  readonly signal?: AbortSignal;
}

/** A message names what was found; it may quote a long word of a file, and does not repeat the file. */
const MESSAGE_CHARACTERS = 100_000;

/** Sound files first, then damaged ones. Rejects when a sound file is not read as the second reader reads it. */
export async function fuzz(reader: FuzzedReader, kept: KeptProcess, options: FuzzOptions): Promise<Report> {
  const { seed, cases, from = 0, mostFindings = 20, hardCharacters = 50_000, signal } = options;
  const seeds = await reader.seeds();
  await checkSeeds(reader, kept, seeds);
  if (from === 0) await checkHard(reader, kept, hardCharacters, signal);
  const counts = { equal: 0, undecided: 0, refused: 0 };
  const findings: Finding[] = [];
  let done = 0;
  for (; done < cases && findings.length < mostFindings; done++) {
    signal?.throwIfAborted();
    const number = from + done;
    const bytes = caseOf(reader, seeds, seed, number);
    const { ending, what, isDecided } = await judge(reader, kept, bytes, number);
    if (ending === 'refused') counts.refused++;
    else if (ending === 'read' && what === undefined) counts[isDecided ? 'equal' : 'undecided']++;
    if (what !== undefined) findings.push({ reader: reader.name, seed, number, what, bytes });
  }
  return { reader: reader.name, cases: done, ...counts, findings };
}

/** Case 0 and every eighth cut one of the seeds, at every length in the end; the others damage it somehow. */
export function caseOf(reader: FuzzedReader, seeds: readonly Buffer[], seed: number, number: number): Buffer {
  const dice = new Dice(seed, number, ...Buffer.from(reader.name));
  if (number % 8 === 0) {
    const whole = seeds[(number / 8) % seeds.length]!;
    return whole.subarray(0, Math.floor(number / 8 / seeds.length) % (whole.length + 1));
  }
  const bytes = mutate(seeds, reader.kind, dice);
  return reader.mend !== undefined && dice.isLucky(0.6) ? reader.mend(bytes, dice) : bytes;
}

async function checkSeeds(reader: FuzzedReader, kept: KeptProcess, seeds: readonly Buffer[]): Promise<void> {
  for (const [at, bytes] of seeds.entries())
    for (let variant = 0; variant < (reader.variants ?? 2); variant++) {
      const { ending, what, isDecided } = await judge(reader, kept, bytes, variant);
      if (ending !== 'read' || what !== undefined)
        throw new Error(`sound file ${at} of ${reader.name} (variant ${variant}) is not read: ${what ?? ending}`);
      if (!isDecided)
        throw new Error(`the second reader of ${reader.name} cannot tell what sound file ${at} holds (${variant})`);
    }
}

/** These are not damaged: that they end in time is what is asked. */
async function checkHard(
  reader: FuzzedReader,
  kept: KeptProcess,
  characters: number,
  signal: AbortSignal | undefined,
): Promise<void> {
  for (const [name, bytes] of Object.entries(reader.hard?.(characters) ?? {})) {
    signal?.throwIfAborted();
    const { ending, what } = await judge(reader, kept, bytes, 0);
    if (ending !== 'read' || what !== undefined)
      throw new Error(`${name} (${bytes.length} bytes, ${reader.name}) is not read: ${what ?? ending}`);
  }
}

async function judge(
  reader: FuzzedReader,
  kept: KeptProcess,
  bytes: Buffer,
  number: number,
): Promise<{ readonly ending: Ending['kind']; readonly what?: string | undefined; readonly isDecided: boolean }> {
  const variant = number % (reader.variants ?? 2);
  const ending = await kept.read({ reader: reader.name, bytes, variant });
  const asksAgain = ending.kind === 'read' || (ending.kind === 'refused' && reader.takesAll === true);
  const again = asksAgain ? await reader.readAgain(bytes, variant) : 'unknown';
  return { ending: ending.kind, what: whatIsWrong(reader, ending, again), isDecided: again !== 'unknown' };
}

/** `again`: what the second reader said. */
function whatIsWrong(reader: FuzzedReader, ending: Ending, again: Values | 'unknown' | undefined): string | undefined {
  switch (ending.kind) {
    case 'crashed':
      return `the process ended: ${ending.error}`;
    case 'hung':
      return 'no answer in time';
    case 'memory':
      return `${(ending.bytes / 2 ** 20).toFixed(0)} MiB more memory`;
    case 'broken':
      return `an error without a code: ${ending.error}`;
    case 'refused': {
      if (!reader.codes.includes(ending.code)) return `refused with ${ending.code}: ${ending.message.slice(0, 400)}`;
      if (ending.message.length > MESSAGE_CHARACTERS) return `a message of ${ending.message.length} characters`;
      if (reader.takesAll !== true) return undefined;
      return Array.isArray(again) ? `a sound file is refused: ${ending.message.slice(0, 400)}` : undefined;
    }
    case 'read': {
      if (again === 'unknown') return undefined;
      if (again === undefined) return 'read, and a second reader finds it damaged';
      return digestOf(again) === ending.digest ? undefined : 'read, and a second reader finds other values in it';
    }
  }
}
