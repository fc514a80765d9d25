// The app under test in a process of its own, so that its memory is its own: says its address, and when it is asked, the
// most memory it has had and what it holds.

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { noLog, type Logger } from '@shoal/core';
import { startApp, type AppUnderTestOptions } from './app-under-test.ts';

export interface Standing {
  /** Resident, at its most since the process began. */
  readonly peakBytes: number;
  readonly heldBytes: number;
  readonly open: number;
  readonly waiting: number;
  /** Requests for vectors by the status of their answers. */
  readonly answered: Readonly<Record<string, number>>;
  /** What was logged at level warn. */
  readonly warnings: readonly string[];
}

const STATUSES = ['200', '408', '429', '499'];

export class AppProcess {
  readonly url: string;
  private readonly child: ChildProcess;

  private constructor(child: ChildProcess, url: string) {
    this.child = child;
    this.url = url;
  }

  /** `files`: as many descriptors as it may have. */
  static async start(gate: AppUnderTestOptions['gate'], files?: number): Promise<AppProcess> {
    const command = [process.execPath, ...process.execArgv, fileURLToPath(import.meta.url), JSON.stringify(gate)];
    const limited = files === undefined ? command : ['sh', '-c', `ulimit -n ${files}; exec "$0" "$@"`, ...command];
    const child = spawn(limited[0]!, limited.slice(1), { stdio: ['ignore', 2, 2, 'ipc'] });
    const [url]: unknown[] = await once(child, 'message');
    return new AppProcess(child, String(url));
  }

  get hasEnded(): boolean {
    return this.child.exitCode !== null || this.child.signalCode !== null;
  }

  async standing(): Promise<Standing> {
    const answer = once(this.child, 'message');
    this.child.send('standing');
    const [found]: unknown[] = await answer;
    return found as Standing;
  }

  async stop(): Promise<void> {
    const gone = once(this.child, 'exit');
    this.child.kill('SIGKILL');
    await gone;
  }
}

async function serve(send: (message: unknown) => void, gate: AppUnderTestOptions['gate']): Promise<void> {
  const warnings: string[] = [];
  const log: Logger = { ...noLog, warn: (_facts: object, said: string) => warnings.push(said) };
  const app = await startApp({ gate: { ...gate, log } });
  process.on('message', async () => {
    const count = async (status: string): Promise<[string, number]> => [
      status,
      (await app.value('shoal_http_requests_total', { route: '/v1/embeddings', status })) ?? 0,
    ];
    send({
      peakBytes: process.resourceUsage().maxRSS * 1_024,
      heldBytes: await app.value('shoal_http_held_bytes'),
      open: await app.value('shoal_http_requests_open'),
      waiting: await app.value('shoal_http_requests_waiting'),
      warnings,
      answered: Object.fromEntries(await Promise.all(STATUSES.map(count))),
    });
  });
  send(app.url);
}

const [, main, gate = '{}'] = process.argv;
if (process.send !== undefined && main === fileURLToPath(import.meta.url))
  await serve(process.send.bind(process), JSON.parse(gate) as AppUnderTestOptions['gate']);
