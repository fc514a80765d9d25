// A real PostgreSQL with pgvector for nightly tests: the one that PyPI's pgserver bundles, fetched into a folder of its
// own, on a free port of this machine.

import { execFileSync, spawn, type ChildProcessByStdio } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';

/** PostgreSQL refuses to run as root. */
const nobody = process.getuid?.() === 0 ? { uid: 65_534, gid: 65_534 } : undefined;

export class PostgresServer {
  readonly folder = mkdtempSync(join(tmpdir(), 'shoal-postgres-'));
  /** Where its programs lie, psql among them. */
  programs = '';
  port = 0;
  private server: ChildProcessByStdio<null, null, Readable> | undefined;

  /** Fetches it, makes an empty database with pgvector's extension to be created, and starts it. */
  async open(): Promise<void> {
    chmodSync(this.folder, 0o755);
    execFileSync('python3', ['-m', 'venv', join(this.folder, 'venv')]);
    const python = join(this.folder, 'venv/bin/python');
    execFileSync(python, ['-m', 'pip', 'install', '-q', '--no-deps', 'pgserver'], { stdio: 'inherit' });
    const site = execFileSync(python, ['-c', "import sysconfig; print(sysconfig.get_path('purelib'))"], {
      encoding: 'utf8',
    }).trim();
    this.programs = join(site, 'pgserver/pginstall/bin');
    mkdirSync(this.data);
    if (nobody !== undefined) chownSync(this.data, nobody.uid, nobody.gid);
    execFileSync(join(this.programs, 'initdb'), ['-D', this.data, '-U', 'shoal', '-A', 'trust', '--no-sync'], {
      ...nobody,
      stdio: 'ignore',
    });
    const probe = createServer().listen(0, '127.0.0.1');
    await once(probe, 'listening');
    const address = probe.address();
    this.port = typeof address === 'object' && address !== null ? address.port : 0;
    await new Promise((resolve) => probe.close(resolve));
    await this.start();
  }

  /** Resolves when it takes connections. */
  async start(): Promise<void> {
    const args = ['-D', this.data, '-p', String(this.port), '-h', '127.0.0.1', '-k', ''];
    const server = spawn(join(this.programs, 'postgres'), args, { ...nobody, stdio: ['ignore', 'ignore', 'pipe'] });
    this.server = server;
    await new Promise<void>((resolve) =>
      server.stderr.on('data', (chunk) => {
        if (String(chunk).includes('ready to accept connections')) resolve();
      }),
    );
  }

  async kill(signal: NodeJS.Signals): Promise<void> {
    const { server } = this;
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return;
    server.kill(signal);
    await once(server, 'exit');
  }

  async close(): Promise<void> {
    await this.kill('SIGTERM');
    rmSync(this.folder, { recursive: true });
  }

  /** The address of its database. */
  get url(): string {
    return `postgres://shoal@127.0.0.1:${this.port}/postgres`;
  }

  private get data(): string {
    return join(this.folder, 'data');
  }
}
