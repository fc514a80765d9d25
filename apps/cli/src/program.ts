// Every command with its flags and help, and nothing that takes time to load: a command's own code is imported when it
// runs, so that `shoal --help` costs what commander costs.

import { Command } from 'commander';
import type { Shell } from './completion.ts';
import { redactText } from '@shoal/core/redact-url';
import { print, type Terminal } from './terminal.ts';
import { addModel } from './program/models.ts';
import { addAudit, addQueue } from './program/queue.ts';
import { addDashboard, addExporter, addKey, addServe, addUp } from './program/services.ts';
import { addIndex, addSearch, addSimilarity, addSpread } from './program/similarity.ts';
import { addEmbed, addRerank, addTry } from './program/texts.ts';
import { addDoctor, addFleet, addGpu, addTune, addWorker } from './program/workers.ts';

export function buildProgram(terminal: Terminal, version: string): Command {
  const program = new Command('shoal')
    .description('Embedding jobs on a durable queue, batched to fit the device they run on.')
    .version(version, '--version', 'print the version')
    .helpOption('-h, --help', 'show help; also for every command: shoal embed --help')
    .helpCommand(false)
    .exitOverride()
    .configureOutput({
      writeOut: (text) => void terminal.stdout.write(text),
      writeErr: (text) => void terminal.stderr.write(text),
      outputError: (text, write) => write(redactText(text.replace(/^error: /, 'shoal: '))),
    })
    .addHelpText('after', AFTER_HELP);
  addEmbed(program, terminal);
  addTry(program, terminal);
  addIndex(program, terminal);
  addSearch(program, terminal);
  addRerank(program, terminal);
  addSimilarity(program, terminal);
  addSpread(program, terminal);
  addModel(program, terminal);
  addUp(program, terminal);
  addServe(program, terminal);
  addKey(program, terminal);
  addDashboard(program, terminal);
  addExporter(program, terminal, version);
  addWorker(program, terminal);
  addTune(program, terminal);
  addGpu(program, terminal);
  addDoctor(program, terminal, version);
  addFleet(program, terminal);
  addQueue(program, terminal);
  addAudit(program, terminal);
  addCompletion(program, terminal);
  return program;
}

const AFTER_HELP = `
Settings come from flags, SHOAL_* and REDIS_URL in the environment, and shoal.config.json in the current folder, in
this order. Without REDIS_URL a private queue server of this user is used, and started when there is none.
Exit codes: 0 done, 1 failed, 2 called wrongly, 130 after Ctrl-C.`;

function addCompletion(program: Command, terminal: Terminal): void {
  program
    .command('completion')
    .summary('print a completion script for your shell')
    .description(
      'Prints a completion script. bash: source <(shoal completion bash); zsh: the same; fish: shoal ' +
        'completion fish | source',
    )
    .addArgument(program.createArgument('<shell>', 'the shell').choices(['bash', 'zsh', 'fish']))
    .action(async (shell: Shell) =>
      print(terminal, (await import('./completion.ts')).completionScript(program, shell)),
    );
}
