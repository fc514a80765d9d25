// Commands that look at queues and put them right.

import { type Command, Option } from 'commander';
import type { AuditFlags } from '../commands/audit.ts';
import type { CleanFlags, CountsFlags, QueueFlags, RetryFlags } from '../commands/queue.ts';
import type { TenantFlags } from '../commands/queue-look.ts';
import type { Terminal } from '../terminal.ts';
import { addSettings } from './settings.ts';
import { positiveInteger, queueName, span } from './shared.ts';

export function addQueue(program: Command, terminal: Terminal): void {
  const queue = program
    .command('queue')
    .description(
      'The queue of a model, both lanes and the quarantine: look at it, pause it, run jobs again, take them ' +
        'away, put it right. Works through the queue server that runs; none is started.',
    )
    .helpCommand(false);
  const counts = queue
    .command('counts')
    .description('Jobs of both lanes by state, workers, quarantine, reserved room.')
    .option('--all', 'every queue of the prefix');
  counts.action(async (flags: CountsFlags) => (await import('../commands/queue.ts')).counts(terminal, flags));
  const pause = queue
    .command('pause')
    .description('Nothing is claimed any more, in both lanes; what is claimed is finished, new jobs are taken.');
  pause.action(async (flags: QueueFlags) => (await import('../commands/queue.ts')).pause(terminal, flags));
  const resume = queue.command('resume').description('Lets a paused queue go on.');
  resume.action(async (flags: QueueFlags) => (await import('../commands/queue.ts')).resume(terminal, flags));
  const jobs = addQueueJobs(queue, terminal);
  const quarantine = addQuarantine(queue, terminal);
  const looks = addLooks(queue, terminal);
  for (const command of [counts, pause, resume, ...jobs, ...looks, ...quarantine]) {
    command
      .option('--queue <name>', 'a queue by its name instead of a model’s, e.g. embed-minilm-sim', queueName)
      .option('--json', 'report as JSON')
      .option('-q, --quiet', 'no progress and no notes; errors only');
    addSettings(command, ['model', 'redisUrl', 'prefix', 'cacheDir']);
  }
}

function addQueueJobs(queue: Command, terminal: Terminal): Command[] {
  const retry = queue
    .command('retry')
    .description(
      'Failed jobs wait again: those named, all, or all with one error code. A job whose input went with its ' +
        'failure has to be added anew.',
    )
    .argument('[job...]', 'ids of jobs')
    .option('--all', 'every job that failed')
    .option('--code <code>', 'every job that failed with this code, e.g. OUT_OF_VRAM');
  retry.action(async (jobIds: string[], flags: RetryFlags) =>
    (await import('../commands/queue.ts')).retry(terminal, jobIds, flags),
  );
  const cancel = queue
    .command('cancel')
    .description(
      'Takes jobs back: those that wait fail with CANCELLED at once, those that run as soon as their worker has heard.',
    )
    .argument('<job...>', 'ids of jobs');
  cancel.action(async (jobIds: string[], flags: QueueFlags) =>
    (await import('../commands/queue.ts')).cancel(terminal, jobIds, flags),
  );
  const clean = queue
    .command('clean')
    .description('Takes the records of finished jobs away. Results stay until their time to live is over.')
    .addOption(new Option('--state <state>', 'which jobs').choices(['completed', 'failed']).default('completed'))
    .option('--older-than <time>', 'only those that ended so long ago, e.g. 30s, 10m, 6h, 7d', span, 0);
  clean.action(async (flags: CleanFlags) => (await import('../commands/queue.ts')).clean(terminal, flags));
  const repair = queue
    .command('repair')
    .description(
      'Looks at every job of both lanes and puts right what is damaged: records that cannot be read, ids ' +
        'without a record, jobs that are in no list or wait for a child that is gone. Workers do the same every ' +
        'ten minutes, less thoroughly.',
    );
  repair.action(async (flags: QueueFlags) => (await import('../commands/queue.ts')).repair(terminal, flags));
  return [retry, cancel, clean, repair];
}

function addLooks(queue: Command, terminal: Terminal): Command[] {
  const why = queue
    .command('why')
    .description(
      'Says in one sentence why a job is where it is, then what that was judged from: over all queues of the prefix, both ' +
        'lanes, quarantine, inputs and results. Exit code 1 where nobody knows the id.',
    )
    .argument('<job>', 'id of a job');
  why.action(async (jobId: string, flags: QueueFlags) =>
    (await import('../commands/queue-look.ts')).why(terminal, jobId, flags),
  );
  const tenants = queue
    .command('tenants')
    .description('Whose jobs wait, those with most rows first: rows, tokens, room that is reserved, the longest waits.')
    .option('--top <n>', 'so many tenants (default: 20)', positiveInteger);
  tenants.action(async (flags: TenantFlags) => (await import('../commands/queue-look.ts')).tenants(terminal, flags));
  return [why, tenants];
}

function addQuarantine(queue: Command, terminal: Terminal): Command[] {
  const quarantine = queue
    .command('quarantine')
    .description('Jobs that killed their executor, with their inputs: look, give back, drop.')
    .helpCommand(false);
  const list = quarantine
    .command('list')
    .description('Shows up to 1,000 quarantined jobs, the newest first, and why they are here.');
  list.action(async (flags: QueueFlags) => (await import('../commands/queue.ts')).quarantineList(terminal, flags));
  const giveBack = quarantine
    .command('return')
    .description('Jobs wait again in the main lane, under their ids.')
    .argument('<job...>', 'ids of jobs');
  giveBack.action(async (jobIds: string[], flags: QueueFlags) =>
    (await import('../commands/queue.ts')).quarantineReturn(terminal, jobIds, flags),
  );
  const drop = quarantine
    .command('drop')
    .description('Takes jobs and their inputs away for good.')
    .argument('<job...>', 'ids of jobs');
  drop.action(async (jobIds: string[], flags: QueueFlags) =>
    (await import('../commands/queue.ts')).quarantineDrop(terminal, jobIds, flags),
  );
  return [list, giveBack, drop];
}

export function addAudit(program: Command, terminal: Terminal): void {
  const command = program
    .command('audit')
    .summary('who changed what by hand')
    .description(
      'Shows who did what by hand, the newest last: commands that change a queue, its workers or the keys of HTTP, and ' +
        'actions of the dashboard. About 10,000 entries are kept on the queue server.',
    )
    .option('--since <time>', 'only the last so long, e.g. 24h', span)
    .option('--most <n>', 'the newest so many (default: 100)', positiveInteger)
    .option('--json', 'one JSON object a line')
    .option('-q, --quiet', 'no notes; errors only');
  addSettings(command, ['redisUrl', 'prefix', 'cacheDir']);
  command.action(async (flags: AuditFlags) => (await import('../commands/audit.ts')).audit(terminal, flags));
}
