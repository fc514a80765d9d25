// The page bench/results/README.md: the newest row of each bench, case, bar and kind of machine. Written by `npm run
// docs`.

import { readResults, type Bar, type Machines, type ResultRow, type Results } from '../bench/rig/results.ts';

const UNKNOWN = 'not noted';
const HEAD = ['case', 'figures', 'bar', 'held', 'machine', 'date, commit'];
const INTRODUCTION = `# What was measured

Generated from the rows beside it by \`npm run docs\`: do not edit. It shows the newest row of each bench, case, bar and
kind of machine; earlier rows are in the files. Machines are explained in [machines.json](machines.json), commands in
the comment at the top of each bench.

A bench whose usage names \`--record\` appends its rows itself, by \`bench/rig/record.ts\`; others are written by hand.
\`npm run bench:compare -- <ref> <bench>\` measures this tree against another one. Rows up to 2026-11-26 were taken
from pages that are closed now ([docs/lab](../../docs/lab/README.md)); what those did not say is "${UNKNOWN}".`;

export function resultsPage({ machines, benches }: Results = readResults()): string {
  const newest = [...benches].map(([bench, rows]) => ({ bench, rows: newestOf(rows, machines) }));
  const judged = newest.flatMap(({ bench, rows }) =>
    rows.filter((row) => row.bar !== null).map((row) => ({ bench, row })),
  );
  const missed = judged.filter(({ row }) => row.held === false);
  const sections = newest.map(({ bench, rows }) =>
    section(
      bench,
      HEAD,
      rows.map((row) => cellsOf(row, machines)),
    ),
  );
  const missedRows = missed.map(({ bench, row }) => [bench, ...cellsOf(row, machines)]);
  return `${[
    INTRODUCTION,
    `${judged.length - missed.length} of ${judged.length} bars are held by their newest row.`,
    ...(missed.length > 0 ? [section('Bars that are missed', ['bench', ...HEAD], missedRows)] : []),
    ...sections,
  ].join('\n\n')}\n`;
}

/** The row of the latest day, and of several of one day the last, of each case, bar and kind of machine. */
function newestOf(rows: readonly ResultRow[], machines: Machines): ResultRow[] {
  const newest = new Map<string, ResultRow>();
  for (const row of rows) {
    const key = JSON.stringify([row.case, row.bar?.figure ?? null, kindOf(row, machines)]);
    const before = newest.get(key);
    if (before === undefined || before.date <= row.date) newest.set(key, row);
  }
  return [...newest.values()];
}

function cellsOf(row: ResultRow, machines: Machines): string[] {
  const figures = Object.entries(row.figures).map(([name, value]) => `${name} ${digits(value)}`);
  const held = row.held === null ? '' : row.held ? 'yes' : '**no**';
  const bar = row.bar === null ? '' : barText(row.bar);
  return [row.case, figures.join(', '), bar, held, kindOf(row, machines), `${row.date}, ${row.commit ?? UNKNOWN}`];
}

function kindOf(row: ResultRow, machines: Machines): string {
  return row.machine === null ? UNKNOWN : machines[row.machine]!.kind;
}

function barText(bar: Bar): string {
  return 'at_least' in bar ? `${bar.figure} ≥ ${digits(bar.at_least)}` : `${bar.figure} ≤ ${digits(bar.at_most)}`;
}

/** Every digit that was written down, with commas between thousands. */
function digits(value: number): string {
  return value.toLocaleString('en-US', { maximumSignificantDigits: 17 });
}

function section(title: string, head: readonly string[], rows: readonly (readonly string[])[]): string {
  return `## ${title}\n\n${[head, head.map(() => '---'), ...rows].map(tableLine).join('\n')}`;
}

function tableLine(cells: readonly string[]): string {
  return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
}
