// `shoal up` and `shoal worker` as a person runs them, on the GPUs of this machine:
//   all        one worker for each GPU and one on the CPU, by `shoal fleet status` and by the memory of each card;
//              vectors over HTTP and through the queue while the worker of the first GPU is killed: nothing lost, it
//              comes back by itself; SIGTERM: exit code 0, no process and no device memory left.
//   hidden     the same command where CUDA_VISIBLE_DEVICES shows the last GPU alone, by its index: no other card is
//              touched.
//   uuid       `shoal worker --device gpu:0` where it names the last GPU by its UUID.
// Exit 1 when a claim does not hold. Without a GPU (--device cpu) the first alone.
//
//   up.ts [--device gpu:0] [--texts 60000] [--small]

import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, readdirSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { ShoalClient } from '@shoal/client';
import { openTokenizer } from '@shoal/models';
import { startTestServer } from '@shoal/queue/testing';
import { leastCosine } from '../similarity/cosine.ts';
import { MAX_TOKENS, cacheDir, device, isSmall, openCorpus, partArguments, round, row } from './kit.ts';

const values = partArguments(import.meta.url, { texts: { type: 'string', default: isSmall ? '400' : '60000' } });
const TEXTS = Number(values.texts);
const DIFFERENT = Math.min(TEXTS, isSmall ? 100 : 4096);
/** Of one text on a GPU in fp16 and on the CPU in fp32. */
const LEAST_COSINE = 0.9999;
const PATIENCE_MS = 40_000;
/** What a context and a graph take; less is a driver's own. */
const LEAST_TAKEN_MEBIBYTES = 150;
const MOST_LEFT_MEBIBYTES = 20;
const MAIN = fileURLToPath(new URL('../../apps/cli/src/main.ts', import.meta.url));

interface Gpu {
  readonly index: number;
  readonly uuid: string;
  readonly usedMebibytes: number;
}

interface Command {
  readonly child: ChildProcess;
  readonly startedMs: number;
  readonly stdout: () => string;
  readonly stderr: () => string;
  /** Its exit code, or its signal. */
  readonly ended: Promise<number | string>;
}

const gpusBefore = device === 'cpu' ? [] : gpus();
const running = new Set<Command>();
const server = await startTestServer({ appendFsync: 'everysec' });
await attempt('up', onAll);
if (gpusBefore.length > 0) {
  await attempt('hidden', onHidden);
  await attempt('uuid', onUuid);
}
await server.stop();

/** What goes wrong in one is a row, and leaves nothing running beside the next. */
async function attempt(what: string, part: () => Promise<void>): Promise<void> {
  try {
    await part();
  } catch (error) {
    row({ part: 'up', what, failed: error instanceof Error ? error.message : String(error) });
    process.exitCode = 1;
    await Promise.all([...running].map(stop));
  }
}

// ---- the three --------------------------------------------------------------------------------------------------

async function onAll(): Promise<void> {
  const command = shoal([
    'up',
    '--json',
    '--http-port',
    '0',
    '--dashboard-port',
    '0',
    ...(device === 'cpu' ? ['--device', 'cpu'] : []),
  ]);
  const { http } = await addresses(command);
  const saidMs = round(performance.now() - command.startedMs);
  const expected = ['cpu', ...gpusBefore.map((_, at) => `cuda:${at}`)];
  const workers = await workersOf(expected);
  const allServeMs = round(performance.now() - command.startedMs);
  const taken = takenMebibytes();
  const overHttp = await embedOverHttp(http);
  const victim = workers.find((worker) => worker.device === (expected[1] ?? 'cpu'));
  if (victim === undefined)
    throw new Error(
      `there is no worker on ${expected[1] ?? 'cpu'}, only on ` +
        `${workers.map((worker) => worker.device).join(', ')}: ${command.stderr().slice(-1500)}`,
    );
  const streamed = await streamAndKill(victim.pid, command);
  const after = await workersOf(expected);
  const successor = after.find((worker) => worker.device === victim.device);
  const stopped = await stop(command);
  tell(
    'up',
    {
      saidMs,
      allServeMs,
      devices: workers.map((worker) => worker.device),
      takenMebibytes: taken,
      overHttp,
      ...streamed,
      ...stopped,
      said: command
        .stderr()
        .split('\n')
        .filter((line) => /ended|up again|no GPU|not every/.test(line))
        .map((line) => line.slice(0, 200)),
    },
    {
      'one worker for each GPU and one on the CPU': same(
        workers.map((worker) => worker.device),
        expected,
      ),
      'every GPU holds a worker': taken.every((mebibytes) => mebibytes >= LEAST_TAKEN_MEBIBYTES),
      'HTTP gives vectors': overHttp.dims === 384 && overHttp.rows === 8,
      'nothing is lost': streamed.rows === TEXTS,
      'vectors are the same on every device': streamed.leastCosine >= LEAST_COSINE,
      'the killed worker is back, as another process':
        successor !== undefined && successor.pid !== victim.pid && /up again/.test(command.stderr()),
      ...stopped.claims,
    },
  );
}

async function onHidden(): Promise<void> {
  const last = gpusBefore.at(-1)!;
  const command = shoal(['up', '--json', '--http-port', '0', '--dashboard-port', '0'], {
    CUDA_VISIBLE_DEVICES: String(last.index),
    CUDA_DEVICE_ORDER: 'PCI_BUS_ID',
  });
  const { http } = await addresses(command);
  const workers = await workersOf(['cpu', 'cuda:0']);
  const taken = takenMebibytes();
  const overHttp = await embedOverHttp(http);
  const stopped = await stop(command);
  tell(
    `CUDA_VISIBLE_DEVICES=${last.index}`,
    { devices: workers.map((worker) => worker.device), takenMebibytes: taken, overHttp, ...stopped },
    {
      'one worker on a GPU and one on the CPU': same(
        workers.map((worker) => worker.device),
        ['cpu', 'cuda:0'],
      ),
      'the GPU that is shown is taken, and no other': onlyLast(taken),
      'HTTP gives vectors': overHttp.dims === 384,
      ...stopped.claims,
    },
  );
}

async function onUuid(): Promise<void> {
  const last = gpusBefore.at(-1)!;
  const command = shoal(['worker', '--device', 'gpu:0'], { CUDA_VISIBLE_DEVICES: last.uuid });
  const said = await untilSaid(command, /worker \d+ serves .* on .*/, command.stderr);
  const taken = takenMebibytes();
  const stopped = await stop(command);
  tell(
    'CUDA_VISIBLE_DEVICES=<UUID>, shoal worker',
    { said, takenMebibytes: taken, ...stopped },
    {
      'it runs on cuda:0': / on cuda:0 /.test(said),
      'the GPU that is named is taken, and no other': onlyLast(taken),
      ...stopped.claims,
    },
  );
}

function tell(what: string, facts: object, claims: Readonly<Record<string, boolean>>): void {
  const broken = Object.entries(claims).flatMap(([claim, holds]) => (holds ? [] : [claim]));
  row({ part: 'up', what, gpus: gpusBefore.length, ...facts, claims, isHeld: broken.length === 0 });
  if (broken.length > 0) process.exitCode = 1;
}

// ---- embedding ----------------------------------------------------------------------------------------------------

async function embedOverHttp(
  url: string,
): Promise<{ readonly rows: number; readonly dims: number; readonly ms: number }> {
  const startedMs = performance.now();
  const response = await fetch(`${url}/v1/embeddings`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'minilm',
      input: Array.from({ length: 8 }, (_, at) => `a text over HTTP, number ${at}`),
    }),
  });
  if (!response.ok) throw new Error(`HTTP ${response.status}: ${await response.text()}`);
  const { data } = (await response.json()) as { readonly data: readonly { readonly embedding: readonly number[] }[] };
  return { rows: data.length, dims: data[0]?.embedding.length ?? 0, ms: round(performance.now() - startedMs) };
}

/**
 * The process is killed once a quarter of the vectors is here, and its device is at work again before this resolves.
 * Each text comes several times; its first vector is what the others are compared with.
 */
async function streamAndKill(
  pid: number,
  command: Command,
): Promise<{
  readonly rows: number;
  readonly leastCosine: number;
  readonly streamSeconds: number;
  readonly backMs: number;
}> {
  const { model, texts } = await openCorpus(DIFFERENT, 11);
  const client = await ShoalClient.connect({
    redisUrl: server.url,
    model,
    tokenizer: await openTokenizer(model, { maxTokens: MAX_TOKENS }),
  });
  const vectors = new Float32Array(TEXTS * model.dims);
  const startedMs = performance.now();
  let rows = 0;
  let back: Promise<number> | undefined;
  for await (const block of client.embedStream(
    Array.from({ length: TEXTS }, (_, at) => ({ text: texts[at % DIFFERENT]! })),
  )) {
    if (block.kind === 'skipped') throw block.error;
    vectors.set(block.vectors, block.first * model.dims);
    rows += block.vectors.length / model.dims;
    if (back !== undefined || rows < TEXTS / 4) continue;
    back = killed(pid, command);
    back.catch(() => undefined); // awaited below
  }
  const streamSeconds = round((performance.now() - startedMs) / 1000, 1);
  await client.close();
  const backMs = await back!;
  const firsts = Float32Array.from(vectors, (_, at) => vectors[at % (DIFFERENT * model.dims)]!);
  return { rows, leastCosine: round(leastCosine(vectors, firsts, model.dims), 7), streamSeconds, backMs };
}

/** Resolves with the time until it is up again. */
async function killed(pid: number, command: Command): Promise<number> {
  const killedMs = performance.now();
  process.kill(pid, 'SIGKILL');
  await untilSaid(command, /is up again/, command.stderr);
  return round(performance.now() - killedMs);
}

// ---- the command and its processes ------------------------------------------------------------------------------

function shoal(args: readonly string[], environment: Readonly<Record<string, string>> = {}): Command {
  const child = spawn(
    process.execPath,
    ['--conditions=@shoal/source', '--disable-warning=ExperimentalWarning', MAIN, ...args],
    {
      env: {
        ...process.env,
        SHOAL_REDIS_URL: server.url,
        SHOAL_MODEL: 'minilm',
        SHOAL_MAX_TOKENS: String(MAX_TOKENS),
        SHOAL_METRICS_PORT: '0',
        SHOAL_CACHE_DIR: cacheDir,
        ...environment,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  );
  const [out, err]: [string[], string[]] = [[], []];
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => out.push(chunk));
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => err.push(chunk));
  const ended = once(child, 'close').then(([code, signal]: unknown[]) =>
    typeof code === 'number' ? code : String(signal),
  );
  const command: Command = {
    child,
    startedMs: performance.now(),
    stdout: () => out.join(''),
    stderr: () => err.join(''),
    ended,
  };
  running.add(command);
  void ended.then(() => running.delete(command));
  return command;
}

async function addresses(command: Command): Promise<{ readonly http: string }> {
  return JSON.parse(await untilSaid(command, /^\{.*\}$/m, command.stdout)) as { http: string };
}

async function untilSaid({ child, stderr }: Command, pattern: RegExp, read: () => string): Promise<string> {
  for (
    const endMs = performance.now() + PATIENCE_MS;
    performance.now() < endMs && child.exitCode === null;
    await sleep(20)
  ) {
    const found = pattern.exec(read());
    if (found !== null) return found[0];
  }
  throw new Error(`${String(pattern)} was not said: ${stderr().slice(-1500)}`);
}

interface Worker {
  readonly device: string;
  readonly pid: number;
}

/**
 * As `shoal fleet status` has them, once there are as many as expected; what it has when patience ends, for the claim
 * to fail on.
 */
async function workersOf(expected: readonly string[]): Promise<readonly Worker[]> {
  let workers: Worker[] = [];
  for (const endMs = performance.now() + PATIENCE_MS / 2; performance.now() < endMs; await sleep(200)) {
    const status = shoal(['fleet', 'status', '--json']);
    if ((await status.ended) !== 0) throw new Error(status.stderr());
    const { workers: alive } = JSON.parse(status.stdout()) as { workers: { facts?: Worker }[] };
    workers = alive
      .flatMap(({ facts }) => (facts === undefined ? [] : [{ device: facts.device, pid: facts.pid }]))
      .filter(({ pid }) => isAlive(pid));
    if (
      same(
        workers.map((worker) => worker.device),
        expected,
      )
    )
      break;
  }
  return workers.toSorted((a, b) => a.device.localeCompare(b.device));
}

async function stop(command: Command): Promise<{
  readonly exitCode: number | string;
  readonly stopMs: number;
  readonly processes: number;
  readonly leftMebibytes: readonly number[];
  readonly claims: Readonly<Record<string, boolean>>;
}> {
  const family = descendants(command.child.pid!);
  const startedMs = performance.now();
  command.child.kill('SIGTERM');
  const exitCode = await Promise.race([command.ended, sleep(PATIENCE_MS, 'it did not end', { ref: false })]);
  const stopMs = round(performance.now() - startedMs);
  const left = family.filter(isAlive);
  for (const pid of left) process.kill(pid, 'SIGKILL'); // ours, and nobody's next step
  const leftMebibytes = takenMebibytes();
  return {
    exitCode,
    stopMs,
    processes: family.length,
    leftMebibytes,
    claims: {
      'SIGTERM ends it with 0': exitCode === 0,
      'no process is left': left.length === 0 && family.length > 1,
      'no device memory is left': leftMebibytes.every((mebibytes) => mebibytes <= MOST_LEFT_MEBIBYTES),
    },
  };
}

/** The process and all that came of it. */
function descendants(root: number): readonly number[] {
  const parents = readdirSync('/proc').flatMap((name) => {
    const stat = /^\d+$/.test(name) ? statOf(Number(name)) : undefined;
    return stat === undefined ? [] : [[Number(name), stat.parent] as const];
  });
  const family = [root];
  for (const pid of family) family.push(...parents.flatMap(([child, parent]) => (parent === pid ? [child] : [])));
  return family;
}

function isAlive(pid: number): boolean {
  const state = statOf(pid)?.state;
  return state !== undefined && state !== 'Z';
}

function statOf(pid: number): { readonly state: string; readonly parent: number } | undefined {
  try {
    const [state = '', parent] = readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ');
    return { state, parent: Number(parent) };
  } catch {
    return undefined; // gone
  }
}

// ---- cards ------------------------------------------------------------------------------------------------------

function gpus(): readonly Gpu[] {
  const lines = execFileSync('nvidia-smi', ['--query-gpu=index,uuid,memory.used', '--format=csv,noheader,nounits'], {
    encoding: 'utf8',
    timeout: 10_000,
  })
    .trim()
    .split('\n');
  return lines
    .map((line) => line.split(', '))
    .map(([index, uuid, used]) => ({ index: Number(index), uuid: uuid!, usedMebibytes: Number(used) }));
}

/** Of each GPU, since this began. */
function takenMebibytes(): readonly number[] {
  return gpusBefore.length === 0
    ? []
    : gpus().map(({ usedMebibytes }, at) => usedMebibytes - gpusBefore[at]!.usedMebibytes);
}

function onlyLast(taken: readonly number[]): boolean {
  return taken.every((mebibytes, at) =>
    at === taken.length - 1 ? mebibytes >= LEAST_TAKEN_MEBIBYTES : mebibytes <= MOST_LEFT_MEBIBYTES,
  );
}

function same(found: readonly string[], expected: readonly string[]): boolean {
  return JSON.stringify(found.toSorted()) === JSON.stringify(expected.toSorted());
}
