// A comparison in parts: so many calls of one script on one server, done by several threads with real servers of their own.

import { Worker } from 'node:worker_threads';
import type { Flavour } from '../command.ts';
import type { Report } from './run.ts';

export interface Part {
  readonly script: string;
  readonly flavour: Flavour;
  readonly seed: number;
  readonly from: number;
  readonly calls: number;
}

export interface DonePart extends Part, Omit<Report, 'calls'> {
  readonly seconds: number;
}

/** Calls of one part: some seconds. */
const PART_CALLS = 5_000;

/** By turns, each script on each server. */
export function partsOf({
  scripts,
  flavours,
  calls,
  from,
  seed,
}: {
  readonly scripts: readonly string[];
  readonly flavours: readonly Flavour[];
} & Pick<Part, 'calls' | 'from' | 'seed'>): Part[] {
  const turns = Array.from({ length: Math.ceil(calls / PART_CALLS) }, (_, turn) => turn * PART_CALLS);
  return turns.flatMap((past) =>
    scripts.flatMap((script) =>
      flavours.map((flavour) => ({
        script,
        flavour,
        seed,
        from: from + past,
        calls: Math.min(PART_CALLS, calls - past),
      })),
    ),
  );
}

const nameOf = ({ script, flavour, seed, from }: Part): string => `${flavour} ${script} ${seed} ${from}`;

export interface PartOptions {
  readonly programs: Readonly<Record<Flavour, string | undefined>>;
  readonly processes: number;
  readonly mostDifferences: number;
  /** No part begins after this, ms since 1970. */
  readonly until: number;
  readonly onPart: (part: DonePart) => void;
}

/** What is done of the parts, with what was before. Rejects when a thread breaks. */
export async function runParts(
  parts: readonly Part[],
  before: readonly DonePart[],
  { programs, processes, mostDifferences, until, onPart }: PartOptions,
): Promise<DonePart[]> {
  const known = new Map(before.map((part) => [nameOf(part), part]));
  const done = parts.flatMap((part) => known.get(nameOf(part)) ?? []);
  const left = parts.filter((part) => !known.has(nameOf(part)));
  const file = new URL(`part-thread${import.meta.url.slice(-3)}`, import.meta.url);
  const threads = Array.from(
    { length: Math.min(processes, left.length) },
    () => new Worker(file, { workerData: { programs, mostDifferences } }),
  );
  try {
    await Promise.all(
      threads.map(async (thread) => {
        for (let part = left.shift(); part !== undefined && Date.now() < until; part = left.shift()) {
          const one = await partBy(thread, part);
          onPart(one);
          done.push(one);
        }
      }),
    );
  } finally {
    await Promise.all(threads.map((thread) => thread.terminate()));
  }
  return done;
}

function partBy(thread: Worker, part: Part): Promise<DonePart> {
  return new Promise((resolve, reject) => {
    thread.once('error', reject);
    thread.once('message', (done: DonePart) => {
      thread.off('error', reject);
      resolve(done);
    });
    thread.postMessage(part);
  });
}

export interface ScriptSum {
  readonly script: string;
  readonly flavour: Flavour;
  readonly seed: number;
  readonly calls: number;
  readonly errors: number;
  readonly notModelled: number;
  readonly differences: number;
  /** Of all parts together, on however many cores. */
  readonly seconds: number;
}

export function sumOf(parts: readonly DonePart[]): ScriptSum[] {
  const groups = Map.groupBy(parts, ({ flavour, script }) => `${flavour} ${script}`);
  return [...groups.keys()].toSorted().map((name) => {
    const group = groups.get(name)!;
    const sum = (of: (part: DonePart) => number): number => group.reduce((total, part) => total + of(part), 0);
    const { script, flavour, seed } = group[0]!;
    const calls = sum((part) => part.calls);
    return {
      script,
      flavour,
      seed,
      calls,
      errors: sum((part) => part.errors),
      notModelled: sum((part) => part.drawn) - calls,
      differences: sum((part) => part.differences.length),
      seconds: Math.round(sum((part) => part.seconds) * 10) / 10,
    };
  });
}
