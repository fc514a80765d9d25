// One command for a GPU machine: runs the parts one after the other, each in a process of its own with a limit, and writes what
// they found as it comes (rows.jsonl) and at the end as a page (results.md), with machine, driver and commit. A part that fails
// or runs out of time leaves its error among the rows; the others go on.
//
//   node --conditions=@shoal/source bench/gpu/main.ts --out DIR [--steps first,second|all] [--device gpu:0] [--small] [--seconds 570] [--commit HASH]
//   node --conditions=@shoal/source bench/gpu/main.ts --help

import { execFileSync, spawn } from 'node:child_process';
import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { STEPS, type Step } from './steps.ts';
import { page } from './page.ts';

const args = given();
const steps = chosen();
const out = args.out ?? process.env['OUT'] ?? tmpdir();
const endMs = performance.now() + Number(args.seconds) * 1000;
mkdirSync(out, { recursive: true });
const rowsPath = join(out, 'rows.jsonl');
const logPath = join(out, 'log.txt');
const machine = { part: 'machine', at: new Date().toISOString(), commit: args.commit, cpu: cpus()[0]?.model, cores: availableParallelism(), node: process.version, device: args.device, isSmall: args.small, gpus: gpus() };
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

function given() {
  try {
    const { values } = parseArgs({
      options: {
        out: { type: 'string' }, steps: { type: 'string', default: 'all' }, device: { type: 'string', default: 'gpu:0' }, small: { type: 'boolean', default: false },
        seconds: { type: 'string', default: '570' }, commit: { type: 'string', default: 'unknown' }, help: { type: 'boolean', short: 'h', default: false },
      },
    });
    if (!values.help) return values;
  } catch (error) {
    return refuse((error as Error).message.split('. ', 1)[0]!); // behind it: how to write a positional argument, of which there are none
  }
  process.stdout.write(usage());
  process.exit(0);
}

function usage(): string {
  const groups = [...new Set(STEPS.map(({ group }) => group))];
  const lines = groups.map((group) => `  ${group.padEnd(10)}  ${STEPS.filter((step) => step.group === group).map(({ name }) => name).join('; ')}`);
  return `Runs the benches of a GPU machine one after the other; writes rows.jsonl, results.md and log.txt.

Usage: node --conditions=@shoal/source bench/gpu/main.ts [options]

  --out DIR           where to; default $OUT, else the folder for temporary files
  --steps NAMES       names and groups with commas between them; default all
  --device DEVICE     default gpu:0
  --small             a short form, whose figures mean nothing
  --seconds SECONDS   for all steps together; those that do not fit are not run; default 570
  --commit HASH       for the records; default unknown
  -h, --help          prints this

Groups and their steps:
${lines.join('\n')}
`;
}

function refuse(reason: string): never {
  process.stderr.write(`${reason.replace(/\.$/, '')}; --help says what there is\n`);
  process.exit(2);
}

function chosen(): readonly Step[] {
  if (args.steps === 'all') return STEPS;
  const names = args.steps.split(',');
  const unknown = names.filter((name) => !STEPS.some((step) => step.name === name || step.group === name));
  if (unknown.length > 0) refuse(`There is no step ${unknown.join(', ')}`);
  return STEPS.filter((step) => names.includes(step.name) || names.includes(step.group));
}

async function run({ name, file, args: own = [], environment = {} }: Step, seconds: number): Promise<void> {
  const startedMs = performance.now();
  process.stderr.write(`== ${name}\n`);
  const path = fileURLToPath(new URL(`./${file}`, import.meta.url));
  const common = ['--device', args.device, '--scratch', tmpdir(), ...(args.small ? ['--small'] : [])];
  const [program, programArgs] = file.endsWith('.py') ? ['python3', [path]] : [process.execPath, ['--conditions=@shoal/source', '--disable-warning=ExperimentalWarning', path]];
  // a later --device wins: a step may name its own. What co_tenant.py starts is told the rest by it.
  const child = spawn(program!, [...(programArgs as string[]), ...common, ...own], { env: { ...process.env, NODE: process.execPath, ...environment }, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
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
  if (ending !== undefined) keep(JSON.stringify({ part: name, failed: ending, said: complaints.join('').slice(-1500) }));
  process.stderr.write(`   ${Math.round((performance.now() - startedMs) / 1000)} s${ending === undefined ? '' : `, ${ending}`}\n`);
}

function keep(line: string): void {
  if (line.startsWith('{')) appendFileSync(rowsPath, `${line}\n`);
  else appendFileSync(logPath, `${line}\n`);
  process.stdout.write(`${line.slice(0, 700)}\n`);
}

function gpus(): readonly string[] {
  try {
    return execFileSync('nvidia-smi', ['--query-gpu=name,driver_version,memory.total,power.limit', '--format=csv,noheader'], { encoding: 'utf8', timeout: 10_000 }).trim().split('\n');
  } catch {
    return [];
  }
}
