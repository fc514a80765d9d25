import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { asked, compare, type Order } from './compare.ts';
import { compareRuns, figuresOf, report } from './compare/figures.ts';
import { findBench } from './compare/other-tree.ts';

let root: string;
let said: string[];

const git = (...args: string[]): string =>
  execFileSync('git', ['-C', root, '-c', 'user.name=a', '-c', 'user.email=a@example.org', ...args], {
    encoding: 'utf8',
  });

function write(path: string, text: string): void {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), text);
}

/** A bench whose rate comes from a workspace of its tree, through a package that both trees want. */
const BENCH = `// A bench.\nimport { factor } from 'dep';\nimport { rate } from '@x/lib';
console.log('warming up');
console.log(JSON.stringify({ textsPerSecond: factor * rate, p99Ms: 5, args: process.argv.slice(2).length }));\n`;
const LOCK = {
  packages: {
    '': { name: 'tree' },
    'libs/lib': { name: '@x/lib' },
    'node_modules/@x/lib': { resolved: 'libs/lib', link: true },
    'node_modules/dep': { version: '1.0.0', integrity: 'sha512-x' },
  },
};

function writeLib(rate: number): void {
  write('libs/lib/package.json', '{"name":"@x/lib","type":"module","exports":"./index.js"}');
  write('libs/lib/index.js', `export const rate = ${rate};\n`);
}

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'shoal-compare-test-'));
  said = [];
  write('.gitignore', 'node_modules/\n');
  write('package-lock.json', JSON.stringify(LOCK));
  write('bench/a.ts', BENCH);
  writeLib(100);
  git('init', '--quiet', '--initial-branch', 'main');
  git('add', '.');
  git('commit', '--quiet', '--message', 'the tree before');
  write('node_modules/dep/package.json', '{"name":"dep","type":"module","exports":"./index.js"}');
  write('node_modules/dep/index.js', 'export const factor = 10;\n');
  mkdirSync(join(root, 'node_modules/@x'));
  symlinkSync('../../libs/lib', join(root, 'node_modules/@x/lib'));
  // The tree after: its benches lie in rooms.
  rmSync(join(root, 'bench/a.ts'));
  write('bench/device/a.ts', BENCH);
});
afterEach(() => rmSync(root, { recursive: true }));

function order(change: Partial<Order> = {}): Order {
  return {
    root,
    ref: 'main',
    bench: 'device/a.ts',
    args: [],
    times: 3,
    judged: [],
    keep: false,
    say: (line) => said.push(line),
    ...change,
  };
}

test('a tree that does nine tenths is called slower, runs take turns, and the other tree is gone afterwards', () => {
  writeLib(90);
  const [rate, p99, args] = compare(order({ args: ['--seconds', '1'] }));
  expect(rate).toEqual({
    name: 'textsPerSecond',
    before: [1_000, 1_000, 1_000],
    after: [900, 900, 900],
    medianBefore: 1_000,
    medianAfter: 900,
    ratio: 0.9,
    isLessBetter: false,
    holds: false,
  });
  expect(p99).toMatchObject({ name: 'p99Ms', ratio: 1, holds: undefined });
  expect(args).toMatchObject({ before: [2, 2, 2], after: [2, 2, 2] }); // the bench got what was for it
  expect(said.map((line) => line.split(',')[0])).toEqual(['before', 'after', 'after', 'before', 'before', 'after']);
  expect(git('worktree', 'list').trim().split('\n')).toHaveLength(1);
});

test('a figure that is asked for is judged, and no other one', () => {
  writeLib(90);
  expect(compare(order({ judged: ['p99Ms'], times: 1 })).map(({ name, holds }) => [name, holds])).toEqual([
    ['textsPerSecond', undefined],
    ['p99Ms', true],
    ['args', undefined],
  ]);
  expect(() => compare(order({ judged: ['p50Ms'], times: 1 }))).toThrow(
    'no figure of both trees is called p50Ms; there is textsPerSecond, p99Ms, args',
  );
});

test('packages that this tree has in addition do not matter, and another version is installed', () => {
  writeLib(120);
  const locked = (dep: object): string =>
    JSON.stringify({
      packages: { ...LOCK.packages, 'node_modules/dep': dep, 'node_modules/more': { version: '2.0.0' } },
    });
  write('package-lock.json', locked(LOCK.packages['node_modules/dep']));
  expect(compare(order({ times: 1 }))[0]).toMatchObject({ before: [1_000], after: [1_200], holds: true });
  expect(said.filter((line) => line.includes('npm ci'))).toEqual([]);
  write('package-lock.json', locked({ version: '1.0.1', integrity: 'sha512-y' }));
  expect(() => compare(order({ times: 1 }))).toThrow('npm ci failed in the other tree'); // there is no such package
  expect(git('worktree', 'list').trim().split('\n')).toHaveLength(1);
});

test('with keep the other tree stays and is named', () => {
  compare(order({ keep: true, times: 1 }));
  const path = / stays in (.*);/.exec(said.at(-1)!)![1]!;
  expect(existsSync(join(path, 'bench/a.ts'))).toBe(true);
  rmSync(dirname(path), { recursive: true });
});

test('what fails is told, and leaves no tree behind', () => {
  expect(() => compare(order({ ref: 'nowhere' }))).toThrow('nowhere cannot be checked out');
  expect(() => compare(order({ bench: 'b.ts' }))).toThrow('there is no b.ts in');
  write('bench/device/a.ts', 'console.error("no server"); process.exit(3);\n');
  expect(() => compare(order({ times: 1 }))).toThrow(
    'bench/device/a.ts printed no figures and ended with 3: no server',
  );
  expect(git('worktree', 'list').trim().split('\n')).toHaveLength(1);
});

test('a bench is found by its path, else by its name; bench/gpu has names of its own', () => {
  for (const path of ['similarity/similarity.ts', 'gpu/similarity.ts', 'queue/rates.ts', 'device/rates.ts'])
    write(`bench/${path}`, '');
  expect(findBench(root, 'similarity')).toBe(join('bench', 'similarity/similarity.ts'));
  expect(findBench(root, 'gpu/similarity.ts')).toBe(join('bench', 'gpu/similarity.ts'));
  expect(findBench(root, 'bench/queue/rates.ts')).toBe(join('bench', 'queue/rates.ts'));
  expect(() => findBench(root, 'rates')).toThrow('rates.ts is any of device/rates.ts, queue/rates.ts');
});

test('figures are the numbers of the last JSON, elements of arrays by what names them, rounds by their median', () => {
  const printed = {
    bench: 'x',
    rows: [
      { rate: '800x64', p50: 27, told: { p99: 40 } },
      { rate: '5000x1', p50: 70 },
    ],
    shares: [3, 1, 2],
    none: [],
    label: 'quiet',
  };
  const figures = { 'rows.800x64.p50': 27, 'rows.800x64.told.p99': 40, 'rows.5000x1.p50': 70, shares: 2 };
  expect(figuresOf(`{"early":1}\nready\n${JSON.stringify(printed)}\n`)).toEqual(figures);
  expect(figuresOf(JSON.stringify(printed, null, 2))).toEqual(figures);
  expect(figuresOf('[{"n":1},{"n":2}]')).toEqual({ '0.n': 1, '1.n': 2 });
  expect(figuresOf('nothing of use\n')).toEqual({});
});

test.each([
  ['rate', [100, 101, 99], [97, 97, 97], true], // 0.97
  ['rate', [100, 101, 99], [96, 96, 96], false],
  ['rate', [100, 120, 90], [92, 91, 93], true], // below 0.97 and inside the runs before
  ['p99Ms', [100, 101, 99], [103, 103, 103], true],
  ['p99Ms', [100, 101, 99], [104, 104, 104], false], // less is better
  ['p99Ms', [100, 120, 99], [118, 119, 117], true],
])('%s of %j before and %j after: holds is %s', (name, before, after, holds) => {
  const runs = (values: readonly number[]) => values.map((value) => ({ [name]: value }));
  const comparisons = compareRuns(runs(before), runs(after), [name]);
  expect(comparisons).toMatchObject([{ name, holds }]);
  expect(report(comparisons)).toContain(holds ? ': holds\n' : ': SLOWER\n');
});

test('what is the same in every run and is not judged is not printed', () => {
  const runs = [
    { cores: 2, rate: 5, memory: 7 },
    { cores: 2, rate: 5, memory: 8 },
  ];
  expect(report(compareRuns(runs, runs, []))).toBe(
    [
      'rate: 5 before, 5 after, 1.000 ×: holds',
      '  before 5, 5 (5 to 5)',
      '  after  5, 5',
      'memory: 7.5 before, 7.5 after, 1.000 ×: not judged',
      '  before 7, 8 (7 to 8)',
      '  after  7, 8',
      '',
    ].join('\n'),
  );
});

test('options of the comparison come before the ref, those of the bench behind its name', () => {
  expect(
    asked(['--times', '3', '--figure', 'a.b', '--keep', 'main', 'queue/a.ts', '--times', '9'], root).order,
  ).toMatchObject({
    ref: 'main',
    bench: 'queue/a.ts',
    args: ['--times', '9'],
    times: 3,
    judged: ['a.b'],
    keep: true,
  });
  expect(asked(['main', 'a'], root).order).toMatchObject({ times: 5, judged: [], keep: false, args: [] });
  expect(() => asked(['main'], root)).toThrow('a ref and a bench are needed');
  expect(() => asked(['--times', 'many', 'main', 'a'], root)).toThrow('--times many is no number of runs');
});

test('the command prints its usage, and ends with 2 where it cannot compare', () => {
  const file = fileURLToPath(new URL('compare.ts', import.meta.url));
  const run = (...args: string[]) => spawnSync(process.execPath, [file, ...args], { encoding: 'utf8' });
  expect(run('--help')).toMatchObject({
    status: 0,
    stdout: expect.stringContaining('npm run bench:compare -- [--times 5]') as string,
  });
  expect(run('--halp')).toMatchObject({
    status: 2,
    stdout: '',
    stderr: expect.stringContaining("Unknown option '--halp'") as string,
  });
});
