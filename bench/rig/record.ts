/**
 * How a bench keeps what it measured: as a row of `bench/results/<bench>.jsonl`. The row is appended only when the
 * bench was started with `--record`; it is returned in any case. A machine that nobody has measured on before gets an
 * entry in `machines.json`, made of what it says about itself; its name, user and folders never get into a row.
 */

import { execFileSync } from 'node:child_process';
import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, totalmem } from 'node:os';
import { basename, dirname, isAbsolute, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  isHeld,
  problemsOfRow,
  readMachines,
  type Bar,
  type Machine,
  type Machines,
  type ResultRow,
} from './results.ts';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));

export interface Measured {
  /** The file of rows, from bench/results on, without its ending: sim-device, gpu/end-to-end. */
  readonly bench: string;
  readonly case: string;
  readonly figures: Readonly<Record<string, number>>;
  readonly bar?: Bar;
}

/** What a row says about where it comes from. Tests give their own. */
export interface Surroundings {
  /** The root of the repository that is measured, with its bench/results. */
  readonly root: string;
  readonly argv: readonly string[];
  readonly now: Date;
  readonly machine: Machine;
}

/** Makes a row of what was measured, and appends it when the command line has `--record`. */
export function record(measured: Measured, given: Partial<Surroundings> = {}): ResultRow {
  const { root, argv, now, machine } = {
    root: ROOT,
    argv: process.argv,
    now: new Date(),
    ...given,
    machine: given.machine ?? thisMachine(),
  };
  const folder = join(root, 'bench/results');
  const machines = readMachines(folder);
  const id = idOf(machine, machines);
  const known: Machines = { ...machines, [id]: machines[id] ?? machine };
  const { bench, case: what, figures, bar } = measured;
  const row: ResultRow = {
    date: now.toISOString().slice(0, 10),
    commit: commitOf(root),
    machine: id,
    command: commandOf(argv, root),
    case: what,
    figures,
    bar: bar ?? null,
    held: bar === undefined ? null : isHeld(figures, bar),
  };
  const problems = problemsOfRow(row, known);
  if (problems.length > 0) throw new Error(`the row of ${bench} is none: ${problems.join('; ')}`);
  if (argv.includes('--record')) {
    if (machines[id] === undefined) writeFileSync(join(folder, 'machines.json'), `${JSON.stringify(known, null, 2)}\n`);
    append(join(folder, `${bench}.jsonl`), row);
  }
  return row;
}

function append(path: string, row: ResultRow): void {
  mkdirSync(dirname(path), { recursive: true });
  appendFileSync(path, `${JSON.stringify(row)}\n`);
}

/** The commit of a tree, with "+dirty" when files of it have changed since, rows apart; null where there is no git. */
export function commitOf(root: string): string | null {
  const git = (...args: string[]): string =>
    execFileSync('git', ['-C', root, ...args], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  try {
    const changed = git('status', '--porcelain', '--', '.', ':(exclude)bench/results');
    return `${git('rev-parse', '--short=7', 'HEAD')}${changed === '' ? '' : '+dirty'}`;
  } catch {
    return null;
  }
}

/** The command line as others would type it in the root: without --record, addresses and folders of this machine. */
export function commandOf(argv: readonly string[], root: string): string {
  const [, script = '', ...args] = argv;
  const said = args.filter((arg) => arg !== '--record').map((arg) => anonymous(arg, root));
  return [anonymous(script, root), ...said].join(' ');
}

function anonymous(arg: string, root: string): string {
  const [, option = '', value = ''] = /^(--[\w-]+=)?(.*)$/s.exec(arg)!;
  const kept = value.includes('://') ? 'URL' : isAbsolute(value) ? pathFrom(root, value) : value;
  return (
    option +
    (/^[\w./:,+@%…-]+$/.test(kept) ? kept : `'${kept.replaceAll(/\s+/g, ' ').replaceAll("'", String.raw`'\''`)}'`)
  );
}

function pathFrom(root: string, path: string): string {
  const inside = relative(root, path);
  return inside.startsWith('..') || isAbsolute(inside) ? basename(path) : inside.replaceAll(sep, '/');
}

/** The entry that says the same as this machine does and nothing about its neighbours, or a new name. */
export function idOf(machine: Machine, machines: Machines): string {
  const wanted = JSON.stringify(machine);
  const known = Object.keys(machines).find((id) => JSON.stringify(machines[id]) === wanted);
  if (known !== undefined) return known;
  const parts = [machine.cpu, machine.cores, machine.gpu, machine.gpus > 1 ? machine.gpus : null].filter(
    (part) => part !== null,
  );
  const name = parts
    .join('-')
    .toLowerCase()
    .replaceAll(/\([^)]*\)|[^a-z0-9]+/g, '-')
    .replaceAll(/-+/g, '-')
    .replaceAll(/^-|-$/g, '');
  for (let number = 1; ; number++) {
    const id = number === 1 ? name : `${name}-${number}`;
    if (machines[id] === undefined) return id;
  }
}

/** What this machine says about itself. What else runs on it is for people to add. */
export function thisMachine(): Machine {
  const cores = availableParallelism();
  const vectors = vectorsOf();
  const model = cpus()[0]?.model.trim() || 'unknown processor';
  const [gpu, driver, gpus] = gpusOf();
  return {
    kind:
      gpu === null
        ? `${cores} cores of ${familyOf(model)}${vectors === '' ? '' : `, ${vectors}`}`
        : gpu.replace(/^NVIDIA /, '').replace(/[ -]\d+ ?GB.*$/, ''),
    cpu: vectors === '' ? model : `${model} with ${vectors}`,
    cores,
    memory_gb: Math.max(1, Math.round(totalmem() / 1e9)),
    gpu,
    gpus,
    driver,
    neighbours: null,
  };
}

function familyOf(model: string): string {
  return model.includes('Xeon') ? 'a Xeon' : model.includes('EPYC') ? 'an EPYC' : model;
}

/** The widest vectors that kernels use here, as Linux tells; empty elsewhere. */
function vectorsOf(): string {
  try {
    const flags = /^flags\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1]?.split(' ') ?? [];
    return flags.includes('avx512f') ? 'AVX-512' : flags.includes('avx2') ? 'AVX2' : '';
  } catch {
    return '';
  }
}

function gpusOf(): [gpu: string | null, driver: string | null, count: number] {
  try {
    const query = ['--query-gpu=name,driver_version', '--format=csv,noheader'];
    const lines = execFileSync('nvidia-smi', query, {
      encoding: 'utf8',
      timeout: 10_000,
      stdio: ['ignore', 'pipe', 'ignore'],
    })
      .trim()
      .split('\n');
    const [gpu, driver] = (lines[0] ?? '').split(',').map((part) => part.trim());
    return gpu && driver ? [gpu, driver, lines.length] : [null, null, 0];
  } catch {
    return [null, null, 0];
  }
}
