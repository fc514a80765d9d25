// From which size on the GPU of a machine computes faster than its CPU: one measured threshold for each kind of
// computation and number of queries. Pure: measured numbers go in, a side comes out.
//
// A *kind* is what is computed on which type of rows ("topk/f32"). A size has two parts: how many queries come
// together, and the *work* of one: values that it is compared with. Around a threshold both sides take the same time,
// so it does not matter much where exactly it lies; far from it the choice is clear.
//
// Why: docs/decisions/similarity-gpu.md#one-measured-threshold-for-each-kind

import { z } from 'zod';

export const SIDES = ['cpu', 'gpu'] as const;
export type Side = (typeof SIDES)[number];

/** A size from which on the GPU is faster. `work` undefined: never, as far as was measured. */
export interface Threshold {
  readonly kind: string;
  readonly queries: number;
  readonly work: number | undefined;
}

export interface MeasuredThresholds {
  /** For what lies on the device already. */
  readonly thresholds: readonly Threshold[];
  /**
   * Queries from which on it pays to bring rows to the device for one search, by the type of rows. A type that is not
   * named: never.
   */
  readonly passingQueries: Readonly<Record<string, number>>;
}

const thresholdSchema = z.strictObject({
  kind: z.string().min(1).max(64),
  queries: z.number().int().positive(),
  work: z.number().positive().optional(),
});
const profileSchema = z.strictObject({
  v: z.literal(2),
  key: z.string().min(1).max(400),
  thresholds: z.array(thresholdSchema),
  passingQueries: z.record(z.string().min(1).max(16), z.number().int().positive()),
  measuredAt: z.iso.datetime(),
});

/** Thresholds of one machine as they are kept. `key`: its GPU and its CPU. */
export interface ThresholdProfile extends MeasuredThresholds {
  readonly v: 2;
  readonly key: string;
  /** ISO 8601 */
  readonly measuredAt: string;
}

export class Thresholds {
  readonly all: readonly Threshold[];
  private readonly byKind: ReadonlyMap<string, readonly Threshold[]>;
  private readonly passingQueries: Readonly<Record<string, number>>;

  constructor({ thresholds, passingQueries }: MeasuredThresholds = { thresholds: [], passingQueries: {} }) {
    this.all = thresholds;
    this.passingQueries = passingQueries;
    this.byKind = new Map(
      [...new Set(thresholds.map(({ kind }) => kind))].map((kind) => [
        kind,
        thresholds.filter((one) => one.kind === kind).toSorted((a, b) => a.queries - b.queries),
      ]),
    );
  }

  /** The side that is sooner done where the rows lie in the memory of both. The GPU for what was never measured. */
  sideOf(kind: string, queries: number, work: number): Side {
    const measured = this.measuredFor(kind);
    return measured === undefined || work >= workAt(measured, queries) ? 'gpu' : 'cpu';
  }

  /** Whether one search of rows of this type pays for bringing them to the device. */
  paysForTheWay(rowType: string, queries: number): boolean {
    return queries >= (this.passingQueries[rowType] ?? Infinity);
  }

  /** Its own, or those of the same computation on another type of rows or in another form ("topk-many/f16"). */
  private measuredFor(kind: string): readonly Threshold[] | undefined {
    const own = this.byKind.get(kind);
    if (own !== undefined) return own;
    return [...this.byKind].find(([other]) => computationOf(other) === computationOf(kind))?.[1];
  }
}

function computationOf(kind: string): string {
  return kind.split(/[-/]/)[0]!;
}

/**
 * The threshold for so many queries: between two measured numbers of queries straight in logarithms. Beyond the last
 * one what counts is the work of all queries together; below the first one, its own.
 */
function workAt(measured: readonly Threshold[], queries: number): number {
  const above = measured.findIndex((one) => one.queries >= queries);
  if (above === -1) {
    const last = measured.at(-1)!;
    return ((last.work ?? Infinity) * last.queries) / queries;
  }
  const high = measured[above]!;
  const low = measured[above - 1];
  if (low === undefined || high.queries === queries) return high.work ?? Infinity;
  const share = Math.log(queries / low.queries) / Math.log(high.queries / low.queries);
  if (low.work === undefined || high.work === undefined) return (share < 0.5 ? low.work : high.work) ?? Infinity;
  return low.work * (high.work / low.work) ** share;
}

export function encodeThresholdProfile(profile: ThresholdProfile): string {
  return `${JSON.stringify(profileSchema.parse(profile))}\n`;
}

/** The stored profile, or why it is not for `key`. */
export function decodeThresholdProfile(
  text: string,
  key: string,
): { readonly profile: ThresholdProfile } | { readonly reason: string } {
  const parsed = profileSchema.safeParse(asJson(text));
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    return {
      reason: `it is no profile of thresholds: ${issue?.path.join('.') || 'the whole of it'}: ${issue?.message}`,
    };
  }
  const { thresholds, ...rest } = parsed.data;
  if (rest.key !== key) return { reason: `it is of ${rest.key}, not of ${key}` };
  return { profile: { ...rest, thresholds: thresholds.map(({ work, ...one }) => ({ ...one, work })) } };
}

function asJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
