// What a bench is asked for on its command line. The comment at the top of its file is its usage: --help prints that
// and nothing runs, and what there is no option for is refused in one line. An option that the comment does not name is
// for processes that the bench starts itself, or for bench/gpu/main.ts.

import { readFileSync } from 'node:fs';
import { parseArgs, type ParseArgsOptionsConfig } from 'node:util';

const HELP = { help: { type: 'boolean', short: 'h' } } as const;

/** Given to every step of bench/gpu/main.ts, whether it has a use for it or not. */
export const OF_EVERY_STEP = { scratch: { type: 'string' }, small: { type: 'boolean', default: false } } as const;

/** `file`: the bench's own, as import.meta.url. `more`: what --help says below its comment. */
export function readArguments<const T extends ParseArgsOptionsConfig>(file: string, options: T, more = '') {
  const usage = usageOf(file);
  const values = valuesOf({ ...options, ...HELP }, usage);
  if ('help' in values) tell(`${usage}\n${more}`);
  return values;
}

function tell(text: string): never {
  process.stdout.write(text);
  process.exit(0);
}

export function refuse(reason: string): never {
  process.stderr.write(`${reason}\n`);
  process.exit(2);
}

function valuesOf<T extends ParseArgsOptionsConfig>(options: T, usage: string) {
  try {
    return parseArgs({ options }).values;
  } catch (error) {
    // behind it: how to write what looks like an option and is none
    const [reason] = (error as Error).message.split(/\.\s/, 1);
    const named = Object.keys(options).filter(
      (name) => name === 'help' || new RegExp(`--${name}(?![\\w-])`).test(usage),
    );
    return refuse(`${reason}; there is ${named.map((name) => `--${name}`).join(', ')}`);
  }
}

function usageOf(file: string): string {
  const lines = readFileSync(new URL(file), 'utf8').split('\n');
  return lines
    .slice(
      0,
      lines.findIndex((line) => !line.startsWith('//')),
    )
    .map((line) => line.replace(/^\/\/ ?/, ''))
    .join('\n');
}
