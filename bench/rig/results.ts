/**
 * The rows of bench/results: what a bench measured, when, of which commit and on which machine. One file of rows a
 * bench, `bench/results/<bench>.jsonl`, newest last; `bench/results/machines.json` explains the machines. Every row is
 * checked when it is read, and every problem is reported at once, with its file and line.
 */

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const RESULTS_FOLDER = fileURLToPath(new URL('../results/', import.meta.url));

/** What a figure must reach, or must not exceed. */
export type Bar =
  | { readonly figure: string; readonly at_least: number }
  | { readonly figure: string; readonly at_most: number };

export interface ResultRow {
  /** The day of the measurement, YYYY-MM-DD. */
  readonly date: string;
  /** Seven hexadecimal digits or more, "+dirty" behind them where files had changed; null where it is not known. */
  readonly commit: string | null;
  /** A key of machines.json; null where it is not known. */
  readonly machine: string | null;
  /** The command line from the repository's root; null where it is not known. */
  readonly command: string | null;
  /** What was measured, in a few words that stay the same from row to row. */
  readonly case: string;
  /** Numbers by name; the unit ends the name: texts_per_s, p99_ms, server_cpu_percent. */
  readonly figures: Readonly<Record<string, number>>;
  readonly bar: Bar | null;
  /** Whether the bar was held; null where there is none. */
  readonly held: boolean | null;
}

export interface Machine {
  /** The kind of machine, by which the page compares: rows of one kind replace each other there. */
  readonly kind: string;
  readonly cpu: string | null;
  readonly cores: number | null;
  readonly memory_gb: number | null;
  readonly gpu: string | null;
  readonly gpus: number;
  readonly driver: string | null;
  /** What else ran on the machine or on its host, as far as it was noted. */
  readonly neighbours: string | null;
}

export type Machines = Readonly<Record<string, Machine>>;

export interface Results {
  readonly machines: Machines;
  /** The rows of each bench, in the order of the file. */
  readonly benches: ReadonlyMap<string, readonly ResultRow[]>;
}

export function isHeld(figures: ResultRow['figures'], bar: Bar): boolean {
  const figure = figures[bar.figure]!;
  return 'at_least' in bar ? figure >= bar.at_least : figure <= bar.at_most;
}

/** Reads every row of the folder. Throws one error that names all rows that are not what they should be. */
export function readResults(folder = RESULTS_FOLDER): Results {
  const machines = readMachines(folder);
  const problems = Object.entries(machines).flatMap(([id, machine]) =>
    problemsOfMachine(machine).map((problem) => `machines.json: ${id}: ${problem}`),
  );
  const benches = new Map<string, ResultRow[]>();
  for (const file of filesOf(folder)) {
    const rows: ResultRow[] = [];
    for (const [at, line] of linesOf(join(folder, file)).entries()) {
      const { row, problems: found } = checkRow(line, machines);
      if (row !== undefined) rows.push(row);
      problems.push(...found.map((problem) => `${file}:${at + 1}: ${problem}`));
    }
    benches.set(file.replace(/\.jsonl$/, ''), rows);
  }
  if (problems.length > 0) throw new Error(`${problems.length} problems in ${folder}:\n${problems.join('\n')}`);
  return { machines, benches };
}

export function readMachines(folder = RESULTS_FOLDER): Machines {
  return JSON.parse(readFileSync(join(folder, 'machines.json'), 'utf8')) as Machines;
}

function filesOf(folder: string): string[] {
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' });
  return files
    .map((file) => file.replaceAll('\\', '/'))
    .filter((file) => file.endsWith('.jsonl'))
    .toSorted();
}

function linesOf(path: string): string[] {
  const text = readFileSync(path, 'utf8');
  return (text.endsWith('\n') ? text.slice(0, -1) : text).split('\n');
}

const ROW_KEYS = ['date', 'commit', 'machine', 'command', 'case', 'figures', 'bar', 'held'];
const MACHINE_KEYS = ['kind', 'cpu', 'cores', 'memory_gb', 'gpu', 'gpus', 'driver', 'neighbours'];

/** The row of one line, and what is wrong with it. Without a problem the row is one. */
export function checkRow(
  line: string,
  machines: Machines,
): { readonly row?: ResultRow; readonly problems: readonly string[] } {
  let row: unknown;
  try {
    row = JSON.parse(line);
  } catch {
    return { problems: ['is not JSON'] };
  }
  const problems = problemsOfRow(row, machines);
  return problems.length > 0 ? { problems } : { row: row as ResultRow, problems };
}

export function problemsOfRow(row: unknown, machines: Machines): string[] {
  if (!isObject(row)) return ['is not an object'];
  const { date, commit, machine, command, figures } = row;
  const problems = keyProblems(row, ROW_KEYS);
  if (!isIsoDay(date)) problems.push('date is not YYYY-MM-DD');
  if (commit !== null && !(typeof commit === 'string' && /^[0-9a-f]{7,40}(\+dirty)?$/.test(commit)))
    problems.push('commit is neither null nor hexadecimal digits');
  if (machine !== null && !(typeof machine === 'string' && Object.hasOwn(machines, machine)))
    problems.push(`machine ${JSON.stringify(machine)} is not in machines.json`);
  if (command !== null && !isText(command)) problems.push('command is neither null nor a text');
  if (typeof command === 'string' && /(^|[\s='"])\/\w/.test(command))
    problems.push("command has a path of somebody's machine");
  if (!isText(row['case'])) problems.push('case is no text');
  const wrong = isObject(figures) ? figureProblems(figures) : ['figures is no object'];
  return [...problems, ...wrong, ...(wrong.length === 0 ? barProblems(row, figures as ResultRow['figures']) : [])];
}

function figureProblems(figures: Readonly<Record<string, unknown>>): string[] {
  const entries = Object.entries(figures);
  if (entries.length === 0) return ['there is no figure'];
  return entries.flatMap(([name, value]) => [
    ...(/^[a-z][a-z0-9]*(_[a-z0-9]+)*$/.test(name)
      ? []
      : [`the figure ${JSON.stringify(name)} is not named like texts_per_s`]),
    ...(typeof value === 'number' && Number.isFinite(value) ? [] : [`the figure ${name} is no number`]),
  ]);
}

function barProblems({ bar, held }: Readonly<Record<string, unknown>>, figures: ResultRow['figures']): string[] {
  if (bar === null) return held === null ? [] : ['held says something and there is no bar'];
  if (!isBar(bar, figures)) return ['bar is neither null nor a figure of the row with at_least or at_most'];
  return held === isHeld(figures, bar) ? [] : [`held is ${JSON.stringify(held)} and the figure says otherwise`];
}

function isBar(bar: unknown, figures: ResultRow['figures']): bar is Bar {
  if (!isObject(bar) || Object.keys(bar).length !== 2) return false;
  const limit = bar['at_least'] ?? bar['at_most'];
  return (
    typeof bar['figure'] === 'string' &&
    Object.hasOwn(figures, bar['figure']) &&
    typeof limit === 'number' &&
    Number.isFinite(limit)
  );
}

function problemsOfMachine(machine: unknown): string[] {
  if (!isObject(machine)) return ['is not an object'];
  const problems = keyProblems(machine, MACHINE_KEYS);
  if (!isText(machine['kind'])) problems.push('kind is no text');
  for (const name of ['cpu', 'gpu', 'driver', 'neighbours']) {
    if (machine[name] !== null && !isText(machine[name])) problems.push(`${name} is neither null nor a text`);
  }
  for (const name of ['cores', 'memory_gb']) {
    if (machine[name] !== null && !isCount(machine[name]))
      problems.push(`${name} is neither null nor a number from 1 on`);
  }
  if (machine['gpu'] === null ? machine['gpus'] !== 0 : !isCount(machine['gpus']))
    problems.push('gpus does not go with gpu');
  return problems;
}

function keyProblems(found: object, wanted: readonly string[]): string[] {
  const missing = wanted.filter((key) => !Object.hasOwn(found, key)).map((key) => `${key} is missing`);
  return [
    ...missing,
    ...Object.keys(found)
      .filter((key) => !wanted.includes(key))
      .map((key) => `${key} is unknown`),
  ];
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value.trim() === value && value !== '' && !value.includes('\n');
}

function isCount(value: unknown): boolean {
  return typeof value === 'number' && Number.isFinite(value) && value >= 1;
}

function isIsoDay(value: unknown): boolean {
  if (typeof value !== 'string' || !/^\d{4}-\d{2}-\d{2}$/.test(value)) return false;
  const day = new Date(`${value}T00:00:00Z`);
  return !Number.isNaN(day.getTime()) && day.toISOString().startsWith(value);
}
