// node --conditions=@shoal/source libs/world/src/server/conformance/main.ts [--flavour NAME ...] [--script NAME ...]
//   [--seed N] [--from N] [--calls N] [--processes N] [--minutes N] [--differences N] [--report FILE]
//
// Compares the model with real servers, which it starts: SHOAL_TEST_SERVER names a Valkey 9 and SHOAL_TEST_REDIS_7_0 a Redis
// 7.0, and --flavour chooses of them. All scripts with as many calls each, in parts, so that a run that ends early has
// seen every script; --report writes a line for each part, and a part that has one there is not run again. Prints a line of
// JSON for each script and flavour, then each difference with the words that make it again. Ends with 1 where
// anything differs, 2 where it cannot run.

import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import type { Flavour } from '../command.ts';
import { readCorpus } from './corpus.ts';
import { partsOf, runParts, sumOf, type DonePart } from './parts.ts';
import { whyNoClock } from './real-server.ts';
import { comparedScripts } from './run.ts';
import { allScripts } from './scripts.ts';

const PROGRAMS: Readonly<Record<Flavour, string | undefined>> = {
  'valkey-9': process.env['SHOAL_TEST_SERVER'],
  'redis-7.0': process.env['SHOAL_TEST_REDIS_7_0'],
};

function refuse(why: string): never {
  console.error(why);
  process.exit(2);
}

function numberOf(name: string, text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value >= 0) return value;
  return refuse(`--${name} is a whole number, not "${text}"`);
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const { values } = parseArgs({
    options: {
      flavour: { type: 'string', multiple: true },
      script: { type: 'string', multiple: true },
      seed: { type: 'string', default: '1' },
      from: { type: 'string', default: '0' },
      calls: { type: 'string', default: '1000' },
      processes: { type: 'string', default: '1' },
      minutes: { type: 'string', default: '1000' },
      differences: { type: 'string', default: '3' },
      report: { type: 'string' },
    },
  });
  const noClock = whyNoClock();
  if (noClock !== undefined) refuse(noClock);
  const all = Object.keys(PROGRAMS) as Flavour[];
  const wanted = values.flavour ?? all.filter((flavour) => PROGRAMS[flavour] !== undefined);
  const flavours = all.filter((flavour) => wanted.includes(flavour));
  if (flavours.length < wanted.length || flavours.length === 0 || flavours.some((one) => PROGRAMS[one] === undefined))
    refuse(
      'which servers? SHOAL_TEST_SERVER names a Valkey 9 (--flavour valkey-9), SHOAL_TEST_REDIS_7_0 a Redis 7.0 ' +
        `(--flavour redis-7.0); set are ${all.filter((one) => PROGRAMS[one] !== undefined).join(', ') || 'none'}`,
    );
  const [scripts, corpus] = [await allScripts(), readCorpus()];
  const compared = comparedScripts(scripts, corpus);
  const unknown = (values.script ?? []).filter((name) => !compared.includes(name));
  if (unknown.length > 0) refuse(`no call was recorded of ${unknown.join(', ')}; there are ${compared.join(', ')}`);

  const given = {
    scripts: compared.filter((name) => values.script?.includes(name) ?? true),
    flavours,
    seed: numberOf('seed', values.seed),
    from: numberOf('from', values.from),
    calls: numberOf('calls', values.calls),
  };
  const { report } = values;
  const known =
    report !== undefined && existsSync(report) ? readFileSync(report, 'utf8').split('\n').filter(Boolean) : [];
  const done = known.map((line) => JSON.parse(line) as DonePart);
  const result = await runParts(partsOf(given), done, {
    programs: PROGRAMS,
    processes: numberOf('processes', values.processes),
    mostDifferences: numberOf('differences', values.differences),
    until: Date.now() + numberOf('minutes', values.minutes) * 60_000,
    onPart: (part) => {
      if (report !== undefined) appendFileSync(report, `${JSON.stringify(part)}\n`);
    },
  });
  for (const sum of sumOf(result)) console.log(JSON.stringify(sum));
  const differences = result.flatMap((part) => part.differences);
  for (const found of differences) console.log(found);
  const calls = result.reduce((sum, part) => sum + part.calls, 0);
  console.log(`${calls} calls, ${differences.length} differences, seed ${values.seed}`);
  process.exitCode = differences.length > 0 ? 1 : 0;
}
