// One command for a GPU machine: runs the parts one after the other, each in a process of its own with a limit, and
// writes what they found as it comes (rows.jsonl) and at the end as a page (results.md), with machine, driver and
// commit. A part that fails or runs out of time leaves its error among the rows; the others go on.
//
//   node --conditions=@shoal/source bench/gpu/main.ts [options]
//
//   --out DIR           where to; default $OUT, else the folder for temporary files
//   --steps NAMES       names and groups with commas between them, or "all"; default all. May be given several times: a
//                       name that has a comma itself is given alone
//   --device DEVICE     default gpu:0
//   --small             a short form, whose figures mean nothing
//   --seconds SECONDS   for all steps together; those that do not fit are not run; default 570
//   --commit HASH       for the records; default unknown
//   -h, --help          prints this

import { execFileSync, spawn } from 'node:child_process';
import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readArguments, refuse } from '../rig/arguments.ts';
import { STEPS, type Step } from './steps.ts';
import { page } from './page.ts';

const args = readArguments(
  import.meta.url,
  {
    out: { type: 'string' },
    steps: { type: 'string', multiple: true, default: ['all'] },
    device: { type: 'string', default: 'gpu:0' },
    small: { type: 'boolean', default: false },
    seconds: { type: 'string', default: '570' },
    commit: { type: 'string', default: 'unknown' },
  },
  groups(),
);
const steps = chosen();
const out = args.out ?? process.env['OUT'] ?? tmpdir();
const endMs = performance.now() + Number(args.seconds) * 1000;
mkdirSync(out, { recursive: true });
const rowsPath = join(out, 'rows.jsonl');
const logPath = join(out, 'log.txt');
const machine = {
  part: 'machine',
  at: new Date().toISOString(),
  commit: args.commit,
  cpu: cpus()[0]?.model,
  cores: availableParallelism(),
  node: process.version,
  device: args.device,
  isSmall: args.small,
  gpus: gpus(),
};
keep(JSON.stringify(machine));

for (const step of steps) {
  const leftSeconds = (endMs - performance.now()) / 1000;
  if (leftSeconds < step.seconds * 0.5) {
    keep(JSON.stringify({ part: step.name, failed: `not run: ${Math.round(leftSeconds)} s were left` }));
    continue;
  }
  await run(step, Math.min(leftSeconds, step.seconds * 2));
}
writeFileSync(join(out, 'results.md'), page(readFileSync(rowsPath, 'utf8')));
process.exit(0);

function groups(): string {
  const names = [...new Set(STEPS.map(({ group }) => group))];
  const lines = names.map(
    (name) =>
      `  ${name.padEnd(10)}  ${[...new Set(STEPS.filter(({ group }) => group === name).map((step) => step.name))].join(
        '; ',
      )}\n`,
  );
  return `\nGroups and their steps:\n${lines.join('')}`;
}

/** The name of a step may have commas of its own. */
function chosen(): readonly Step[] {
  const names = args.steps.flatMap((asked) => (STEPS.some(({ name }) => name === asked) ? [asked] : asked.split(',')));
  if (names.includes('all')) return STEPS;
  const unknown = names.filter((name) => !STEPS.some((step) => step.name === name || step.group === name));
  if (unknown.length > 0) refuse(`There is no step ${unknown.join(', ')}; --help says what there is`);
  return STEPS.filter((step) => names.includes(step.name) || names.includes(step.group));
}

async function run({ name, file, args: own = [], environment = {} }: Step, seconds: number): Promise<void> {
  const startedMs = performance.now();
  process.stderr.write(`== ${name}\n`);
  const path = fileURLToPath(new URL(`./${file}`, import.meta.url));
  const common = ['--device', args.device, '--scratch', tmpdir(), ...(args.small ? ['--small'] : [])];
  const [program, programArgs] = file.endsWith('.py')
    ? ['python3', [path]]
    : [process.execPath, ['--conditions=@shoal/source', '--disable-warning=ExperimentalWarning', path]];
  // a later --device wins: a step may name its own. What co_tenant.py starts is told the rest by it.
  const child = spawn(program!, [...(programArgs as string[]), ...common, ...own], {
    env: { ...process.env, NODE: process.execPath, GPU_BENCH_ROWS: rowsPath, ...environment },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  });
  let unfinished = '';
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    const lines = (unfinished + chunk).split('\n');
    unfinished = lines.pop() ?? '';
    for (const line of lines) keep(line.startsWith('{') ? `{"step":${JSON.stringify(name)},${line.slice(1)}` : line);
  });
  const complaints: string[] = [];
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
    appendFileSync(logPath, `[${name}] ${chunk}`);
    complaints.push(chunk);
  });
  const patience = setTimeout(() => process.kill(-child.pid!, 'SIGKILL'), seconds * 1000); // with everything it started
  const ending = await new Promise<string | undefined>((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('close', (code, signal) => resolve(code === 0 ? undefined : (signal ?? `exit code ${String(code)}`)));
  });
  clearTimeout(patience);
  try {
    process.kill(-child.pid!, 'SIGKILL'); // whatever it left running
  } catch {
    // nothing
  }
  if (ending !== undefined)
    keep(JSON.stringify({ part: name, failed: ending, said: complaints.join('').slice(-1500) }));
  process.stderr.write(
    `   ${Math.round((performance.now() - startedMs) / 1000)} s${ending === undefined ? '' : `, ${ending}`}\n`,
  );
}

function keep(line: string): void {
  if (line.startsWith('{')) appendFileSync(rowsPath, `${line}\n`);
  else appendFileSync(logPath, `${line}\n`);
  process.stdout.write(`${line.slice(0, 700)}\n`);
}

function gpus(): readonly string[] {
  try {
    return execFileSync(
      'nvidia-smi',
      ['--query-gpu=name,driver_version,memory.total,power.limit', '--format=csv,noheader'],
      { encoding: 'utf8', timeout: 10_000 },
    )
      .trim()
      .split('\n');
  } catch {
    return [];
  }
}
