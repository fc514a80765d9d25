// Commands about workers and the devices that they run on.

import type { Command } from 'commander';
import type { DoctorFlags } from '../commands/doctor.ts';
import type { GpuFlags } from '../commands/gpu.ts';
import type { FleetFlags, StatusFlags } from '../commands/fleet.ts';
import type { RestartFlags } from '../commands/fleet-restart.ts';
import type { TuneFlags } from '../commands/tune.ts';
import type { WorkerFlags } from '../commands/worker.ts';
import type { Terminal } from '../terminal.ts';
import { CONNECTION, STORE, WORKER, addSettings } from './settings.ts';
import { positiveInteger, queueName, span } from './shared.ts';

export function addWorker(program: Command, terminal: Terminal): void {
  const command = program
    .command('worker')
    .summary('run one worker in the foreground')
    .description(
      'Runs one worker on one device until it is told to stop: for the jobs of one model or, with --kind ' +
        'similarity, for similarity jobs on the collections of this machine. SIGTERM or Ctrl-C drains: what is ' +
        'in flight is finished, the rest goes back to the queue.',
    );
  addSettings(command, ['kind', 'device', 'model', 'maxTokens', 'traces', 'httpHosts', ...CONNECTION, ...WORKER]);
  command.action(async (flags: WorkerFlags) => (await import('../commands/worker.ts')).worker(terminal, flags));
}

export function addFleet(program: Command, terminal: Terminal): void {
  const fleet = program
    .command('fleet')
    .description(
      'The workers of a model: who is alive, how fast, what waits; pause their claiming and let it go on. ' +
        'Works through the queue server that runs; none is started.',
    )
    .helpCommand(false);
  const which = 'a worker’s id, the beginning of one, or all';
  const status = fleet
    .command('status')
    .description(
      'Shows live workers (device, rates by length of rows, claims, token budget, memory), both lanes with ' +
        'what waits, from which backlog on a CPU worker helps out, and what stands in the way.',
    )
    .option('--all', 'every queue of the prefix');
  status.action(async (flags: StatusFlags) => (await import('../commands/fleet.ts')).status(terminal, flags));
  const drain = fleet
    .command('drain')
    .description(
      'Tells workers to claim nothing more; they finish what they have and stay up. With all, workers that ' +
        'start later are drained too.',
    )
    .argument('<worker>', which);
  drain.action(async (id: string, flags: FleetFlags) =>
    (await import('../commands/fleet.ts')).drain(terminal, id, flags),
  );
  const resume = fleet.command('resume').description('Lets drained workers claim again.').argument('<worker>', which);
  resume.action(async (id: string, flags: FleetFlags) =>
    (await import('../commands/fleet.ts')).resume(terminal, id, flags),
  );
  const restart = fleet
    .command('restart')
    .description(
      'Replaces workers: each is drained, told to leave (exit code 75) and started again by whoever keeps it; the next ' +
        'one’s turn is when a worker of the same name can serve. Stops at the first that does not come back. Ctrl-C ' +
        'leaves the fleet serving.',
    )
    .argument('[worker]', which, 'all')
    .option('--rolling [n]', 'so many at a time, one if no number is given', positiveInteger)
    .option('--within <time>', 'how long a worker may be away, e.g. 5m (default: 3m)', span)
    .option(
      '--drain-within <time>',
      'how long it may finish what it has claimed; the rest goes back (default: 1m)',
      span,
    )
    .option('--dry-run', 'only say which workers would be restarted');
  restart.action(async (id: string, flags: RestartFlags) =>
    (await import('../commands/fleet.ts')).restart(terminal, id, flags),
  );
  for (const command of [status, drain, resume, restart]) {
    command
      .option('--queue <name>', 'a queue by its name instead of a model’s, e.g. similarity', queueName)
      .option('--json', 'report as JSON')
      .option('-q, --quiet', 'no notes; errors only');
    addSettings(command, ['model', 'redisUrl', 'prefix', 'cacheDir']);
  }
}

export function addGpu(program: Command, terminal: Terminal): void {
  const gpu = program.command('gpu').description('What NVIDIA GPUs need beside the driver.').helpCommand(false);
  const install = gpu
    .command('install')
    .description(
      'Fetches ONNX Runtime’s CUDA provider (a pinned wheel of the same version, 250 MB, once), puts it beside ' +
        'the runtime and says what its loader still misses. Does nothing when it is there.',
    )
    .option('--force', 'fetch again and replace what is there')
    .option('--json', 'report as JSON')
    .option('-q, --quiet', 'no progress and no notes; errors only');
  addSettings(install, ['cacheDir']);
  install.action(async (flags: GpuFlags) => (await import('../commands/gpu.ts')).install(terminal, flags));
}

export function addDoctor(program: Command, terminal: Terminal, version: string): void {
  const command = program
    .command('doctor')
    .summary('what works here and what does not, each failure with its cure')
    .description(
      'Looks at versions, cache folder, GPUs (driver, memory, ECC, MIG, permission), the CUDA provider, the ' +
        'model on its device, this machine, the queue server and all its queues with their workers. Changes nothing. ' +
        'Exit code 1 when something is broken that the settings in force need.',
    )
    .option('--bundle <file>', 'write what was found as a tar (.tar, .tgz) for who helps; no texts, no secrets')
    .option('--log <file>', 'a log whose last lines go into the bundle')
    .option('--json', 'report as JSON');
  addSettings(command, ['device', 'precision', 'model', 'redisUrl', ...STORE]);
  command.action(async (flags: DoctorFlags) =>
    (await import('../commands/doctor.ts')).doctor(terminal, flags, version),
  );
}

export function addTune(program: Command, terminal: Terminal): void {
  const command = program
    .command('tune')
    .summary('measure this device with one model, in under two minutes')
    .description(
      'Measures how much memory runs of a model need on a device and which token budget gives most texts per ' +
        'second, prints both beside the preset, and keeps them: workers use them from their next start. With ' +
        '--kind similarity: from which sizes on the GPU is faster than the CPU at comparing. Nothing else should ' +
        'run on the device meanwhile.',
    )
    .option('--show', 'only show what earlier runs have kept in the cache folder')
    .option('--undo', 'only forget it: workers begin with their presets again')
    .option('--json', 'report as JSON')
    .option('-q, --quiet', 'no progress and no notes; errors only');
  addSettings(command, [
    'kind',
    'device',
    'precision',
    'encoder',
    'deviceSessions',
    'model',
    'maxTokens',
    'threads',
    'maxRows',
    'poolTokens',
    ...STORE,
    'kernels',
    'cudaLibrary',
  ]);
  command.action(async (flags: TuneFlags) => (await import('../commands/tune.ts')).tune(terminal, flags));
}
