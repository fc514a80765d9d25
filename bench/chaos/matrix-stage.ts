// The stage of the matrix of faults: a queue server, with a replica, HTTP or `shoal embed` where that is asked for, two workers of
// which the first is the victim, a producer, and a wire of its own for each, that can go bad. One history of all that was called
// and answered.

import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { keySpace, mainQueue } from '@shoal/contract';
import { SmallDisk } from '@shoal/fetch/testing';
import { findServerProgram } from '@shoal/private-server';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { HistoryWriter, Recorder } from '@shoal/world';
import { BadWire } from './bad-wire.ts';
import { CliLoad } from './cli-load.ts';
import { SupervisedFleet } from './fleet.ts';
import { HttpLoad } from './http-load.ts';
import { MODEL, startProducer, type Load } from './load.ts';
import { SteppedClock } from './process-faults.ts';
import { PrivateServer } from './private-server.ts';
import { connectRaw } from './producer-parts.ts';
import type { ProducerReport } from './producer.ts';
import { QueueWitness } from './queue-witness.ts';

/** Faults that need their own: clocks under libfaketime, a file system that can be filled. */
export type StageKind = 'plain' | 'clock' | 'disk';

export interface StageOptions {
  readonly kind: StageKind;
  readonly folder: string;
  readonly cacheDir: string;
  readonly load: Load;
  readonly seed: number;
  readonly leaseMs: number;
  /** Its server is a private one, with a supervisor and a guard. */
  readonly isPrivate: boolean;
  readonly hasReplica: boolean;
  readonly hasHttp: boolean;
  readonly hasCli: boolean;
  /** Whose file systems are small, on a stage of kind `disk`: those that are to be filled. */
  readonly filled: readonly OnDisk[];
  /** libfaketime.so.1; needed by `clock`. */
  readonly faketime: string | undefined;
}

export type Clocked = 'server' | 'replica' | 'worker' | 'producer' | 'http' | 'cli' | 'supervisor';
export type OnDisk = 'server' | 'replica' | 'http' | 'cli' | 'supervisor';
/** One of the tests, or a private one. */
export type StageServer = Pick<TestServer, 'url' | 'pid' | 'command' | 'kill9' | 'restart' | 'stop'>;

const WINDOW = 20;
const DISK_BYTES = 24_000_000;
/** Of those that nothing is to happen to: a server’s append-only file fills the small one within minutes. */
const AMPLE_BYTES = 1_000_000_000;

interface Wires {
  readonly victim: BadWire;
  readonly other: BadWire;
  readonly producer: BadWire;
  readonly replica: BadWire;
  readonly http: BadWire;
  readonly cli: BadWire;
}

type Disks = Readonly<Record<OnDisk, SmallDisk>>;

interface Parts {
  readonly server: StageServer;
  readonly privateServer: PrivateServer | undefined;
  readonly replica: TestServer | undefined;
  readonly http: HttpLoad | undefined;
  readonly cli: CliLoad | undefined;
  readonly fleet: SupervisedFleet;
  readonly history: Recorder;
  readonly histories: string;
  readonly disks: Disks | undefined;
  readonly wires: Wires;
  readonly witness: QueueWitness;
}

export class Stage {
  readonly server: StageServer;
  /** The same, where it is a private one. */
  readonly privateServer: PrivateServer | undefined;
  readonly replica: TestServer | undefined;
  readonly http: HttpLoad | undefined;
  readonly cli: CliLoad | undefined;
  readonly fleet: SupervisedFleet;
  readonly history: Recorder;
  readonly histories: string;
  /** Where their data lie, on a stage of kind `disk`. */
  readonly disks: Parts['disks'];
  readonly wires: Wires;
  private readonly options: StageOptions;
  private readonly witness: QueueWitness;
  private producer: ChildProcess | undefined;
  private lives = 0;

  private constructor(options: StageOptions, parts: Parts) {
    this.options = options;
    this.server = parts.server;
    this.privateServer = parts.privateServer;
    this.fleet = parts.fleet;
    this.history = parts.history;
    this.histories = parts.histories;
    this.replica = parts.replica;
    this.http = parts.http;
    this.cli = parts.cli;
    this.disks = parts.disks;
    this.wires = parts.wires;
    this.witness = parts.witness;
  }

  /** Everybody at work when it resolves. Throws why this machine cannot have it. */
  static async start(options: StageOptions): Promise<Stage> {
    const { kind, folder, cacheDir, leaseMs } = options;
    const histories = join(folder, `history-${kind}${options.isPrivate ? '-private' : ''}`);
    mkdirSync(histories);
    const disks =
      kind === 'disk'
        ? {
            server: diskOf(options, 'server'),
            replica: diskOf(options, 'replica'),
            http: diskOf(options, 'http'),
            cli: diskOf(options, 'cli'),
            supervisor: diskOf(options, 'supervisor'),
          }
        : undefined;
    const startServer = async (of: 'server' | 'replica', args: readonly string[]): Promise<TestServer> =>
      startTestServer({
        ...(kind === 'clock' ? { program: await clockedServer(options, of) } : {}),
        args: [...(disks === undefined ? [] : ['--dir', disks[of].folder]), ...args],
      });
    const privateServer = options.isPrivate ? await privateOf(options, disks) : undefined;
    const server = privateServer ?? (await startServer('server', []));
    const open = (): Promise<BadWire> => BadWire.open(server.url);
    const wires: Wires = {
      victim: await open(),
      other: await open(),
      producer: await open(),
      replica: await open(),
      http: await open(),
      cli: await open(),
    };
    const follows = ['--replicaof', '127.0.0.1', new URL(wires.replica.url).port];
    const replica = options.hasReplica ? await startServer('replica', follows) : undefined;
    const worker = (wire: BadWire): Record<string, string> => ({
      SHOAL_REDIS_URL: wire.url,
      SHOAL_MODEL: MODEL,
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_THREADS: '1',
      SHOAL_LOG_LEVEL: process.env['CHAOS_LOG'] ?? 'silent',
      SHOAL_LEASE_MS: String(leaseMs),
      SHOAL_STALLED_CHECK_MS: String((leaseMs / 3) | 0),
    });
    const clock = kind === 'clock' ? clockOf(options, 'worker').environment : {};
    const fleet = new SupervisedFleet({
      redisUrl: server.url,
      workers: [{ ...worker(wires.victim), ...clock }, worker(wires.other)],
    });
    await fleet.start();
    const http = options.hasHttp ? httpOf(options, wires.http, disks) : undefined;
    await http?.start();
    const cli = options.hasCli ? cliOf(options, wires.cli, disks) : undefined;
    await cli?.start();
    const witness = new QueueWitness(
      await connectRaw(server.url),
      keySpace().job(mainQueue(MODEL), '').slice(0, -1),
      new Recorder('server', new HistoryWriter(join(histories, 'server.jsonl'))),
    );
    witness.start();
    const history = new Recorder('matrix', new HistoryWriter(join(histories, 'matrix.jsonl')));
    const stage = new Stage(options, {
      server,
      privateServer,
      replica,
      http,
      cli,
      fleet,
      history,
      histories,
      disks,
      wires,
      witness,
    });
    await stage.startProducer();
    return stage;
  }

  /** The first, or the one that goes on with the ids of the one before. */
  async startProducer(): Promise<void> {
    const { load, seed, kind } = this.options;
    const life = this.lives++;
    this.producer = await startProducer(
      {
        ...load,
        redisUrl: this.wires.producer.url,
        seed,
        index: 0,
        life,
        mode: 'again',
        window: WINDOW,
        payloadServers: '',
        historyPath: join(this.histories, `producer-${life}.jsonl`),
      },
      kind === 'clock' ? clockOf(this.options, 'producer').environment : {},
    );
  }

  /** Whether it lives. */
  get hasProducer(): boolean {
    const { exitCode, signalCode } = this.producer!;
    return exitCode === null && signalCode === null;
  }

  producerPid(): number {
    return this.producer!.pid!;
  }

  async killProducer(): Promise<void> {
    const gone = once(this.producer!, 'exit');
    this.producer!.kill('SIGKILL');
    await gone;
  }

  report(): Promise<ProducerReport> {
    return this.ask('report');
  }

  /** No new jobs; resolves when all that were acknowledged have ended. */
  finish(): Promise<ProducerReport> {
    return this.ask('finish');
  }

  private async ask(message: 'report' | 'finish'): Promise<ProducerReport> {
    const child = this.producer!;
    return new Promise((resolve, reject) => {
      const gone = (): void => reject(new Error(`the producer is gone that was asked for "${message}"`));
      const hear = (report: ProducerReport & { readonly to: string }): void => {
        if (report.to !== message) return;
        child.off('message', hear);
        child.off('exit', gone);
        resolve(report);
      };
      child.on('message', hear);
      child.once('exit', gone);
      if (child.connected) child.send(message);
      else gone();
    });
  }

  setClock(of: Clocked, hours: number): void {
    clockOf(this.options, of).step(hours);
  }

  async stop(): Promise<void> {
    await this.http?.stop();
    await this.cli?.stop();
    await this.fleet.stop();
    await this.witness.stop();
    await this.killProducer();
    await Promise.all(Object.values(this.wires).map((wire) => wire.close()));
    await this.replica?.stop();
    await this.server.stop();
    for (const disk of Object.values(this.disks ?? {})) disk.remove();
  }
}

function httpOf(options: StageOptions, wire: BadWire, disks: Disks | undefined): HttpLoad {
  return new HttpLoad(MODEL, {
    SHOAL_REDIS_URL: wire.url,
    SHOAL_MODEL: MODEL,
    SHOAL_CACHE_DIR: options.cacheDir,
    SHOAL_LOG_LEVEL: process.env['CHAOS_LOG'] ?? 'silent',
    SHOAL_BATCH_DIR: join(disks?.http.folder ?? options.folder, 'batches'),
    ...(options.kind === 'clock' ? clockOf(options, 'http').environment : {}),
  });
}

function cliOf(options: StageOptions, wire: BadWire, disks: Disks | undefined): CliLoad {
  return new CliLoad({
    model: MODEL,
    dims: options.load.dims,
    folder: options.folder,
    outputs: disks?.cli.folder ?? options.folder,
    environment: {
      SHOAL_REDIS_URL: wire.url,
      SHOAL_CACHE_DIR: options.cacheDir,
      ...(options.kind === 'clock' ? clockOf(options, 'cli').environment : {}),
    },
  });
}

function privateOf(options: StageOptions, disks: Disks | undefined): Promise<PrivateServer> {
  const folder = disks?.supervisor.folder ?? join(options.folder, `private-${options.kind}`);
  mkdirSync(folder, { recursive: true });
  const clock = options.kind === 'clock' ? clockOf(options, 'supervisor').environment : {};
  return PrivateServer.start({ folder, cacheDir: options.cacheDir, clock });
}

function diskOf({ filled }: StageOptions, of: OnDisk): SmallDisk {
  const disk = SmallDisk.make(filled.includes(of) ? DISK_BYTES : AMPLE_BYTES);
  if (typeof disk === 'string') throw new Error(disk);
  return disk;
}

/** One that nobody has stepped yet. */
function clockOf({ folder, faketime }: StageOptions, of: Clocked): SteppedClock {
  if (faketime === undefined) throw new Error('SHOAL_TEST_FAKETIME names no libfaketime');
  return new SteppedClock(folder, of, faketime);
}

async function clockedServer(options: StageOptions, of: 'server' | 'replica'): Promise<string> {
  const program = process.env['SHOAL_TEST_SERVER'] ?? (await findServerProgram({ cacheDir: options.cacheDir })).path;
  const wrapper = join(options.folder, of);
  const environment = Object.entries(clockOf(options, of).environment).map(([name, value]) => `${name}=${value}`);
  writeFileSync(wrapper, `#!/bin/sh\nexec env ${environment.join(' ')} ${program} "$@"\n`);
  chmodSync(wrapper, 0o755);
  return wrapper;
}
