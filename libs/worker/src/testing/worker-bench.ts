// A real queue server, real worker processes and a plain BullMQ producer, for tests of what happens when something
// breaks. Waits for signals or asks again; every process it started is stopped. For tests only: bullmq stands here as
// the producer.

import { execFileSync, fork, type ChildProcess } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
// oxlint-disable-next-line no-restricted-imports -- a producer that knows nothing of Shoal
import { Queue } from 'bullmq';
import { programOf } from '@shoal/core/testing';
import { encodeTokens, keySpace, mainQueue, openResult, type EmbedReturn } from '@shoal/contract';
import { closeConnection, openConnection, type Redis } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';

const PREFIX = '{shoal}';
const keys = keySpace(PREFIX);

export interface WorkerProcess {
  readonly pid: number;
  /** Lines of its log and its executor's, as they come. */
  readonly log: readonly Readonly<Record<string, unknown>>[];
  /** Pid of its executor, once there is one. */
  executorPid(): Promise<number>;
  isAlive(): boolean;
  /** SIGTERM; resolves with the exit code. */
  stop(): Promise<number | null>;
}

export class WorkerBench {
  readonly cacheDir = mkdtempSync(join(tmpdir(), 'shoal-worker-bench-'));
  readonly redis: Redis;
  private readonly server: TestServer;
  private readonly queues: Queue[] = [];
  private readonly workers = new Set<ChildProcess>();

  get url(): string {
    return this.server.url;
  }

  private constructor(server: TestServer) {
    this.server = server;
    this.redis = openConnection({ url: server.url, name: 'test' });
  }

  static async start(): Promise<WorkerBench> {
    return new WorkerBench(await startTestServer());
  }

  /** A worker that is ready: on the CPU, or on the device that SHOAL_DEVICE names. */
  async startWorker(model: string, environment: Readonly<Record<string, string>> = {}): Promise<WorkerProcess> {
    const { main, execArgv } = programOf(environment['SHOAL_DEVICE'] === undefined ? 'cpu-worker' : 'gpu-worker');
    const child = fork(main, [], {
      execArgv: [...execArgv],
      env: {
        ...process.env,
        SHOAL_REDIS_URL: this.server.url,
        SHOAL_MODEL: model,
        SHOAL_CACHE_DIR: this.cacheDir,
        SHOAL_THREADS: '1',
        SHOAL_LOG_LEVEL: 'info',
        ...environment,
      },
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    this.workers.add(child);
    const log = collectLines(child);
    await new Promise<void>((resolve, reject) => {
      child.once('message', (message: { readonly kind: string; readonly failure?: { readonly message: string } }) =>
        message.kind === 'ready' ? resolve() : reject(new Error(message.failure?.message)),
      );
      child.once('exit', (code, signal) =>
        reject(new Error(`worker ended before it was ready: ${code ?? signal}: ${JSON.stringify(log.at(-1))}`)),
      );
    });
    const pid = child.pid!;
    return {
      pid,
      log,
      executorPid: () => until('the worker has an executor', async () => childrenOf(pid)[0]),
      isAlive: () => child.exitCode === null && child.signalCode === null,
      stop: () => this.stopWorker(child),
    };
  }

  /** As a producer that knows nothing of Shoal opens it. */
  openQueue(name: string): Queue {
    const queue = new Queue(name, { connection: this.redis, prefix: PREFIX });
    this.queues.push(queue);
    return queue;
  }

  /** Where the input of a job lies that does not carry it. */
  inputKey(queue: Queue, jobId: string): string {
    return keys.input(queue.name, jobId);
  }

  /** Jobs of token ids by id, added by a producer that knows nothing of Shoal but docs/jobs.md. */
  async addJobs(
    model: string,
    tokenizer: string,
    jobs: ReadonlyMap<string, readonly (readonly number[])[]>,
  ): Promise<Queue> {
    const queue = this.openQueue(mainQueue(model));
    for (const [jobId, rows] of jobs) await this.redis.set(keys.input(queue.name, jobId), encodeTokens(rows));
    await queue.addBulk(
      [...jobs].map(([jobId, rows]) => ({
        name: 'embed',
        data: {
          v: 1,
          input: {
            form: 'tokens',
            rows: rows.length,
            tokens: rows.reduce((sum, row) => sum + row.length, 0),
            tokenizer,
          },
        },
        opts: { jobId },
      })),
    );
    return queue;
  }

  /** The return value of a completed job; throws when it failed. */
  finished(queue: Queue, jobId: string, timeoutMs?: number): Promise<EmbedReturn> {
    return until(
      `${jobId} is finished`,
      async () => {
        const state = await queue.getJobState(jobId); // before the job is read: what is read afterwards has the value
        if (state !== 'completed' && state !== 'failed') return undefined;
        const job = await queue.getJob(jobId);
        if (state === 'failed') throw new Error(`${jobId} failed: ${job?.failedReason}`);
        return job!.returnvalue as EmbedReturn;
      },
      timeoutMs,
    );
  }

  async vectorsOf({ key }: EmbedReturn): Promise<Float32Array> {
    return new Float32Array(Uint8Array.from(openResult((await this.redis.getBuffer(key))!).body).buffer);
  }

  /** Between tests: no worker runs, the server is empty. */
  async clear(): Promise<void> {
    await Promise.all([...this.workers].map((child) => this.stopWorker(child)));
    await Promise.all(this.queues.splice(0).map((queue) => queue.close()));
    await this.redis.flushall();
  }

  async stop(): Promise<void> {
    await this.clear();
    await closeConnection(this.redis);
    await this.server.stop();
    rmSync(this.cacheDir, { recursive: true, force: true });
  }

  private async stopWorker(child: ChildProcess): Promise<number | null> {
    this.workers.delete(child);
    if (child.exitCode !== null || child.signalCode !== null) return child.exitCode;
    const exited = new Promise<number | null>((resolve) => child.once('exit', resolve));
    child.kill('SIGCONT');
    child.kill('SIGTERM');
    return exited;
  }
}

export async function until<T>(what: string, look: () => Promise<T | undefined>, timeoutMs = 60_000): Promise<T> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const found = await look();
    if (found !== undefined) return found;
    if (performance.now() > deadline) throw new Error(`never came true: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export function childrenOf(pid: number): number[] {
  return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean).map(Number);
}

/** Bytes of a line of /proc/<pid>/status. */
export function statusBytes(pid: number, key: 'VmRSS' | 'VmSize'): number {
  return Number(new RegExp(`^${key}:\\s+(\\d+)`, 'm').exec(readFileSync(`/proc/${pid}/status`, 'latin1'))![1]) * 1024;
}

/** From now on the process gets no more than this much address space on top of what it has; `Infinity` ends that. */
export function limitAddressSpace(pid: number, moreBytes: number): void {
  const soft = moreBytes === Infinity ? 'unlimited' : statusBytes(pid, 'VmSize') + moreBytes;
  execFileSync('prlimit', ['--pid', String(pid), `--as=${soft}:`]);
}

/** Waits until the process has computed for a fifth of a second: it is in the middle of the work it just got. */
export function untilBusy(pid: number): Promise<true> {
  const before = cpuTicks(pid);
  return until('the executor computes', async () => (cpuTicks(pid) >= before + 20 ? true : undefined));
}

function cpuTicks(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ')[1]!.split(' ');
  return Number(fields[11]) + Number(fields[12]);
}

function collectLines(child: ChildProcess): Record<string, unknown>[] {
  const lines: Record<string, unknown>[] = [];
  for (const stream of [child.stdout!, child.stderr!]) {
    let rest = '';
    stream.setEncoding('utf8').on('data', (chunk: string) => {
      const parts = (rest + chunk).split('\n');
      rest = parts.pop()!;
      for (const part of parts)
        lines.push(part.startsWith('{') ? (JSON.parse(part) as Record<string, unknown>) : { msg: part });
    });
  }
  return lines;
}
