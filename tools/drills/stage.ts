// What a drill runs on: a queue server, workers on simulated devices, the exporter, HTTP where users ask, and commands
// that a shell finds under the names that runbooks use. `systemctl` starts and stops what belongs to this stage;
// `redis-cli` asks its server.

import { execFile } from 'node:child_process';
import { chmodSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Queue } from 'bullmq';
import { Redis } from 'ioredis';
import { mainQueue } from '@shoal/contract';
import { freePort, startTestServer, type TestServer } from '@shoal/queue/testing';
import { Sandbox, SHOAL, type Running } from '../../apps/cli/src/testing/shoal-process.ts';
import { until } from './watcher.ts';

export const PREFIX = '{drill}';
export const MODEL = 'tiny-random';
export const QUEUE = mainQueue(MODEL);

export interface StageOptions {
  /** How many workers there are, and Prometheus is told of. */
  readonly workers: number;
  /** Their simulated device. */
  readonly device?: string;
  /** Whether HTTP runs. */
  readonly http?: boolean;
}

/** One worker under a name that it keeps over all its lives. */
export interface StageWorker {
  readonly unit: string;
  readonly port: number;
  running: Running | undefined;
  environment: Readonly<Record<string, string>>;
}

const MOST_MEMORY = '128mb';
/** Longer than a restart of the queue server takes, and shorter than a drill waits for an alert. */
const REQUEST_TIMEOUT_MS = '10000';

export class Stage {
  readonly box = new Sandbox();
  readonly workers: StageWorker[] = [];
  readonly server: TestServer;
  readonly exporterPort: number;
  /** Undefined: HTTP does not run. */
  readonly httpPort: number | undefined;
  readonly queue: Queue;
  private readonly device: string;
  private readonly connection: Redis;
  private exporter: Running | undefined;
  private http: Running | undefined;
  private control: Server | undefined;
  private controlPort = 0;

  private constructor(
    server: TestServer,
    { device, exporterPort, httpPort }: Pick<Stage, 'exporterPort' | 'httpPort'> & { readonly device: string },
  ) {
    this.device = device;
    this.server = server;
    this.exporterPort = exporterPort;
    this.httpPort = httpPort;
    this.connection = new Redis(server.url, { maxRetriesPerRequest: null });
    this.connection.on('error', () => undefined); // drills take the server away
    this.queue = new Queue(QUEUE, { connection: this.connection, prefix: PREFIX });
    this.queue.on('error', () => undefined);
  }

  /** Resolves when all workers and HTTP are ready. */
  static async open(options: StageOptions): Promise<Stage> {
    const { workers, device = 'sim:8000+15', http = false } = options;
    const server = await startTestServer({ topology: 'single', args: ['--maxmemory', MOST_MEMORY] });
    const exporterPort = await freePort();
    const stage = new Stage(server, { device, exporterPort, httpPort: http ? await freePort() : undefined });
    try {
      await stage.fill(workers);
    } catch (error) {
      await stage.close();
      throw error;
    }
    return stage;
  }

  private async fill(workers: number): Promise<void> {
    this.box.shareModels();
    await this.openControl();
    for (let index = 0; index < workers; index++) await this.addWorker();
    this.startExporter();
    await Promise.all([...this.workers.map((worker) => this.start(worker)), this.startHttp()]);
  }

  private startExporter(): void {
    this.exporter = this.box.start(['exporter', '--exporter-port', String(this.exporterPort)], {
      environment: this.environment(),
    });
  }

  private async startHttp(): Promise<void> {
    if (this.httpPort === undefined) return;
    this.http = this.box.start(['serve', '--http-port', String(this.httpPort)], {
      environment: { ...this.environment(), SHOAL_LOG_LEVEL: 'warn', SHOAL_REQUEST_TIMEOUT_MS: REQUEST_TIMEOUT_MS },
    });
    await until('HTTP is ready', () => isOk(`${this.urls().HTTP_URL}/readyz`));
  }

  private async addWorker(): Promise<StageWorker> {
    const worker: StageWorker = {
      unit: `shoal-worker@${this.workers.length}`,
      port: await freePort(),
      running: undefined,
      environment: {},
    };
    this.workers.push(worker);
    return worker;
  }

  /** Starts a worker, and resolves when it is ready, or with `isReady: false` at once. */
  async start(worker: StageWorker, { isReady = true }: { readonly isReady?: boolean } = {}): Promise<void> {
    worker.running = this.box.start(
      ['worker', '--device', this.device, '--sim-serves', 'model', '--metrics-port', String(worker.port)],
      {
        environment: {
          ...this.environment(),
          SHOAL_WORKER_NAME: worker.unit.replace('@', '-'),
          SHOAL_LOG_LEVEL: 'warn',
          ...worker.environment,
        },
      },
    );
    if (!isReady) return;
    const { child } = worker.running;
    const isUp = async (): Promise<boolean> =>
      child.exitCode !== null || (await isOk(`http://127.0.0.1:${worker.port}/readyz`));
    await until(`${worker.unit} is ready`, isUp).catch((error: Error) => {
      throw new Error(`${error.message}: ${worker.running?.stderr().slice(-2_000)}`);
    });
    if (child.exitCode !== null) throw new Error(`${worker.unit} ended: ${worker.running.stderr().slice(-2_000)}`);
  }

  /** SIGTERM goes to the command, which drains its worker; SIGKILL to all of its processes, so that none can. */
  async kill(worker: StageWorker, signal: NodeJS.Signals): Promise<void> {
    const child = worker.running?.child;
    if (signal === 'SIGKILL' && child?.pid !== undefined)
      for (const pid of descendantsOf(child.pid)) process.kill(pid, 'SIGKILL');
    child?.kill(signal);
    await worker.running?.ended;
    worker.running = undefined;
  }

  async restart(worker: StageWorker): Promise<void> {
    await this.kill(worker, 'SIGTERM');
    await this.start(worker);
  }

  /** Process id of a worker's executor, while it has one: the command forks the worker, which forks it. */
  executorOf({ running }: StageWorker): number | undefined {
    const pids = descendantsOf(running?.child.pid ?? -1);
    return pids.find((pid) => textOf(`/proc/${pid}/cmdline`).includes('executor-main'));
  }

  /** Bulk jobs as a plain producer adds them; their ids. */
  async addJobs(count: number, more: Readonly<Record<string, unknown>> = {}): Promise<readonly string[]> {
    const jobs = Array.from({ length: count }, (_, index) => ({
      name: 'embed',
      data: { v: 1, texts: [`text ${index}`, 'another text'], class: 'bulk', ...more },
      opts: { jobId: `drill-${Date.now()}-${index}` },
    }));
    await this.queue.addBulk(jobs);
    return jobs.map(({ opts }) => opts.jobId);
  }

  /** How many jobs of the queue are in these states. */
  async count(
    ...states: ('waiting' | 'prioritized' | 'active' | 'delayed' | 'completed' | 'failed')[]
  ): Promise<number> {
    const counts = await this.queue.getJobCounts(...states);
    return Object.values(counts).reduce((sum, count) => sum + count, 0);
  }

  /** A line of a runbook in a shell that has its variables; what it said. Throws when it fails. */
  async shell(line: string, variables: Readonly<Record<string, string>> = {}): Promise<string> {
    const { stdout, stderr } = await promisify(execFile)('sh', ['-euc', `exec </dev/null; ${line}`], {
      cwd: this.box.files,
      env: {
        ...this.box.environment(),
        ...this.environment(),
        PATH: `${this.bin}:${process.env['PATH'] ?? ''}`,
        QUEUE,
        UNIT: 'shoal-worker@0',
        ...this.urls(),
        MORE_MEMORY: '600mb',
        ...variables,
      },
      maxBuffer: 1e7,
    });
    return `${stdout}${stderr}`;
  }

  /** Ends everything that was started here, whoever started it: a worker whose command is gone would drain at leisure. */
  async close(): Promise<void> {
    this.control?.close();
    await this.box.killAll();
    await this.server.stop();
    this.connection.disconnect();
    this.box.remove();
  }

  private get bin(): string {
    return join(this.box.root, 'bin');
  }

  private urls(): { readonly HTTP_URL: string; readonly EXPORTER_URL: string; readonly WORKER_URL: string } {
    return {
      HTTP_URL: urlAt(this.httpPort),
      EXPORTER_URL: urlAt(this.exporterPort),
      WORKER_URL: urlAt(this.workers[0]?.port),
    };
  }

  private environment(): Record<string, string> {
    return { REDIS_URL: this.server.url, SHOAL_PREFIX: PREFIX, SHOAL_MODEL: MODEL };
  }

  /** Commands of runbooks that belong to a machine and not to Shoal. */
  private async openControl(): Promise<void> {
    this.control = createServer((request, answer) => {
      let body = '';
      request.setEncoding('utf8').on('data', (text: string) => (body += text));
      request.on('end', () => {
        this.obey(
          request.url ?? '',
          body.split('\n').filter((word) => word !== ''),
        )
          .then((said) => answer.end(`${said}\n`))
          .catch((error: unknown) => answer.writeHead(500).end(String(error)));
      });
    }).listen(0, '127.0.0.1');
    await new Promise((resolve) => this.control?.once('listening', resolve));
    const address = this.control.address();
    this.controlPort = typeof address === 'object' && address !== null ? address.port : 0;
    mkdirSync(this.bin);
    const ask = (path: string): string =>
      `printf '%s\\n' "$@" | curl -sS --fail-with-body --data-binary @- http://127.0.0.1:${this.controlPort}/${path}`;
    this.command('shoal', `exec ${SHOAL.map((word) => `'${word}'`).join(' ')} "$@"`);
    this.command('sudo', 'exec "$@"');
    this.command('systemctl', ask('systemctl'));
    this.command('redis-cli', ask('redis-cli'));
  }

  private command(name: string, body: string): void {
    const path = join(this.bin, name);
    writeFileSync(path, `#!/bin/sh\n${body}\n`);
    chmodSync(path, 0o755);
  }

  private async obey(path: string, words: readonly string[]): Promise<string> {
    if (path === '/redis-cli') {
      const [name = '', ...values] = words[0] === '-u' ? words.slice(2) : words;
      return String(await this.server.command(name, ...values));
    }
    const [verb = '', unit = ''] = words;
    if (unit === 'shoal-valkey') await this.server.restart();
    else if (unit === 'shoal-exporter') {
      await stopped(this.exporter);
      this.startExporter();
    } else if (unit === 'shoal-http') {
      await stopped(this.http);
      await this.startHttp();
    } else {
      if (!unit.startsWith('shoal-worker@')) throw new Error(`there is no unit ${unit} in a drill`);
      const worker = this.workers.find((known) => known.unit === unit) ?? (await this.addWorker());
      if (verb === 'restart') await this.kill(worker, 'SIGTERM');
      await this.start(worker);
    }
    return `${verb} ${unit}`;
  }
}

/** Where nothing listens, nobody answers. */
function urlAt(port = 1): string {
  return `http://127.0.0.1:${port}`;
}

async function stopped(running: Running | undefined): Promise<void> {
  running?.child.kill('SIGTERM');
  await running?.ended;
}

/** Whether an address answers with 2xx. */
export async function isOk(url: string): Promise<boolean> {
  return (await fetch(url, { signal: AbortSignal.timeout(2_000) })).ok;
}

/** Processes that a process forked, and those that these did, the nearest first. */
function descendantsOf(ancestor: number): readonly number[] {
  const children = new Map<number, number[]>();
  for (const entry of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    const stat = textOf(`/proc/${entry}/stat`);
    const parent = Number(stat.slice(stat.lastIndexOf(')')).split(' ')[2]);
    children.set(parent, [...(children.get(parent) ?? []), Number(entry)]);
  }
  const below = (pid: number): number[] => (children.get(pid) ?? []).flatMap((child) => [child, ...below(child)]);
  return below(ancestor);
}

/** A file of /proc, or nothing when the process is gone. */
function textOf(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
