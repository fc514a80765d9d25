// Models of the cache folder: fetched, looked at, imported, removed.

import { type Command, Option } from 'commander';
import type { ImportFlags, ModelFlags, PullFlags } from '../commands/model.ts';
import type { Terminal } from '../terminal.ts';
import { STORE, addSettings } from './settings.ts';

export function addModel(program: Command, terminal: Terminal): void {
  const model = program
    .command('model')
    .description('Models of the cache folder: fetch, list, verify, import.')
    .helpCommand(false);
  const pull = model
    .command('pull')
    .description('Fetches a model and verifies it. Does nothing when it is there.')
    .argument('[name]', 'name of the model, or ORG/NAME[@REVISION] of the Hugging Face hub', 'minilm')
    .option('--name <name>', 'what to call a model of the hub here; without this flag org--name')
    .option('--task <name>', 'whose adapter to merge, of a model that has one for each task (Jina v3): org--name-task')
    .addOption(dtypeOption())
    .option('--update', 'take the newest commit of the hub instead of the one that is stored')
    .option('--force', 'fetch again and replace what is there')
    .option('-q, --quiet', 'no progress and no notes; errors only')
    .option('--json', 'report as JSON');
  pull.action(async (name: string, flags: PullFlags) =>
    (await import('../commands/model.ts')).pull(terminal, name, flags),
  );
  const list = model
    .command('list')
    .description('Shows the models that can be used, and which of them are in the cache.')
    .option('--json', 'report as JSON');
  list.action(async (flags: ModelFlags) => (await import('../commands/model.ts')).list(terminal, flags));
  const verify = model
    .command('verify')
    .description('Reads every file of a cached model and compares it with its checksum.')
    .argument('[name]', 'name of the model', 'minilm')
    .option('--json', 'report as JSON');
  verify.action(async (name: string, flags: ModelFlags) =>
    (await import('../commands/model.ts')).verify(terminal, name, flags),
  );
  const bring = model
    .command('import')
    .description(
      'Copies a model into the cache, checks it and gives it a name: a folder with ' +
        'config.json, model.safetensors and tokenizer.json, or an .onnx file with config.json and tokenizer.json ' +
        'beside it or one folder up. What cannot be computed as its authors do is refused by name.',
    )
    .argument('<path>', 'the folder or .onnx file')
    .option('--name <name>', 'what to call it: a-z, 0-9 and "-"; without this flag after the folder or file')
    .option('--force', 'replace the model that was imported under this name')
    .addOption(dtypeOption())
    .addOption(
      new Option('--pooling <kind>', 'how tokens become one vector, where no file of the model says it').choices([
        'mean',
        'cls',
        'lasttoken',
      ]),
    )
    .option('--normalize', 'vectors of length 1, where the files of the model say nothing of it')
    .option('--task <name>', 'whose adapter to merge into the weights, of a model that has adapters (Jina v3)')
    .option('--query-prompt <text>', 'put before texts that ask for the prompt "query", instead of what the files say')
    .option('--passage-prompt <text>', 'the same for the prompt "passage"')
    .option('-q, --quiet', 'no notes; errors only')
    .option('--json', 'report as JSON');
  bring.action(async (path: string, flags: ImportFlags) =>
    (await import('../commands/model.ts')).bring(terminal, path, flags),
  );
  const show = model
    .command('show')
    .description('Shows what is known of a cached model: vectors, tokenizer, prompts, queue, licence, files.')
    .argument('[name]', 'name of the model, or ORG/NAME of the hub', 'minilm')
    .option('--json', 'report as JSON');
  show.action(async (name: string, flags: ModelFlags) =>
    (await import('../commands/model.ts')).show(terminal, name, flags),
  );
  const remove = model
    .command('rm')
    .description(
      'Takes a model out of the cache, with the graphs made of it, and says what was freed. Refused while a worker ' +
        'serves it.',
    )
    .argument('<name>', 'name of the model, or ORG/NAME of the hub')
    .option('--force', 'also while it is served')
    .option('-q, --quiet', 'no notes; errors only')
    .option('--json', 'report as JSON');
  remove.action(async (name: string, flags: ModelFlags) =>
    (await import('../commands/model.ts')).remove(terminal, name, flags),
  );
  for (const command of [pull, list, show, verify, bring]) addSettings(command, STORE);
  addSettings(remove, [...STORE, 'redisUrl', 'prefix']);
}

function dtypeOption(): Option {
  return new Option(
    '--dtype <type>',
    'also make the form NAME-TYPE for CPUs. int8: whole numbers of 8 bits, faster, near the same vectors; f16: the ' +
      'word table in fp16, less memory, all but the same vectors',
  ).choices(['int8', 'f16']);
}
