// Commands that stay: everything at once, HTTP and its keys, dashboard, exporter.

import type { Command } from 'commander';
import type { ExporterFlags } from '../commands/exporter.ts';
import type { CreateFlags, KeyFlags } from '../commands/key.ts';
import type { ServeFlags } from '../commands/serve.ts';
import type { UpFlags } from '../commands/up.ts';
import type { Terminal } from '../terminal.ts';
import { CONNECTION, DASHBOARD, HTTP, WORKER, addSettings } from './settings.ts';
import { positiveInteger, span } from './shared.ts';

export function addUp(program: Command, terminal: Terminal): void {
  const command = program
    .command('up')
    .summary('everything on this machine: queue server, HTTP, workers, dashboard')
    .description(
      'Starts a private queue server (or uses the one of REDIS_URL), the HTTP producer with OpenAI’s API, a ' +
        'worker for each GPU that can be used and one on the CPU, a worker for similarity, and the dashboard; ' +
        'starts again what dies. With --device only that device and the CPU work. Ctrl-C answers what is open, ' +
        'drains the workers and leaves nothing running.',
    )
    .option('--json', 'print the addresses as one line of JSON');
  addSettings(command, ['device', 'model', 'maxTokens', 'traces', ...HTTP, ...DASHBOARD, ...CONNECTION, ...WORKER]);
  command.action(async (flags: UpFlags) => (await import('../commands/up.ts')).up(terminal, flags));
}

export function addServe(program: Command, terminal: Terminal): void {
  const command = program
    .command('serve')
    .summary('run the HTTP producer in the foreground')
    .description(
      'Answers POST /v1/embeddings in the shape of OpenAI’s API, through the queue; workers run elsewhere. ' +
        'Prints its address when it listens. SIGTERM or Ctrl-C answers what is open first.',
    );
  addSettings(command, ['model', 'maxTokens', 'traces', ...HTTP, ...CONNECTION]);
  command.action(async (flags: ServeFlags) => (await import('../commands/serve.ts')).serve(terminal, flags));
}

export function addKey(program: Command, terminal: Terminal): void {
  const key = program
    .command('key')
    .description(
      'API keys of the HTTP interface: make, list, revoke. They are kept as digests on the queue server that runs, for ' +
        'all HTTP processes, or in a file (--http-key-file). From the first one on HTTP answers nobody without a key. ' +
        'With --dashboard: keys of the dashboard, in the file of --dashboard-key-file.',
    )
    .helpCommand(false);
  const create = key
    .command('create')
    .description('Makes a key and prints it, once: only its digest is kept.')
    .argument('<name>', 'what or who uses it, for people')
    .option('--tenant <name>', 'whose jobs, files and batches are its own; tenants share the workers half and half')
    .option(
      '--scopes <list>',
      'what it is for, separated by commas: embed, rerank, similarity, batches, metrics, or admin for everything ' +
        '(default: the first four); with --dashboard: view or operate (default: view)',
    )
    .option('--requests-per-minute <n>', 'most requests a minute (default: no limit)', positiveInteger)
    .option('--texts-per-minute <n>', 'most texts a minute (default: no limit)', positiveInteger)
    .option('--tokens-per-minute <n>', 'most tokens a minute (default: no limit)', positiveInteger)
    .option('--expires <time>', 'how long it is good, e.g. 90d (default: until it is revoked)', span);
  create.action(async (name: string, flags: CreateFlags) =>
    (await import('../commands/key.ts')).create(terminal, name, flags),
  );
  const list = key.command('list').description('Shows what is kept of each key; never the key itself.');
  list.action(async (flags: KeyFlags) => (await import('../commands/key.ts')).list(terminal, flags));
  const revoke = key
    .command('revoke')
    .description('Makes keys useless, within seconds. Their records stay.')
    .argument('<id...>', 'the 10 characters after "shoal_", as shoal key list shows them');
  revoke.action(async (ids: string[], flags: KeyFlags) =>
    (await import('../commands/key.ts')).revoke(terminal, ids, flags),
  );
  for (const command of [create, list, revoke]) {
    command.option('--json', 'report as JSON').option('-q, --quiet', 'no notes; errors only');
    command.option('--dashboard', 'keys of the dashboard, instead of HTTP');
    addSettings(command, ['httpKeyFile', 'dashboardKeyFile', 'redisUrl', 'prefix', 'cacheDir']);
  }
}

export function addDashboard(program: Command, terminal: Terminal): void {
  const command = program
    .command('dashboard')
    .summary('run the dashboard in the foreground')
    .description(
      'Shows all queues and their jobs in a browser (Bull Board), for looking only. Prints its address when it ' +
        'listens.',
    );
  addSettings(command, [...DASHBOARD, 'httpHosts', ...CONNECTION]);
  command.action(async (flags: ServeFlags) => (await import('../commands/serve.ts')).dashboard(terminal, flags));
}

export function addExporter(program: Command, terminal: Terminal, version: string): void {
  const command = program
    .command('exporter')
    .summary('tell Prometheus of every queue, in the foreground')
    .description(
      'Serves /metrics of the whole fleet: jobs, waits, workers and backlog of every queue of the prefix, whoever feeds ' +
        'it (docs/metrics.md). One is enough for a fleet; the dashboard tells the same. Goes on while the queue server ' +
        'is away, and tells that. Prints its address when it listens.',
    )
    .option('--port <port>', 'as --exporter-port')
    .option('--host <host>', 'as --exporter-host');
  addSettings(command, ['exporterHost', 'exporterPort', 'httpHosts', ...CONNECTION]);
  command.action(async (flags: ExporterFlags) =>
    (await import('../commands/exporter.ts')).exporter(terminal, flags, version),
  );
}
