// Holds the measured figures of README.md and docs/*.md against the rows of bench/results. docs/figures.md is the table
// between the two: what is written, on which page, and the row and figure that it comes from. A figure that is written
// and not in the table is refused, and so is a line of the table whose words are gone from the page, whose row is gone,
// or whose row says another value than is written, within the last digit that is written.
//
// It sees numbers with a unit of measurement: rates (texts/s, GB/s), ratios ("1.8 times the rate"), comparisons ("15 %
// less"), cosines and recall, what something "takes", "costs" or "holds" in time or memory, and quantiles ("(p50)"). It
// does not see numbers in words ("a quarter of its time"), in blocks of code, bare numbers in cells of tables, and
// times or sizes that are introduced in other words: a line of the table holds these as well, but nothing asks for it.
// Nor does it know whether a newer row says otherwise. Limits and defaults ("a job has 256 texts at most") are no
// measurements; docs/settings.md is made from the schema.

import type { ResultRow } from '../bench/rig/results.ts';

/** One line of the table in docs/figures.md. */
export interface WrittenFigure {
  readonly page: string;
  /** The words as they stand on the page. */
  readonly written: string;
  /** A file of bench/results without its ending. */
  readonly bench: string;
  readonly date: string;
  readonly case: string;
  /** The name of the figure in the row, whose end is its unit. */
  readonly figure: string;
}

/** A page without its blocks of code. */
export interface FigurePage {
  readonly page: string;
  readonly text: string;
}

const NUMBER = String.raw`\d[\d,]*(?:\.\d+)?(?: ?(?:k|M|million)\b)?`;
/** "159 to 183 k" is two numbers, and both are held against rows. */
const RANGE = `(?<![\\w.,−-])${NUMBER}(?: (?:to|and|or) ${NUMBER})?`;
const THAN = '(?:the|as|what|that|more|less|faster|slower)';
const THINGS = '(?:texts|rows|queries|jobs|tokens|vectors|passages|[kM]tok|[kMGT]B)';
const TAKES = String.raw`(?<=\b(?:takes?|took|costs?|holds?) (?:[a-z]+ ){0,3})`;
const PATTERNS = [
  String.raw`${RANGE} (?:[a-z]+ ){0,2}${THINGS}(?:\/s\b| an? second| per second)`,
  String.raw`${RANGE} (?:times|×)(?= ${THAN}\b)`,
  String.raw`(?<![\w.,])(?:${NUMBER} to )?\d+\.\d+ times\b`,
  String.raw`${RANGE} % (?:more|less|fewer|faster|slower|better|worse|higher|lower|of what)\b`,
  String.raw`(?<=(?:cosine|recall(?:@\d+)?)(?: [a-z]\w*){0,4} )(?<!below )0\.\d{3,}(?!\d| or more)`,
  String.raw`${TAKES}${RANGE} (?:µs|ms|s|seconds|minutes|[kKMGT]B)\b(?! or less| at most)`,
  String.raw`${RANGE} m?s (?=\(p\d+\))`,
].map((source) => new RegExp(source, 'g'));

/** What a unit is worth in the first of its kind: seconds, bytes, a second⁻¹, one. */
const UNITS: Readonly<Record<string, number>> = { µs: 1e-6, us: 1e-6, ms: 1e-3, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12 };
const THOUSANDS: Readonly<Record<string, number>> = { k: 1e3, m: 1e6, g: 1e9, t: 1e12, million: 1e6 };

/** Every figure of the pages that is not in the table, and every line of the table that is wrong. */
export function checkFigures(
  pages: readonly FigurePage[],
  table: readonly WrittenFigure[],
  benches: ReadonlyMap<string, readonly ResultRow[]>,
): string[] {
  const unheld = pages.flatMap(({ page, text }) => {
    const lines = table.filter((line) => line.page === page);
    return figuresIn(text)
      .filter((written) => !lines.some((line) => line.written === written))
      .map((written) => `${page}: "${written}" is a measured figure without a line in docs/figures.md`);
  });
  return [...unheld, ...table.flatMap((line) => problemOf(line, table, pages, benches))];
}

/** The table of docs/figures.md. Its cells have no "|" in them. */
export function readTable(markdown: string): WrittenFigure[] {
  return markdown
    .split('\n')
    .filter((line) => line.startsWith('| ') && !line.startsWith('| page |') && !line.startsWith('| --- |'))
    .map((line) => {
      const cells = line.slice(1, -1).split('|');
      const [page = '', written = '', bench = '', date = '', of = '', figure = ''] = cells.map((cell) => cell.trim());
      return { page, written, bench, date, case: of, figure };
    });
}

/** The measured figures of a page, each as it is written, with single spaces. */
export function figuresIn(text: string): string[] {
  const bare = asOneLine(text.replaceAll(/`[^`]*`/g, '`'));
  return [...new Set(PATTERNS.flatMap((pattern) => [...bare.matchAll(pattern)].map(([found]) => found.trim())))];
}

function problemOf(
  line: WrittenFigure,
  table: readonly WrittenFigure[],
  pages: readonly FigurePage[],
  benches: ReadonlyMap<string, readonly ResultRow[]>,
): string[] {
  const where = `docs/figures.md: "${line.written}" of ${line.page}`;
  const text = pages.find(({ page }) => page === line.page)?.text;
  if (text === undefined || !stands(line.written, asOneLine(text))) return [`${where} is not on that page`];
  const values = valuesOf(line, benches);
  if (values.length === 0) return [`${where}: no row has ${line.bench}, ${line.date}, ${line.case}, ${line.figure}`];
  const numbers = numbersIn(line.written, line.figure);
  if (!numbers.some((number) => values.some((value) => agrees(number, value))))
    return [`${where}: its row says ${line.figure} = ${values.join(' or ')}`];
  // Each number of a range has a line of its own.
  const all = table.filter(({ page, written }) => page === line.page && written === line.written);
  const held = numbers.every((number) =>
    all.some((other) => valuesOf(other, benches).some((value) => agrees(number, value))),
  );
  return held ? [] : [`${where}: one of its numbers has no line`];
}

function valuesOf(line: WrittenFigure, benches: ReadonlyMap<string, readonly ResultRow[]>): number[] {
  const rows = benches.get(line.bench) ?? [];
  return rows
    .filter((row) => row.date === line.date && row.case === line.case)
    .flatMap((row) => row.figures[line.figure] ?? []);
}

interface WrittenNumber {
  /** In the unit of the row's figure. */
  readonly value: number;
  /** One in the last digit that is written. */
  readonly step: number;
}

function agrees({ value, step }: WrittenNumber, measured: number): boolean {
  return Math.abs(value - measured) <= step * 0.500001;
}

function numbersIn(written: string, figure: string): WrittenNumber[] {
  const scale = unitOfWords(written) / unitOfName(figure);
  const found = [...written.matchAll(/\d[\d,]*(?:\.\d+)?(?: ?(?:k|M|million)\b)?/g)].map(([number]) => number);
  // "159 to 183 k" counts both in thousands.
  const thousands = THOUSANDS[/(k|M|million)$/.exec(found.at(-1) ?? '')?.[1]?.toLowerCase() ?? ''] ?? 1;
  return found.map((number) => {
    const digits = number.replaceAll(/[^\d.]/g, '');
    return { value: Number(digits) * thousands * scale, step: stepOf(digits) * thousands * scale };
  });
}

/** 0.35 is written to 0.01, 540000 to 10000: zeros at the end say nothing, but two digits always do. */
function stepOf(digits: string): number {
  const decimals = digits.split('.')[1];
  if (decimals !== undefined) return 10 ** -decimals.length;
  const zeros = /0*$/.exec(digits)![0].length;
  return 10 ** Math.max(0, Math.min(zeros, digits.length - 2));
}

function unitOfWords(written: string): number {
  const rate = /([kMGT])(?:B|tok)(?:\/s| an? second| per second)$/.exec(written)?.[1];
  if (rate !== undefined) return THOUSANDS[rate.toLowerCase()]!;
  if (written.endsWith(' minutes')) return 60;
  if (written.includes('%')) return 0.01;
  return UNITS[/ (µs|ms|[kKMGT]B)$/.exec(written)?.[1]?.toLowerCase() ?? ''] ?? 1;
}

function unitOfName(figure: string): number {
  const rate = /(?:^|_)([kmgt])(?:b|tokens)_per_s$/.exec(figure)?.[1];
  if (rate !== undefined) return THOUSANDS[rate]!;
  if (figure.endsWith('_percent')) return 0.01;
  return UNITS[/_(us|ms|[kmgt]b)(?:_per_job)?$/.exec(figure)?.[1] ?? ''] ?? 1;
}

/** "6 ms" does not stand in "4.6 ms". */
function stands(written: string, text: string): boolean {
  const exact = written.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`);
  return new RegExp(String.raw`(?<![\w.,])${exact}(?!\d|\.\d)`).test(text);
}

function asOneLine(text: string): string {
  return text.replaceAll(/\s+/g, ' ');
}
