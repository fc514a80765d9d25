// A real Prometheus for a drill: it scrapes every four seconds (a process whose queue server hangs takes three to answer),
// evaluates the shortened rules once a second, and says which alerts fire now and which fired at all.

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { freePort } from '@shoal/queue/testing';
import { readGroups } from '../watch/rules-file.ts';
import { shortenedRules } from './shorten.ts';

export interface Targets {
  readonly job: string;
  readonly addresses: readonly string[];
}

export class Watcher {
  private readonly child: ChildProcess;
  private readonly url: string;

  private constructor(child: ChildProcess, url: string) {
    this.child = child;
    this.url = url;
  }

  /** Resolves when it is ready. `program` is Prometheus, `folder` is its own. */
  static async start(
    program: string,
    folder: string,
    { targets, shorten }: { readonly targets: readonly Targets[]; readonly shorten: number },
  ): Promise<Watcher> {
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'rules.yml'), shortenedRules(readGroups('shoal.rules.yml'), shorten));
    writeFileSync(
      join(folder, 'prometheus.yml'),
      stringify({
        global: { scrape_interval: '4s', scrape_timeout: '4s', evaluation_interval: '1s' },
        rule_files: [join(folder, 'rules.yml')],
        scrape_configs: targets
          .filter(({ addresses }) => addresses.length > 0)
          .map(({ job, addresses }) => ({ job_name: job, static_configs: [{ targets: addresses }] })),
      }),
    );
    const address = `127.0.0.1:${await freePort()}`;
    const child = spawn(
      program,
      [
        `--config.file=${join(folder, 'prometheus.yml')}`,
        `--storage.tsdb.path=${join(folder, 'data')}`,
        `--web.listen-address=${address}`,
        '--log.level=error',
      ],
      { stdio: ['ignore', 'inherit', 'inherit'] },
    );
    const watcher = new Watcher(child, `http://${address}`);
    await until('Prometheus is ready', async () => (await fetch(`${watcher.url}/-/ready`)).ok);
    return watcher;
  }

  /** Alerts that fire now, sorted. */
  firing(): Promise<readonly string[]> {
    return this.names('count by (alertname) (ALERTS{alertstate="firing"})');
  }

  /** Alerts that fired at any time of the last hour, sorted. */
  fired(): Promise<readonly string[]> {
    return this.names('count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))');
  }

  /** Whether every target answered the last scrape. */
  async seesAll(): Promise<boolean> {
    const [all, up] = await Promise.all([this.query('count(up)'), this.query('sum(up)')]);
    return all.length === 1 && all[0]?.value[1] === up[0]?.value[1];
  }

  async stop(): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    this.child.kill('SIGKILL');
    await once(this.child, 'exit');
  }

  private async names(expr: string): Promise<readonly string[]> {
    return (await this.query(expr)).map(({ metric }) => metric['alertname'] ?? '').toSorted();
  }

  private async query(expr: string): Promise<readonly Sample[]> {
    const answer = await fetch(`${this.url}/api/v1/query?query=${encodeURIComponent(expr)}`);
    const { data } = (await answer.json()) as { data: { result: Sample[] } };
    return data.result;
  }
}

interface Sample {
  readonly metric: Readonly<Record<string, string>>;
  readonly value: readonly [number, string];
}

/** Asks every 250 ms; throws after `mostS` seconds. An error of a question counts as no. */
export async function until(what: string, holds: () => Promise<boolean>, mostS = 180): Promise<void> {
  const endMs = Date.now() + mostS * 1_000;
  while (!(await holds().catch(() => false))) {
    if (Date.now() > endMs) throw new Error(`after ${mostS} s it is still not so that ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
}
