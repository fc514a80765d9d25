// docs/fault-matrix.md, made of the cells of bench/chaos/matrix-cells.ts and the rows of bench/results/matrix.jsonl.

import { CELLS, CELL_NAMES, FAULTS, PROCESSES, caseOf, type CellName } from '../bench/chaos/matrix-cells.ts';
import { readResults, type ResultRow } from '../bench/rig/results.ts';

/** The page as Markdown. `rows`: of the matrix, newest last. Throws when a row is of no cell. */
export function faultMatrixPage(rows: readonly ResultRow[] = readResults().benches.get('matrix') ?? []): string {
  const newest = new Map(rows.map((row) => [row.case, row]));
  const unknown = [...newest.keys()].find((name) => !CELL_NAMES.some((cell) => caseOf(cell) === name));
  if (unknown !== undefined) throw new Error(`bench/results/matrix.jsonl has a row of "${unknown}", which is no cell`);
  const runOf = (name: CellName): ResultRow | undefined => newest.get(caseOf(name));
  const real = CELL_NAMES.filter((name) => !('not' in CELLS[name]));
  const ran = real.filter((name) => runOf(name) !== undefined);
  const held = ran.filter((name) => runOf(name)!.held === true);
  const faults = Object.keys(FAULTS);
  return `# The matrix of faults

Generated from \`bench/chaos/matrix-cells.ts\` and the rows of \`matrix.jsonl\` in [bench/results](../bench/results/README.md) by \`npm run docs\`: do not edit. Each process, each fault: what is
promised, how it is made with real processes, and the newest run that showed it. What every run is held against are the rules of
[simulation.md](simulation.md#a-history-is-held-against-what-is-promised), over the history of all calls.

\`\`\`
node --conditions=@shoal/source bench/chaos/matrix.ts --only claimer:kill            # one cell, half a minute
node --conditions=@shoal/source bench/chaos/matrix.ts --only executor:all --record   # all of a process that can be made
\`\`\`

${CELL_NAMES.length} cells, of which ${CELL_NAMES.length - real.length} cannot be. ${ran.length} were run by the matrix and ${held.length} of those held; ${
    real.filter((name) => runOf(name) === undefined && testOf(name) !== undefined).length
  } more have a test of their own. **${
    real.filter((name) => runOf(name) === undefined && testOf(name) === undefined).length
  } were never run.** Cells of one command share a history: a breach counts against all of them.

✓ the promise held in its newest run · ✗ it did not · t only a test of its own · – cannot be · empty: never run

${table([
  ['', ...faults],
  ['---', ...faults.map(() => '---')],
  ...Object.keys(PROCESSES).map((who) => [
    who,
    ...faults.map((fault) => signOf(`${who}:${fault}` as CellName, runOf(`${who}:${fault}` as CellName))),
  ]),
])}

${Object.entries(FAULTS)
  .map(([name, what]) => `- **${name}**: ${what}`)
  .join('\n')}

${Object.entries(PROCESSES)
  .map(([who, what]) => `## ${capital(what)}\n\n${sectionOf(who, runOf)}`)
  .join('\n\n')}
`;
}

function sectionOf(who: string, runOf: (name: CellName) => ResultRow | undefined): string {
  const names = CELL_NAMES.filter((name) => name.startsWith(`${who}:`));
  return table([
    ['fault', 'promise', 'how it is made', 'shown by'],
    ['---', '---', '---', '---'],
    ...names.map((name) => {
      const cell = CELLS[name];
      const fault = name.split(':')[1]!;
      if ('not' in cell) return [fault, `cannot be: ${cell.not}`, '', ''];
      return [
        fault,
        cell.promise,
        cell.made ?? (cell.notMade === undefined ? 'not yet' : `not by the matrix: ${cell.notMade}`),
        shownBy(runOf(name), cell.test),
      ];
    }),
  ]);
}

function shownBy(run: ResultRow | undefined, test: string | undefined): string {
  const parts = [...(run === undefined ? [] : [runText(run)]), ...(test === undefined ? [] : [`\`${test}\``])];
  return parts.length === 0 ? 'never run' : parts.join('; ');
}

function runText({ date, commit, held, figures }: ResultRow): string {
  const { breaches, completed_jobs: completed, claimed_again: again, added_again: added } = figures;
  return `${date}, ${commit ?? 'commit not noted'}: ${held === true ? 'held' : `**${breaches} breaches**`}, ${completed} jobs, ${again} claimed again, ${added} added again`;
}

function signOf(name: CellName, run: ResultRow | undefined): string {
  if ('not' in CELLS[name]) return '–';
  if (run !== undefined) return run.held === true ? '✓' : '✗';
  return testOf(name) === undefined ? '' : 't';
}

function testOf(name: CellName): string | undefined {
  const cell = CELLS[name];
  return 'not' in cell ? undefined : cell.test;
}

function table(rows: readonly (readonly string[])[]): string {
  return rows.map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}

function capital(text: string): string {
  return text.startsWith('`') ? text : text[0]!.toUpperCase() + text.slice(1);
}
