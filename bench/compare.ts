// Is this tree slower than another one? Runs a bench in both by turns and compares what it prints.
//
//   npm run bench:compare -- [--times 5] [--figure NAME]… [--keep] <ref> <bench> [what the bench takes]
//
//   npm run bench:compare -- main device/sim-device.ts --seconds 8
//   npm run bench:compare -- --times 3 --figure rows.800x64.p99 1aaa68f queue/queue-rates.ts --rates 800x64
//
// <bench> is a path inside bench/. A tree in which it lies elsewhere is searched for a file of that name, because
// benches move; what lies in bench/gpu is looked for there alone. The other tree is a worktree of its own in the
// temporary folder: packages are linked to this tree's where it has all that the other's lock file names, and
// installed by `npm ci` otherwise; native code is built where the tree knows how. It is removed at the end, unless
// --keep.
//
// Figures are the numbers of the last JSON on standard output, by path; an array of numbers (rounds) counts with its
// median. --json is passed where the bench's comment names it. Printed for each figure: both medians, every run, after
// ÷ before, and from where to where the runs before went. A figure that is a rate or a share is judged, or those that
// --figure names (for a name that ends in a time, a size or a cost less is better): it holds at 0.97 of before, or
// when the median after lies within the runs before. Exit 1 when one does not hold.

import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { compareRuns, figuresOf, report, type Comparison, type Figures } from './compare/figures.ts';
import { findBench, openOtherTree, prepareNative, preparePackages } from './compare/other-tree.ts';

const ROOT = fileURLToPath(new URL('../', import.meta.url));

export interface Order {
  readonly root: string;
  readonly ref: string;
  readonly bench: string;
  readonly args: readonly string[];
  readonly times: number;
  /** Paths of figures that are judged; empty: every rate and share. */
  readonly judged: readonly string[];
  readonly keep: boolean;
  readonly say: (line: string) => void;
}

/** Measures both trees by turns. Each turn begins with the tree that the one before ended with. */
export function compare({ root, ref, bench, args, times, judged, keep, say }: Order): readonly Comparison[] {
  const other = openOtherTree(root, ref);
  try {
    const sides = {
      before: { tree: other.path, file: findBench(other.path, bench), runs: [] as Figures[] },
      after: { tree: root, file: findBench(root, bench), runs: [] as Figures[] },
    };
    preparePackages(other.path, root, say);
    for (const { tree } of Object.values(sides)) prepareNative(tree, say);
    for (let turn = 0; turn < times; turn++) {
      for (const side of turn % 2 === 0 ? (['before', 'after'] as const) : (['after', 'before'] as const)) {
        const { tree, file, runs } = sides[side];
        runs.push(runBench(tree, file, args));
        say(`${side}, run ${turn + 1} of ${times}: ${Object.keys(runs.at(-1)!).length} figures`);
      }
    }
    return compareRuns(sides.before.runs, sides.after.runs, judged);
  } finally {
    if (keep) say(`the tree of ${ref} stays in ${other.path}; git worktree remove --force takes it away`);
    else other.close();
  }
}

function runBench(tree: string, file: string, args: readonly string[]): Figures {
  const comment = /^(\/\/.*\n|\/\*[\s\S]*?\*\/)+/.exec(readFileSync(join(tree, file), 'utf8'))?.[0] ?? '';
  const json = /--json(?![\w-])/.test(comment) && !args.includes('--json') ? ['--json'] : [];
  const { status, signal, stdout, stderr } = spawnSync(
    process.execPath,
    ['--conditions=@shoal/source', file, ...args, ...json],
    {
      cwd: tree,
      encoding: 'utf8',
      maxBuffer: 1 << 28,
    },
  );
  const figures = figuresOf(stdout);
  // A bar that was missed ends a bench with 1, and its figures are as good.
  if (Object.keys(figures).length > 0) return figures;
  throw new Error(`${file} printed no figures and ended with ${signal ?? status}: ${stderr.slice(-2_000)}`);
}

interface Asked {
  readonly order: Order;
  readonly isHelp: boolean;
}

function tell(line: string): void {
  process.stderr.write(`${line}\n`);
}

/** Options of this program come before <ref>; what comes behind <bench> is the bench's. */
export function asked(argv: readonly string[], root = ROOT): Asked {
  const end = endOfOptions(argv);
  const { values } = parseArgs({
    args: argv.slice(0, end),
    options: {
      times: { type: 'string', default: '5' },
      figure: { type: 'string', multiple: true, default: [] },
      keep: { type: 'boolean', default: false },
      help: { type: 'boolean', short: 'h', default: false },
    },
  });
  const [ref = '', bench = '', ...args] = argv.slice(end);
  const times = Number(values.times);
  if (!values.help && bench === '')
    throw new Error('a ref and a bench are needed: npm run bench:compare -- <ref> <bench>');
  if (!Number.isInteger(times) || times < 1) throw new Error(`--times ${values.times} is no number of runs`);
  return {
    isHelp: values.help,
    order: { root, ref, bench, args, times, judged: values.figure, keep: values.keep, say: tell },
  };
}

function endOfOptions(argv: readonly string[]): number {
  for (let at = 0; at < argv.length; at++) {
    if (argv[at] === '--times' || argv[at] === '--figure') at++;
    else if (!argv[at]!.startsWith('-')) return at;
  }
  return argv.length;
}

function main(): void {
  const { order, isHelp } = asked(process.argv.slice(2));
  if (isHelp) return void process.stdout.write(usage());
  const comparisons = compare(order);
  process.stdout.write(report(comparisons));
  if (comparisons.some(({ holds }) => holds === false)) process.exitCode = 1;
}

function usage(): string {
  const lines = readFileSync(new URL(import.meta.url), 'utf8').split('\n');
  const end = lines.findIndex((line) => !line.startsWith('//'));
  return `${lines
    .slice(0, end)
    .map((line) => line.replace(/^\/\/ ?/, ''))
    .join('\n')}\n`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  process.once('SIGINT', () => undefined); // the bench that runs ends by it, and then the tree is removed
  try {
    main();
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n`);
    process.exitCode = 2;
  }
}
