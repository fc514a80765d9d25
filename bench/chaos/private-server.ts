// A private queue server as the stage of the matrix has its queue server: attached to by this process, with a supervisor
// and a guard that things can happen to.

import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { attachServer, findServerProgram, type AttachedServer } from '@shoal/private-server';
import { closeConnection } from '@shoal/queue';
import { childrenOf } from '../rig/processes.ts';
import { connectRaw, type Redis } from './producer-parts.ts';
import type { StageServer } from './matrix-stage.ts';

const AWAY_MS = 20;
const CLOCK_VARIABLES = ['LD_PRELOAD', 'FAKETIME_TIMESTAMP_FILE', 'FAKETIME_NO_CACHE', 'FAKETIME_DONT_FAKE_MONOTONIC'];

export interface PrivateServerOptions {
  /** Its data, log and run file are below it. */
  readonly folder: string;
  /** Where programs were fetched to. */
  readonly cacheDir: string;
  /** Of the supervisor alone: the server keeps the clock of the machine. */
  readonly clock: Readonly<Record<string, string>>;
}

export class PrivateServer implements StageServer {
  readonly url: string;
  private readonly attached: AttachedServer;
  private readonly connection: Redis;
  private readonly runFile: string;

  private constructor(attached: AttachedServer, connection: Redis, runFile: string) {
    this.url = attached.url;
    this.attached = attached;
    this.connection = connection;
    this.runFile = runFile;
  }

  static async start({ folder, cacheDir, clock }: PrivateServerOptions): Promise<PrivateServer> {
    const given = process.env['SHOAL_TEST_SERVER'];
    const program = given ?? (await findServerProgram({ cacheDir })).path;
    const bin = join(folder, 'bin');
    mkdirSync(bin);
    const wrapper = join(bin, 'valkey-server');
    const unset = CLOCK_VARIABLES.map((name) => `-u ${name}`).join(' ');
    writeFileSync(wrapper, `#!/bin/sh\nexec env ${unset} ${program} "$@"\n`);
    chmodSync(wrapper, 0o755);
    process.env['PATH'] = `${dirname(wrapper)}:${process.env['PATH'] ?? ''}`;
    Object.assign(process.env, clock);
    const attached = await attachServer({ cacheDir: folder, onLost: say }).finally(() => {
      for (const name of Object.keys(clock)) delete process.env[name];
    });
    return new PrivateServer(attached, await connectRaw(attached.url), join(folder, 'server', 'run.json'));
  }

  /** 0 between two starts. */
  get pid(): number {
    return this.run().server?.pid ?? 0;
  }

  get supervisorPid(): number {
    return this.run().supervisor.pid;
  }

  get guardPid(): number | undefined {
    return childrenOf(this.supervisorPid).find((pid) =>
      readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes('shoal-guard'),
    );
  }

  command(name: string, ...values: (string | number | Buffer)[]): Promise<unknown> {
    return this.connection.call(name, ...values);
  }

  async kill9(): Promise<void> {
    process.kill(this.pid, 'SIGKILL');
  }

  /** Its supervisor does. */
  async restart(): Promise<void> {
    while (this.pid === 0) await sleep(AWAY_MS);
  }

  async stop(): Promise<void> {
    await closeConnection(this.connection);
    await this.attached.release();
  }

  private run(): { readonly supervisor: { readonly pid: number }; readonly server?: { readonly pid: number } } {
    return JSON.parse(readFileSync(this.runFile, 'utf8')) as ReturnType<PrivateServer['run']>;
  }
}

function say({ message }: Error): void {
  process.stderr.write(`matrix: ${message}\n`);
}
