// What happens to the fleet and its server in the chaos bench, one fault at a time, chosen by a seed. Every fault heals
// itself; how often each happened is counted.

import { spawn, spawnSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import type { TestServer } from '@shoal/queue/testing';
import { sharedClockMs, type Recorder } from '@shoal/world';
import type { SupervisedFleet } from './fleet.ts';

export type FaultKind = 'worker' | 'executor' | 'connections' | 'server' | 'outage' | 'full' | 'slow-fsync';

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
}

/** Out of a hundred; outage and slow disk come once each, at their time. */
const WEIGHTS: readonly (readonly [FaultKind, number])[] = [
  ['worker', 40],
  ['executor', 25],
  ['connections', 20],
  ['server', 8],
  ['full', 7],
];
const FSYNC_DELAY_US = 300_000;
/** As much of what it acknowledged may a killed server forget, by its fsync of every second; and while that is slow. */
const FORGOTTEN_MS = 2_000;
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
  };
  private readonly options: FaultsOptions;

  constructor(options: FaultsOptions) {
    this.options = options;
  }

  async anyOne(): Promise<void> {
    let left = this.options.random() * 100;
    for (const [kind, weight] of WEIGHTS) {
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
    }
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
