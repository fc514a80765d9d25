// How every bench answers before anything runs: what is no bench has no usage in the comment at its top.

import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test, vi } from 'vitest';

const FOLDER = fileURLToPath(new URL('../', import.meta.url));
const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const BENCHES = ['queue/', 'device/', 'similarity/', 'chaos/', 'peers/', 'gpu/', 'rig/']
  .flatMap((folder) =>
    readdirSync(FOLDER + folder)
      .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
      .map((file) => folder + file),
  )
  .filter(isBench);

function isBench(file: string): boolean {
  return commentOf(file)
    .split('\n')
    .some((line) => new RegExp(`^ *(node .*/)?${file.split('/').at(-1)}( |$)`).test(line));
}

function commentOf(file: string): string {
  return /^(\/\/.*\n)+/.exec(readFileSync(FOLDER + file, 'utf8'))?.[0].replaceAll(/^\/\/ ?/gm, '') ?? '';
}

interface Answer {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

class Exit extends Error {
  readonly code: number;

  constructor(code: number) {
    super(`exit code ${code}`);
    this.code = code;
  }
}

/**
 * What the bench says and ends with before it does anything. In this process: 84 starts, each of which loads half of
 * the workspace, take 80 s of a core.
 */
async function ask(file: string, option: string): Promise<Answer> {
  const said = { stdout: '', stderr: '' };
  const [node, program] = process.argv;
  const spies = [
    vi.spyOn(process, 'argv', 'get').mockReturnValue([node!, program!, option]),
    vi.spyOn(process, 'exit').mockImplementation((code) => {
      throw new Exit(Number(code));
    }),
    ...(['stdout', 'stderr'] as const).map((stream) =>
      vi.spyOn(process[stream], 'write').mockImplementation((text) => {
        said[stream] += String(text);
        return true;
      }),
    ),
  ];
  try {
    // a module runs once under each name
    await import(/* @vite-ignore */ `${FOLDER}${file}?${process.hrtime.bigint()}`);
    throw new Error(`${file} ${option} ran to its end`);
  } catch (error) {
    if (!(error instanceof Exit)) throw error;
    return { code: error.code, ...said };
  } finally {
    for (const spy of spies) spy.mockRestore();
  }
}

test('there are benches', () => {
  expect(BENCHES).toEqual(
    expect.arrayContaining(['device/tokenizer.ts', 'device/freeze-passages.ts', 'gpu/main.ts', 'gpu/corpus.ts']),
  );
  expect(BENCHES.length).toBeGreaterThan(40);
});

test.each(BENCHES)(
  '%s prints its comment when asked for help, and refuses what it does not know in one line',
  async (file) => {
    expect(await ask(file, '--help')).toEqual({
      code: 0,
      stdout: expect.stringContaining(commentOf(file)) as string,
      stderr: '',
    });
    expect(await ask(file, '--halp')).toEqual({
      code: 2,
      stdout: '',
      stderr: expect.stringMatching(/^Unknown option '--halp'; there is (--[a-z0-9-]+, )*--help\n$/) as string,
    });
  },
);

test.each([
  ['--help', 0, commentOf('device/batch-budget.ts'), ''],
  [
    '--halp',
    2,
    '',
    "Unknown option '--halp'; there is --batches, --oracle-batches, --in-flight, --seed, --devices, --help\n",
  ],
])('%s in a process of its own ends with %i', (option, status, stdout, stderr) => {
  expect(
    spawnSync(
      process.execPath,
      [
        '--conditions=@shoal/source',
        '--disable-warning=ExperimentalWarning',
        `${FOLDER}device/batch-budget.ts`,
        option,
      ],
      { encoding: 'utf8' },
    ),
  ).toMatchObject({ status, stdout, stderr });
});

test('every file or folder that a source names relative to itself is there', () => {
  const sources = execFileSync('git', ['ls-files', '*.ts'], { cwd: ROOT, encoding: 'utf8' })
    .split('\n')
    .filter(Boolean);
  const named = sources.flatMap((file) =>
    [...readFileSync(ROOT + file, 'utf8').matchAll(/new URL\(\s*'([^'$]+)',\s*import\.meta\.url/g)].map(
      ([, path]) => [file, path!] as const,
    ),
  );
  expect(named.length).toBeGreaterThan(20);
  expect(named.filter(([file, path]) => !existsSync(new URL(path, `file://${ROOT}${file}`)))).toEqual([]);
});
