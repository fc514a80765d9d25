// How long a computation takes on the CPU and on the GPU of this machine, said before it runs, and so from which size
// on the GPU is faster. Pure: times go in, predictions come out.
//
// A *kind* is what is computed on which type of rows ("topk/f32"). Its size has two parts: how many queries come
// together, and the *work* of one: values that it is compared with. A table of measured times over both, straight in
// logarithms between two of them, because neither side is a line: a CPU begins with one thread, a GPU waits for memory
// or for its multipliers, and what holds for one query does not for fifty. Every run that was predicted corrects what
// is near it.

import { z } from 'zod';
import { median } from '../base/median.ts';
import { risingZero } from './rising-zero.ts';

export const SIDES = ['cpu', 'gpu'] as const;
export type Side = (typeof SIDES)[number];

const pointSchema = z.strictObject({
  queries: z.number().int().positive(),
  work: z.number().positive(),
  ms: z.number().positive(),
});
const tableSchema = z.array(pointSchema).min(1);
const tablesSchema = z.record(z.string().min(1).max(64), z.partialRecord(z.enum(SIDES), tableSchema));

/** Of some queries, each compared with so many values. */
export type TimedSize = z.infer<typeof pointSchema>;
export type TimeTables = z.infer<typeof tablesSchema>;

const profileSchema = z.strictObject({
  v: z.literal(1),
  key: z.string().min(1).max(400),
  tables: tablesSchema,
  measuredAt: z.iso.datetime(),
});
export type BreakEvenProfile = z.infer<typeof profileSchema>;

/**
 * A size from which on the GPU is faster: so many values for each of so many queries. Undefined: never, as far as was
 * measured.
 */
export interface BreakEven {
  readonly kind: string;
  readonly queries: number;
  readonly work: number | undefined;
}

/** One run says little: somebody else may have wanted the machine. */
const LEARNING_RATE = 0.1;
/**
 * So wrong at most is a prediction taken to be by one run: one in twenty takes many times as long, and none is as much
 * too short.
 */
const MOST_CORRECTION = 1.5;
const ERRORS_KEPT = 128;
/** Where both are as near as this, they take turns, so that both stay measured. */
const NEAR = 1.1;

/** Sorted, because each call asks for several predictions: with lists that were sorted then, they took 15 µs of it. */
type Table = readonly Class[];

/** Of one number of queries. */
interface Class {
  readonly queries: number;
  readonly points: readonly TimedSize[];
}

export class RunTimes {
  private readonly tables = new Map<string, Map<Side, Table>>();
  /** |predicted ÷ measured − 1| of the last runs. */
  private readonly errors: number[] = [];
  private turns = 0;

  constructor(tables: TimeTables = {}) {
    for (const [kind, sides] of Object.entries(tables)) {
      this.tables.set(
        kind,
        new Map(
          SIDES.flatMap((side) => (sides[side] === undefined ? [] : [[side, tableOfPoints(sides[side])] as const])),
        ),
      );
    }
  }

  /** Undefined for what was never measured, in no type of rows. */
  predictMs(side: Side, kind: string, queries: number, work: number): number | undefined {
    const table = this.tableOf(side, kind);
    return table === undefined ? undefined : predict(table, queries, work);
  }

  /** What is sooner done with it, `extraGpuMs` counted in; undefined while one of them is not known. */
  faster(kind: string, queries: number, work: number, extraGpuMs = 0): Side | undefined {
    const [cpuMs, gpuMs] = SIDES.map((side) => this.predictMs(side, kind, queries, work));
    if (cpuMs === undefined || gpuMs === undefined) return undefined;
    const ratio = cpuMs / (gpuMs + extraGpuMs);
    if (ratio < NEAR && ratio > 1 / NEAR) return this.turns++ % 2 === 0 ? 'gpu' : 'cpu';
    return ratio > 1 ? 'gpu' : 'cpu';
  }

  /** A run took so long: whatever was predicted near this size moves a little towards it. */
  ran(side: Side, kind: string, queries: number, work: number, ms: number): void {
    const table = this.ownTable(side, kind);
    const predictedMs = table === undefined ? undefined : predict(table, queries, work);
    if (table === undefined || predictedMs === undefined || !(ms > 0)) return;
    this.errors.push(Math.abs(predictedMs / ms - 1));
    if (this.errors.length > ERRORS_KEPT) this.errors.shift();
    const correction = Math.min(MOST_CORRECTION, Math.max(1 / MOST_CORRECTION, ms / predictedMs));
    for (const [point, weight] of pointsNear(table, queries, work)) point.ms *= correction ** (LEARNING_RATE * weight);
  }

  /** Median of |predicted ÷ measured − 1| over the last runs; undefined before the first. */
  get error(): number | undefined {
    return this.errors.length === 0 ? undefined : median(this.errors);
  }

  /** For each kind and number of queries that was measured on both sides. */
  breakEvens(): BreakEven[] {
    return [...this.tables].flatMap(([kind, sides]) => {
      const [cpu, gpu] = [sides.get('cpu'), sides.get('gpu')];
      if (cpu === undefined || gpu === undefined) return [];
      return gpu.map(({ queries }) => ({ kind, queries, work: crossing(cpu, gpu, queries) }));
    });
  }

  toTables(): TimeTables {
    return Object.fromEntries(
      [...this.tables].map(([kind, sides]) => [
        kind,
        Object.fromEntries(
          [...sides].map(([side, table]) => [
            side,
            table.flatMap(({ points }) => points.map((point) => ({ ...point, ms: Number(point.ms.toPrecision(6)) }))),
          ]),
        ),
      ]),
    );
  }

  /**
   * Its own, or that of the same computation on another type of rows ("topk/f32"), or of another form of it
   * ("topk-many/f16").
   */
  private tableOf(side: Side, kind: string): Table | undefined {
    return (
      this.tables.get(kind)?.get(side) ??
      [...this.tables]
        .find(([other, sides]) => computationOf(other) === computationOf(kind) && sides.has(side))?.[1]
        .get(side)
    );
  }

  private ownTable(side: Side, kind: string): Table | undefined {
    const known = this.tables.get(kind)?.get(side);
    if (known !== undefined) return known;
    const other = this.tableOf(side, kind);
    if (other === undefined) return undefined;
    const own = tableOfPoints(other.flatMap(({ points }) => points));
    const sides = this.tables.get(kind) ?? new Map<Side, Table>();
    this.tables.set(kind, sides.set(side, own));
    return own;
  }
}

export function encodeBreakEvenProfile(profile: BreakEvenProfile): string {
  return `${JSON.stringify(profileSchema.parse(profile))}\n`;
}

/** The stored profile, or why it is not for `key`. */
export function decodeBreakEvenProfile(
  text: string,
  key: string,
): { readonly profile: BreakEvenProfile } | { readonly reason: string } {
  const parsed = profileSchema.safeParse(asJson(text));
  if (!parsed.success)
    return {
      reason:
        `it is no profile of run times: ${parsed.error.issues[0]?.path.join('.') || 'the whole of it'}: ` +
        `${parsed.error.issues[0]?.message}`,
    };
  return parsed.data.key === key ? { profile: parsed.data } : { reason: `it is of ${parsed.data.key}, not of ${key}` };
}

function asJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function computationOf(kind: string): string {
  return kind.split(/[-/]/)[0]!;
}

// ---- tables ---------------------------------------------------------------------------------------------------------

/** With points of its own. */
function tableOfPoints(points: readonly TimedSize[]): Table {
  const counts = [...new Set(points.map(({ queries }) => queries))].sort((a, b) => a - b);
  const ofCount = (count: number): TimedSize[] =>
    points
      .filter(({ queries }) => queries === count)
      .map((point) => ({ ...point }))
      .sort((a, b) => a.work - b.work);
  return counts.map((queries) => ({ queries, points: ofCount(queries) }));
}

function queriesOf({ queries }: Class): number {
  return queries;
}

function workOf({ work }: TimedSize): number {
  return work;
}

function timeOf({ ms }: TimedSize): number {
  return ms;
}

interface Between<Value> {
  readonly low: Value;
  readonly high: Value;
  /** 0 at `low`, 1 at `high`. */
  readonly share: number;
}

/**
 * The two values around `at` in logarithms; what is below the first counts as the first, what is behind the last as the
 * last.
 */
function around<Value>(sorted: readonly Value[], sizeOf: (value: Value) => number, at: number): Between<Value> {
  const above = sorted.findIndex((value) => sizeOf(value) >= at);
  if (above === 0 || sorted.length === 1) return { low: sorted[0]!, high: sorted[0]!, share: 0 };
  if (above === -1) return { low: sorted.at(-1)!, high: sorted.at(-1)!, share: 0 };
  const [low, high] = [sorted[above - 1]!, sorted[above]!];
  return { low, high, share: Math.log(at / sizeOf(low)) / Math.log(sizeOf(high) / sizeOf(low)) };
}

/**
 * Between two sizes in logarithms; behind the last one the line goes on that ended there, because most of it may be
 * what every call costs.
 */
function interpolate<Value>(
  sorted: readonly Value[],
  sizeOf: (value: Value) => number,
  msOf: (value: Value) => number,
  at: number,
): number {
  const last = sorted.at(-1)!;
  if (at <= sizeOf(last)) {
    const { low, high, share } = around(sorted, sizeOf, at);
    return share === 0 ? msOf(low) : mix(msOf(low), msOf(high), share);
  }
  const before = sorted.at(-2);
  if (before === undefined) return msOf(last) * (at / sizeOf(last));
  const perSize = Math.max(0, msOf(last) - msOf(before)) / (sizeOf(last) - sizeOf(before));
  return msOf(last) + perSize * (at - sizeOf(last));
}

function predict(table: Table, queries: number, work: number): number {
  return interpolate(table, queriesOf, ({ points }) => interpolate(points, workOf, timeOf, work), queries);
}

function mix(low: number, high: number, share: number): number {
  return low * (high / low) ** share;
}

/** The points that a prediction is made of, and how much of it each is. */
function pointsNear(table: Table, queries: number, work: number): [TimedSize, number][] {
  const between = around(table, queriesOf, queries);
  const weights = new Map<TimedSize, number>();
  for (const [{ points }, weight] of [
    [between.low, 1 - between.share],
    [between.high, between.share],
  ] as const) {
    const { low, high, share } = around(points, workOf, work);
    for (const [point, part] of [
      [low, 1 - share],
      [high, share],
    ] as const)
      weights.set(point, (weights.get(point) ?? 0) + weight * part);
  }
  return [...weights];
}

/** Doublings behind the last size that was measured. */
const DOUBLINGS = 7;

/** Where CPU ÷ GPU, taken as rising with the work, passes 1, through all that was measured and a hundred times more. */
function crossing(cpu: Table, gpu: Table, queries: number): number | undefined {
  const pointsOf = (table: Table): readonly TimedSize[] => table.find((one) => one.queries === queries)?.points ?? [];
  const measured = [...new Set([...pointsOf(cpu), ...pointsOf(gpu)].map(workOf))].sort((a, b) => a - b);
  const works = [...measured, ...Array.from({ length: DOUBLINGS }, (_, i) => measured.at(-1)! * 2 ** (i + 1))];
  const zero = risingZero(
    works.map((work) => [Math.log(work), Math.log(predict(cpu, queries, work) / predict(gpu, queries, work))]),
  );
  return zero === Infinity ? undefined : Math.exp(zero);
}
