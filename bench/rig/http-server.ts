// Shoal's HTTP in a process of its own, with API keys, as benches start it. Linux only.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { makeApiKey } from '@shoal/core';
import { programOf } from '@shoal/core/testing';
import { FileApiKeys } from '@shoal/queue';

/** A file of keys. */
export class BenchKeys {
  private readonly folder = mkdtempSync(join(tmpdir(), 'shoal-http-bench-'));
  private readonly store = new FileApiKeys(join(this.folder, 'keys.json'));

  get file(): string {
    return this.store.place;
  }

  /** A key of a new tenant of this name. */
  async of(tenant: string): Promise<string> {
    const { text, kept } = makeApiKey({ name: tenant, tenant }, Date.now());
    await this.store.add(kept);
    return text;
  }

  close(): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

export class HttpServer {
  readonly url: string;
  private readonly child: ChildProcess;

  private constructor(child: ChildProcess, url: string) {
    this.child = child;
    this.url = url;
  }

  /** `environment` adds settings. */
  static async start(
    redisUrl: string,
    keys: BenchKeys,
    environment: Readonly<Record<string, string>> = {},
  ): Promise<HttpServer> {
    const child = fork(programOf('producer').main, [], {
      env: {
        ...process.env,
        SHOAL_REDIS_URL: redisUrl,
        SHOAL_MODEL: 'minilm',
        SHOAL_HTTP_PORT: '0',
        SHOAL_HTTP_KEY_FILE: keys.file,
        SHOAL_LOG_LEVEL: 'error',
        ...environment,
      },
      stdio: ['ignore', 2, 2, 'ipc'],
    });
    process.once('exit', () => child.kill('SIGKILL'));
    const [report] = (await once(child, 'message')) as [{ kind: string; url: string; failure?: { message: string } }];
    if (report.kind !== 'ready') throw new Error(report.failure?.message ?? 'HTTP did not start');
    return new HttpServer(child, report.url);
  }

  get pid(): number {
    return this.child.pid!;
  }

  /** Resident, at its most, MB. */
  peakMb(): number {
    const [, kibibytes] = /VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${this.pid}/status`, 'utf8')) ?? [];
    return Math.round((1_024 * Number(kibibytes)) / 1e6);
  }

  async stop(): Promise<void> {
    const gone = once(this.child, 'exit');
    this.child.kill('SIGTERM');
    await gone;
  }
}
