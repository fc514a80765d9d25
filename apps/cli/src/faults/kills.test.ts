// `shoal embed` of many texts, and SIGKILL in the middle of it: of the executor, the worker, the private queue server
// and the command itself. Every time the run is finished or resumed with the same rows in the same order as a quiet
// one, and nothing is left running afterwards. How long each death held the run up is printed.

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { programOf } from '@shoal/core/testing';
import { cacheFolder } from '@shoal/core';
import { openGraph, openModel } from '@shoal/models';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
/** Some eight jobs to begin with, and as many as it takes that the last two thirds of a run last so long. More at night. */
let texts = isNightly ? 3_000 : 480;
const REST_MS = 600;
const DIMS = 384;
/** After a command that was killed the private server waits a while for another; a minute later nothing may be left. */
const NOTHING_LEFT_MS = 60_000;
const { main: MAIN, execArgv } = programOf('cli');

const folder = mkdtempSync(join(tmpdir(), 'shoal-kills-'));
const cacheDir = join(folder, 'cache');
const input = join(folder, 'texts.txt');
let quiet: Float32Array;
let quietMs: number;

type Role = 'executor' | 'worker' | 'server' | 'supervisor' | 'command';

/** Processes of this test, told by the cache folder in their environment or arguments. */
function processes(): { pid: number; role: Role }[] {
  return readdirSync('/proc').flatMap((entry) => {
    if (!/^\d+$/.test(entry) || Number(entry) === process.pid) return [];
    try {
      const command = readFileSync(`/proc/${entry}/cmdline`, 'utf8').replaceAll('\0', ' ');
      if (
        !readFileSync(`/proc/${entry}/environ`, 'utf8').includes(`SHOAL_CACHE_DIR=${cacheDir}\0`) &&
        !command.includes(cacheDir)
      )
        return [];
      const role = roleOf(command);
      return role === undefined ? [] : [{ pid: Number(entry), role }];
    } catch {
      return []; // gone meanwhile, or not ours to read
    }
  });
}

function roleOf(command: string): Role | undefined {
  if (command.includes('executor-main')) return 'executor';
  if (command.includes('cpu-worker')) return 'worker';
  if (command.includes('supervisor')) return 'supervisor';
  if (/valkey-server|redis-server/.test(command)) return 'server';
  return /apps\/cli|programs\/cli/.test(command) ? 'command' : undefined;
}

interface Run {
  readonly child: ChildProcess;
  readonly ended: Promise<{ code: number | null; signal: NodeJS.Signals | null; ms: number }>;
  readonly stderr: () => string;
}

function embed(output: string, ...flags: string[]): Run {
  const startedMs = performance.now();
  const child = spawn(process.execPath, [...execArgv, MAIN, 'embed', input, '-o', output, ...flags], {
    env: { ...process.env, SHOAL_CACHE_DIR: cacheDir, REDIS_URL: '', SHOAL_REDIS_URL: '', SHOAL_LOG_LEVEL: 'warn' },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let stderr = '';
  child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  const ended = once(child, 'exit').then(
    ([code, signal]) => ({ code, signal, ms: performance.now() - startedMs }) as Awaited<Run['ended']>,
  );
  return { child, ended, stderr: () => stderr };
}

/**
 * Bytes already written of an output that is not there yet. Files are replaced meanwhile: one that was listed may be
 * gone.
 */
function writtenBytes(output: string): number {
  const name = output.slice(folder.length + 1);
  return readdirSync(folder)
    .filter((file) => file !== name && file.includes(name) && !file.endsWith('.json'))
    .reduce((sum, file) => sum + (statSync(join(folder, file), { throwIfNoEntry: false })?.size ?? 0), 0);
}

/** Resolves when about a third of the rows are in the unfinished output. */
async function midway(output: string, run: Run): Promise<void> {
  while (writtenBytes(output) < (texts / 3) * DIMS * 4) {
    if (run.child.exitCode !== null) throw new Error(`the run ended too early:\n${run.stderr()}`);
    await sleep(10);
  }
}

function kill(role: Role, signal: 'SIGKILL' | 'SIGSTOP' = 'SIGKILL'): void {
  const found = processes().filter((candidate) => candidate.role === role);
  expect(found, `one ${role} is running`).toHaveLength(1);
  process.kill(found[0]!.pid, signal);
}

function rows(output: string): Float32Array {
  const bytes = readFileSync(output);
  const headerBytes = 10 + bytes.readUInt16LE(8);
  expect(bytes.toString('latin1', 10, headerBytes)).toContain(`(${texts}, ${DIMS})`);
  return new Float32Array(Uint8Array.from(bytes.subarray(headerBytes)).buffer);
}

function expectQuietRows(output: string): void {
  const found = rows(output);
  let least = 1;
  for (let row = 0; row < texts; row++) {
    const [mine, other] = [found, quiet].map((all) => all.subarray(row * DIMS, (row + 1) * DIMS)) as [
      Float32Array,
      Float32Array,
    ];
    least = Math.min(least, dot(mine, other) / Math.sqrt(dot(mine, mine) * dot(other, other)));
  }
  expect(least).toBeGreaterThanOrEqual(0.999999);
}

function dot(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

async function nothingLeft(timeoutMs: number): Promise<number> {
  const startedMs = performance.now();
  while (processes().length > 0) {
    if (performance.now() - startedMs > timeoutMs) throw new Error(`still running: ${JSON.stringify(processes())}`);
    await sleep(100);
  }
  return performance.now() - startedMs;
}

const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`;

function writeTexts(): void {
  const words = readFileSync(fileURLToPath(new URL('../../../../GLOSSARY.md', import.meta.url)), 'utf8')
    .split(/[^A-Za-z]+/)
    .filter((word) => word.length > 2);
  writeFileSync(
    input,
    Array.from({ length: texts }, (_, i) =>
      Array.from({ length: 4 + (i % 13) }, (_unused, k) => words[(i * 7 + k * 31) % words.length]).join(' '),
    ).join('\n'),
  );
}

/** Embeds all texts; how long it took once a third of them was there. */
async function runQuietly(): Promise<number> {
  const output = join(folder, 'quiet.npy');
  rmSync(output, { force: true });
  const run = embed(output);
  const third = midway(output, run).then(
    () => performance.now(),
    () => undefined, // it was over before anybody saw a third of it
  );
  const { code, ms } = await run.ended;
  const endedMs = performance.now();
  if (code !== 0) throw new Error(`the quiet run failed:\n${run.stderr()}`);
  quietMs = ms;
  quiet = rows(output);
  return endedMs - ((await third) ?? endedMs);
}

beforeAll(async () => {
  const shared = cacheFolder(process.env['SHOAL_CACHE_DIR']);
  await openGraph(await openModel('minilm', { cacheDir: shared }), { cacheDir: shared });
  mkdirSync(cacheDir, { recursive: true });
  for (const part of ['models', 'graphs'])
    if (existsSync(join(shared, part))) symlinkSync(join(shared, part), join(cacheDir, part));
  for (writeTexts(); (await runQuietly()) < REST_MS; writeTexts()) texts *= 4;
});

afterEach(() => {
  for (const { pid } of processes()) process.kill(pid, 'SIGKILL');
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

if (!isNightly) console.warn('SIGKILL of executor and server are tried at night (npm run test:nightly)');

describe('SIGKILL in the middle of a run', () => {
  test.each(isNightly ? (['executor', 'worker', 'server'] as const) : (['worker'] as const))(
    'of the %s: the run is finished with the same rows',
    async (role) => {
      const output = join(folder, `${role}.npy`);
      const run = embed(output);
      await midway(output, run);
      kill(role);
      expect(existsSync(output), 'it is killed in the middle of the run').toBe(false);
      const { code, ms } = await run.ended;
      expect([code, run.stderr()]).toEqual([0, expect.any(String)]);
      expectQuietRows(output);
      const goneMs = await nothingLeft(NOTHING_LEFT_MS);
      console.log(
        `SIGKILL of the ${role}: run ${seconds(ms)} (quiet ${seconds(quietMs)}, pause ` +
          `${seconds(ms - quietMs)}), nothing left after ${seconds(goneMs)}`,
      );
    },
  );

  test('of the command: --resume finishes with the same rows, and nothing outlives it', async () => {
    const output = join(folder, 'command.npy');
    const first = embed(output, '--resume');
    await midway(output, first);
    first.child.kill('SIGKILL');
    await first.ended;
    expect(existsSync(output)).toBe(false);
    const second = embed(output, '--resume');
    const { code, ms } = await second.ended;
    expect([code, second.stderr()]).toEqual([0, expect.any(String)]);
    expectQuietRows(output);
    await nothingLeft(NOTHING_LEFT_MS);
    console.log(`SIGKILL of the command: the resumed run took ${seconds(ms)} (a quiet one ${seconds(quietMs)})`);
  });

  test('of the command, never resumed: worker, executor and private server are gone within 60 s', async () => {
    const output = join(folder, 'orphan.npy');
    const run = embed(output);
    await midway(output, run);
    run.child.kill('SIGKILL');
    await run.ended;
    const goneMs = await nothingLeft(NOTHING_LEFT_MS);
    console.log(`SIGKILL of the command without resuming: nothing left after ${seconds(goneMs)}`);
    expect(existsSync(output)).toBe(false);
  });
});

test('SIGSTOP of the worker in the middle of a run: it is replaced, and the rows are the same', async ({ skip }) => {
  if (!isNightly) skip('half a minute of silence is for SHOAL_TEST_NIGHTLY=1');
  const output = join(folder, 'stopped.npy');
  const run = embed(output);
  await midway(output, run);
  kill('worker', 'SIGSTOP');
  expect(existsSync(output), 'it is stopped in the middle of the run').toBe(false);
  const { code, ms } = await run.ended;
  expect([code, run.stderr()]).toEqual([0, expect.stringContaining('the worker is gone; starting another one')]);
  expectQuietRows(output);
  await nothingLeft(NOTHING_LEFT_MS);
  console.log(`SIGSTOP of the worker: run ${seconds(ms)} (quiet ${seconds(quietMs)})`);
});

test('two commands at once share server and worker and both get the same rows', async () => {
  const outputs = [join(folder, 'one.npy'), join(folder, 'two.npy')];
  const runs = outputs.map((output) => embed(output));
  for (const run of runs) expect([(await run.ended).code, run.stderr()]).toEqual([0, expect.any(String)]);
  for (const output of outputs) expectQuietRows(output);
  await nothingLeft(NOTHING_LEFT_MS);
});
