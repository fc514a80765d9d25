// What happens to the fleet and its server in the chaos bench, one fault at a time, chosen by a seed. Every fault heals
// itself; how often each happened is counted.

import { spawn, spawnSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import type { S3Gate, S3Server, TestServer } from '@shoal/queue/testing';
import { sharedClockMs, type Recorder } from '@shoal/world';
import type { BadWire, Trouble } from './bad-wire.ts';
import type { SupervisedFleet } from './fleet.ts';
import { stopFor, withoutDescriptors, withoutMemory, type SteppedClock } from './process-faults.ts';

type PlainFault = 'worker' | 'executor' | 'connections' | 'server' | 'outage' | 'full' | 'slow-fsync';
/** Of one worker or its executor; a bad wire is that of a worker or of a producer. */
type MatrixFault = Trouble | 'stop' | 'descriptors' | 'memory' | 'worker-clock';
/** Of one payload server. */
type PayloadFault = 'payload-killed' | 'payload-emptied' | 'payload-full' | 'payload-stopped';
/** Of the store that has the bucket. */
type BucketFault = 'bucket-killed' | 'bucket-emptied' | 'bucket-throttled' | 'bucket-stopped';
export type FaultKind = PlainFault | MatrixFault | PayloadFault | BucketFault;

/** A bucket as a payload server: its store, and what stands before that. */
export interface BucketParts {
  readonly store: S3Server;
  readonly gate: S3Gate;
}

/** What the faults of the matrix need. */
export interface MatrixParts {
  readonly wires: readonly BadWire[];
  /** Of the last worker, where there is a libfaketime. */
  readonly clock: SteppedClock | undefined;
}

export interface FaultsOptions {
  readonly server: TestServer;
  readonly fleet: SupervisedFleet;
  readonly workers: number;
  readonly random: () => number;
  readonly outageMs: number;
  readonly slowMs: number;
  /** Whether the server may forget what it acknowledged, when it is killed. */
  readonly forgets: boolean;
  readonly history: Recorder;
  /** Left out, only what kills, cuts and fills happens. */
  readonly matrix: MatrixParts | undefined;
  /** Beside the queue server; none: nothing happens to any. */
  readonly payloadServers: readonly TestServer[];
  /** Undefined: there is none. */
  readonly bucket: BucketParts | undefined;
}

type Weights = readonly (readonly [FaultKind, number])[];
/** Outage and slow disk come once each, at their time. */
const WEIGHTS: Weights = [
  ['worker', 40],
  ['executor', 25],
  ['connections', 20],
  ['server', 8],
  ['full', 7],
];
const MATRIX_WEIGHTS: Weights = [
  ['half-open', 12],
  ['one-way', 12],
  ['latency', 8],
  ['stop', 12],
  ['descriptors', 6],
  ['memory', 6],
];
const CLOCK_WEIGHTS: Weights = [['worker-clock', 8]];
const PAYLOAD_WEIGHTS: Weights = [
  ['payload-killed', 25],
  ['payload-emptied', 25],
  ['payload-full', 12],
  ['payload-stopped', 8],
];
const BUCKET_WEIGHTS: Weights = [
  ['bucket-killed', 25],
  ['bucket-emptied', 25],
  ['bucket-throttled', 20],
  ['bucket-stopped', 8],
];
/** Longer than a lease, so that claims are lost. */
const TROUBLE_MS = 8_000;
const SPARE_BYTES = 8 << 20;
const HOURS = 2;
const FSYNC_DELAY_US = 300_000;
/** As much of what it acknowledged may a killed server forget, by its fsync of every second; and while that is slow. */
export const FORGOTTEN_MS = 2_000;
const FORGOTTEN_SLOW_MS = 5_000;

export class Faults {
  readonly counts: Record<FaultKind, number> = {
    worker: 0,
    executor: 0,
    connections: 0,
    server: 0,
    outage: 0,
    full: 0,
    'slow-fsync': 0,
    'half-open': 0,
    'one-way': 0,
    latency: 0,
    stop: 0,
    descriptors: 0,
    memory: 0,
    'worker-clock': 0,
    'payload-killed': 0,
    'payload-emptied': 0,
    'payload-full': 0,
    'payload-stopped': 0,
    'bucket-killed': 0,
    'bucket-emptied': 0,
    'bucket-throttled': 0,
    'bucket-stopped': 0,
  };
  private readonly options: FaultsOptions;
  private readonly weights: Weights;

  constructor(options: FaultsOptions) {
    this.options = options;
    const { matrix, payloadServers, bucket } = options;
    this.weights = [
      ...WEIGHTS,
      ...(matrix === undefined ? [] : MATRIX_WEIGHTS),
      ...(matrix?.clock === undefined ? [] : CLOCK_WEIGHTS),
      ...(payloadServers.length === 0 ? [] : PAYLOAD_WEIGHTS),
      ...(bucket === undefined ? [] : BUCKET_WEIGHTS),
    ];
  }

  async anyOne(): Promise<void> {
    let left = this.options.random() * this.weights.reduce((sum, [, weight]) => sum + weight, 0);
    for (const [kind, weight] of this.weights) {
      left -= weight;
      if (left < 0) return this.happen(kind);
    }
  }

  async happen(kind: FaultKind): Promise<void> {
    this.counts[kind]++;
    const index = Math.floor(this.options.random() * this.options.workers);
    const isOne = kind === 'worker' || kind === 'executor';
    const end = this.options.history.invoke('fault', '', {
      outcome: kind,
      ...(isOne ? { target: `${kind}-${index}` } : {}),
    });
    await this.carryOut(kind, index);
    end('ok');
  }

  private async carryOut(kind: FaultKind, index: number): Promise<void> {
    const { fleet, random, outageMs } = this.options;
    switch (kind) {
      case 'worker':
        return fleet.killWorker(index);
      case 'executor':
        return fleet.killExecutor(index);
      case 'connections':
        return this.cutConnections();
      case 'server':
        return this.killServer(random() * 2_000);
      case 'outage':
        return this.killServer(outageMs);
      case 'full':
        return this.fillServer();
      case 'slow-fsync':
        return this.slowDisk();
      case 'half-open':
      case 'one-way':
      case 'latency':
        return this.spoil(kind);
      case 'worker-clock':
        return this.stepClock();
      case 'stop':
      case 'descriptors':
      case 'memory':
        return this.troubleOne(kind, index);
      case 'payload-killed':
      case 'payload-emptied':
      case 'payload-full':
      case 'payload-stopped':
        return this.troublePayloads(kind);
      case 'bucket-killed':
      case 'bucket-emptied':
      case 'bucket-throttled':
      case 'bucket-stopped':
        return this.troubleBucket(kind, this.options.bucket!);
    }
  }

  private async troubleBucket(kind: BucketFault, { store, gate }: BucketParts): Promise<void> {
    switch (kind) {
      case 'bucket-killed':
        await store.kill9();
        await sleep(this.options.random() * 4_000);
        return store.restart();
      case 'bucket-emptied':
        return store.empty();
      case 'bucket-throttled':
        gate.refuse({ status: 503, code: 'SlowDown', methods: ['PUT', 'GET', 'DELETE'] });
        await sleep(3_000);
        return gate.refuse(undefined);
      case 'bucket-stopped':
        return stopFor(store.pid, TROUBLE_MS);
    }
  }

  private async troublePayloads(kind: PayloadFault): Promise<void> {
    const { payloadServers, random } = this.options;
    const server = payloadServers[Math.floor(random() * payloadServers.length)]!;
    switch (kind) {
      case 'payload-killed':
        await server.kill9();
        await sleep(random() * 4_000);
        return server.restart();
      case 'payload-emptied':
        await server.command('FLUSHALL');
        return;
      case 'payload-full':
        await server.command('CONFIG', 'SET', 'maxmemory', 1);
        await sleep(3_000);
        await server.command('CONFIG', 'SET', 'maxmemory', 0);
        return;
      case 'payload-stopped':
        return stopFor(server.pid, TROUBLE_MS);
    }
  }

  private async spoil(trouble: Trouble): Promise<void> {
    const { matrix, random } = this.options;
    const wire = matrix!.wires[Math.floor(random() * matrix!.wires.length)]!;
    wire.begin(trouble);
    await sleep(TROUBLE_MS);
    wire.end();
  }

  private async stepClock(): Promise<void> {
    const clock = this.options.matrix!.clock!;
    clock.step(this.options.random() < 0.5 ? HOURS : -HOURS);
    await sleep(TROUBLE_MS);
    clock.step(0);
  }

  /** A worker or its executor; nothing where it is just being started again. */
  private async troubleOne(kind: 'stop' | 'descriptors' | 'memory', index: number): Promise<void> {
    const { fleet, random } = this.options;
    const pid = random() < 0.5 ? fleet.workerPid(index) : fleet.executorPid(index);
    if (pid === undefined) return;
    if (kind === 'stop') return stopFor(pid, TROUBLE_MS);
    return kind === 'descriptors' ? withoutDescriptors(pid, TROUBLE_MS) : withoutMemory(pid, SPARE_BYTES, TROUBLE_MS);
  }

  private async cutConnections(): Promise<void> {
    const { server } = this.options;
    await server.command('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await server.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
  }

  private async killServer(awayMs: number): Promise<void> {
    const { server } = this.options;
    await server.kill9();
    this.forget(FORGOTTEN_MS);
    await sleep(awayMs);
    await server.restart();
  }

  private forget(ms: number): void {
    const { forgets, history } = this.options;
    if (forgets) history.observe('forget', '', { since: sharedClockMs() - ms });
  }

  /** For a few seconds there is room for next to nothing more. */
  private async fillServer(): Promise<void> {
    const { server } = this.options;
    const used = Number(/used_memory:(\d+)/.exec(String(await server.command('INFO', 'memory')))?.[1]);
    await server.command('CONFIG', 'SET', 'maxmemory', used + 100_000);
    await sleep(3_000);
    await server.command('CONFIG', 'SET', 'maxmemory', 0);
  }

  /**
   * Every fsync of the server takes 300 ms longer, by strace on all its threads; SIGKILL in the middle, when what waits
   * for an fsync is lost.
   */
  private async slowDisk(): Promise<void> {
    const { server, slowMs } = this.options;
    const trace = spawn(
      'strace',
      [
        '-f',
        '-qq',
        '-p',
        String(server.pid),
        '-e',
        'trace=fsync,fdatasync',
        '-e',
        `inject=fsync,fdatasync:delay_enter=${FSYNC_DELAY_US}`,
        '-o',
        '/dev/null',
      ],
      { stdio: 'ignore' },
    );
    await sleep(slowMs);
    await server.kill9();
    this.forget(FORGOTTEN_SLOW_MS);
    trace.kill('SIGKILL');
    await server.restart();
  }
}

/** Whether this machine lets us slow another process's fsync down. */
export function canSlowDisk(): boolean {
  return (
    spawnSync('strace', ['-e', 'trace=fsync', '-e', 'inject=fsync:delay_enter=1', 'true'], { stdio: 'ignore' })
      .status === 0
  );
}
