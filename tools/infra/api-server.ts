// For cluster.test.ts: an API server of Kubernetes with its etcd, on loopback and in a folder of its own. Nothing runs
// what it is told: there are no controllers, no scheduler and no node, so it answers what a cluster takes and refuses.

import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { freePort } from '@shoal/queue/testing';
import type { Ran } from './container-rig.ts';

/** A server that was started on a loaded machine sets up its own kinds for minutes. */
const READY_MS = 600_000;

export class ApiServer {
  private readonly programs: string;
  private readonly folder: string;
  private readonly processes: ChildProcess[] = [];

  constructor({ programs, folder }: { readonly programs: string; readonly folder: string }) {
    this.programs = programs;
    this.folder = folder;
  }

  /** For whoever speaks with it by `kubectl` and `helm` on PATH. */
  get environment(): NodeJS.ProcessEnv {
    const bin = join(this.folder, 'bin');
    return { ...process.env, PATH: `${bin}:${process.env['PATH']}`, KUBECONFIG: join(this.folder, 'kubeconfig') };
  }

  async start(): Promise<void> {
    const [clients, peers, port] = [await freePort(), await freePort(), await freePort()];
    this.putPrograms();
    const etcd = `http://127.0.0.1:${clients}`;
    const peer = `http://127.0.0.1:${peers}`;
    this.spawn('etcd', [
      '--data-dir',
      join(this.folder, 'etcd'),
      '--listen-client-urls',
      etcd,
      '--advertise-client-urls',
      etcd,
      '--listen-peer-urls',
      peer,
      '--initial-advertise-peer-urls',
      peer,
      '--initial-cluster',
      `default=${peer}`,
      '--unsafe-no-fsync',
    ]);
    const token = randomBytes(16).toString('hex');
    const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    const key = this.write('accounts.pem', privateKey.export({ type: 'sec1', format: 'pem' }).toString());
    this.spawn('kube-apiserver', [
      `--etcd-servers=${etcd}`,
      `--secure-port=${port}`,
      '--bind-address=127.0.0.1',
      '--advertise-address=127.0.0.1',
      '--endpoint-reconciler-type=none',
      '--service-cluster-ip-range=10.0.0.0/24',
      `--cert-dir=${join(this.folder, 'certificates')}`,
      '--authorization-mode=RBAC',
      `--token-auth-file=${this.write('tokens.csv', `${token},operator,1,"system:masters"\n`)}`,
      '--service-account-issuer=https://kubernetes.default.svc',
      `--service-account-key-file=${key}`,
      `--service-account-signing-key-file=${key}`,
    ]);
    await this.untilReady(port, token);
  }

  /** A command of the shell at `cwd`, as a person would type it. */
  shell(commands: string, cwd: string): Ran {
    const { status, stdout, stderr } = spawnSync('sh', ['-eu', '-c', commands], {
      cwd,
      env: this.environment,
      encoding: 'utf8',
      timeout: 600_000,
      maxBuffer: 64e6,
    });
    return { status, stdout, stderr };
  }

  async stop(): Promise<void> {
    for (const child of this.processes.toReversed()) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
  }

  /** kubectl as it is, and helm by its engine of a Python package. */
  private putPrograms(): void {
    mkdirSync(join(this.folder, 'bin'));
    const put = (name: string, ...words: readonly string[]): void =>
      writeFileSync(join(this.folder, 'bin', name), `#!/bin/sh\nexec ${words.join(' ')} "$@"\n`, { mode: 0o755 });
    put('kubectl', join(this.programs, 'kubectl'));
    put('helm', join(this.programs, 'python'), join(import.meta.dirname, 'helm_of_python.py'));
  }

  private spawn(program: string, args: readonly string[]): void {
    const log = openSync(join(this.folder, `${program}.log`), 'a');
    const child = spawn(join(this.programs, program), args, { cwd: this.folder, stdio: ['ignore', log, log] });
    process.once('exit', () => child.kill('SIGKILL'));
    this.processes.push(child);
  }

  private async untilReady(port: number, token: string): Promise<void> {
    const authority = join(this.folder, 'certificates/apiserver.crt');
    const server = { server: `https://127.0.0.1:${port}`, 'certificate-authority': authority };
    const context = { cluster: 'here', user: 'operator' };
    const configuration = {
      apiVersion: 'v1',
      kind: 'Config',
      'current-context': 'here',
      clusters: [{ name: 'here', cluster: server }],
      users: [{ name: 'operator', user: { token } }],
      contexts: [{ name: 'here', context }],
    };
    this.write('kubeconfig', JSON.stringify(configuration));
    const end = Date.now() + READY_MS;
    while (!existsSync(authority) || this.shell('kubectl get --raw /readyz', this.folder).status !== 0) {
      const ended = this.processes.find((child) => child.exitCode !== null || child.signalCode !== null);
      if (ended !== undefined || Date.now() > end)
        throw new Error(`the API server is not ready: ${this.lastWords('etcd')}\n${this.lastWords('kube-apiserver')}`);
      await new Promise((resolve) => setTimeout(resolve, 1_000));
    }
  }

  private lastWords(program: string): string {
    return readFileSync(join(this.folder, `${program}.log`), 'utf8')
      .split('\n')
      .slice(-10)
      .join('\n');
  }

  private write(name: string, content: string): string {
    const path = join(this.folder, name);
    writeFileSync(path, content, { mode: 0o600 });
    return path;
  }
}
