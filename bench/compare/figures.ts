// What a bench printed, as figures by path, and what the runs of two trees say beside each other.

const LEAST_RATIO = 0.97;

export type Figures = Readonly<Record<string, number>>;

export interface Comparison {
  readonly name: string;
  readonly before: readonly number[];
  readonly after: readonly number[];
  readonly medianBefore: number;
  readonly medianAfter: number;
  /** After ÷ before, whichever is better. */
  readonly ratio: number;
  readonly isLessBetter: boolean;
  /** Undefined where the figure is not judged. */
  readonly holds: boolean | undefined;
}

/** The numbers of what a bench printed: all of it as JSON, else its last line that is JSON. */
export function figuresOf(stdout: string): Figures {
  const texts = [stdout, ...stdout.trimEnd().split('\n').toReversed()];
  for (const text of texts) {
    const value = parsed(text);
    if (value !== undefined) return Object.fromEntries(leavesOf(value, ''));
  }
  return {};
}

function parsed(text: string): object | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

/** What names an element of an array better than its number. */
const NAMES = ['name', 'rate', 'label', 'case', 'kind', 'isa', 'model', 'threads', 'chunk', 'lengths', 'rows'];

function leavesOf(value: unknown, path: string): [string, number][] {
  if (typeof value === 'number') return [[path, value]];
  if (Array.isArray(value)) {
    if (value.every((one) => typeof one === 'number')) return value.length > 0 ? [[path, median(value)]] : [];
    const names = value.map((one, at) => nameOf(one, at));
    const areUnique = new Set(names).size === names.length;
    return value.flatMap((one, at) => leavesOf(one, inside(path, areUnique ? names[at]! : String(at))));
  }
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([key, one]) => leavesOf(one, inside(path, key)));
}

function nameOf(element: unknown, at: number): string {
  if (typeof element !== 'object' || element === null) return String(at);
  const said = NAMES.map((name) => (element as Readonly<Record<string, unknown>>)[name]).filter(
    (name) => typeof name === 'string' || typeof name === 'number',
  );
  return said.length > 0 ? said.slice(0, 2).join('-') : String(at);
}

function inside(path: string, key: string): string {
  return path === '' ? key : `${path}.${key}`;
}

const MORE_IS_BETTER = /(per_?s(econd)?|rate|ratio|shares?|share_?of_?peak|gflops|throughput|speed|efficiency)$/i;
const LESS_IS_BETTER =
  /(ms|us|ns|micros|seconds|_s|mb|mib|megabytes|bytes|percent|p50|p90|p95|p99|perjob|per_job|cost)$/i;

export function compareRuns(
  before: readonly Figures[],
  after: readonly Figures[],
  judged: readonly string[],
): Comparison[] {
  const names = Object.keys(before[0] ?? {}).filter((name) =>
    [...before, ...after].every((figures) => figures[name] !== undefined),
  );
  const unknown = judged.filter((name) => !names.includes(name));
  if (unknown.length > 0)
    throw new Error(`no figure of both trees is called ${unknown.join(', ')}; there is ${names.join(', ')}`);
  return names.map((name) => {
    const isJudged = judged.length > 0 ? judged.includes(name) : MORE_IS_BETTER.test(name);
    return comparisonOf(
      name,
      before.map((figures) => figures[name]!),
      after.map((figures) => figures[name]!),
      isJudged,
    );
  });
}

function comparisonOf(
  name: string,
  before: readonly number[],
  after: readonly number[],
  isJudged: boolean,
): Comparison {
  const [medianBefore, medianAfter] = [median(before), median(after)];
  const isLessBetter = !MORE_IS_BETTER.test(name) && LESS_IS_BETTER.test(name);
  const gain = isLessBetter ? medianBefore / medianAfter : medianAfter / medianBefore;
  const isWithin = isLessBetter ? medianAfter <= Math.max(...before) : medianAfter >= Math.min(...before);
  const holds = isJudged ? gain >= LEAST_RATIO || isWithin : undefined;
  return { name, before, after, medianBefore, medianAfter, ratio: medianAfter / medianBefore, isLessBetter, holds };
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** What people read of a comparison: judged figures first. Settings that the bench prints again are left out. */
export function report(comparisons: readonly Comparison[]): string {
  const judged = comparisons.filter(({ holds }) => holds !== undefined);
  const others = comparisons.filter((one) => one.holds === undefined && !isConstant(one));
  return [...judged, ...others].map((one) => `${told(one)}\n`).join('');
}

function isConstant({ before, after }: Comparison): boolean {
  return new Set([...before, ...after]).size === 1;
}

function told({ name, before, after, medianBefore, medianAfter, ratio, isLessBetter, holds }: Comparison): string {
  const verdict = holds === undefined ? 'not judged' : holds ? 'holds' : 'SLOWER';
  const direction = isLessBetter ? ' (less is better)' : '';
  const [old, now] = [short(medianBefore), short(medianAfter)];
  const spread = `${short(Math.min(...before))} to ${short(Math.max(...before))}`;
  return [
    `${name}: ${old} before, ${now} after, ${ratio.toFixed(3)} ×${direction}: ${verdict}`,
    `  before ${before.map(short).join(', ')} (${spread})`,
    `  after  ${after.map(short).join(', ')}`,
  ].join('\n');
}

function short(value: number): string {
  return value.toLocaleString('en-US', { maximumSignificantDigits: Math.abs(value) >= 1_000 ? 7 : 5 });
}
