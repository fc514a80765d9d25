// node --conditions=@shoal/source libs/world/src/server/conformance/main.ts --port N [--flavour redis-7.0] [--seed N]
//   [--calls N] [--from N] [--minutes N] [--script NAME] [--differences N] [--corpus FILE]
//
// Compares the model with the real server on a port of 127.0.0.1, which is EMPTIED. One line for each script; ends with 1
// where anything differs. Says what was not compared.

import { parseArgs } from 'node:util';
import { readCorpus } from './corpus.ts';
import { RealServer } from './real-server.ts';
import { PLAIN, runConformance } from './run.ts';
import { allScripts } from './scripts.ts';

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const { values } = parseArgs({
    options: {
      port: { type: 'string' },
      flavour: { type: 'string', default: 'valkey-9' },
      seed: { type: 'string', default: '1' },
      calls: { type: 'string', default: '1000' },
      from: { type: 'string', default: '0' },
      minutes: { type: 'string', default: '1000' },
      script: { type: 'string', multiple: true },
      differences: { type: 'string', default: '3' },
      corpus: { type: 'string' },
    },
  });
  if (values.port === undefined || (values.flavour !== 'valkey-9' && values.flavour !== 'redis-7.0')) {
    console.error('needs --port of a server that may be emptied, and --flavour valkey-9 or redis-7.0');
    process.exit(2);
  }
  const real = await RealServer.connect(Number(values.port));
  const scripts = await allScripts();
  const corpus = readCorpus(values.corpus);
  const end = Date.now() + Number(values.minutes) * 60_000;
  let [calls, differences] = [0, 0];
  const compared = new Set<string>();
  for await (const report of runConformance({
    real,
    flavour: values.flavour,
    scripts,
    corpus,
    seed: Number(values.seed),
    calls: Number(values.calls),
    from: Number(values.from),
    only: values.script,
    mostDifferences: Number(values.differences),
    until: () => Date.now() > end,
  })) {
    compared.add(report.script);
    calls += report.calls;
    differences += report.differences.length;
    console.log(
      `${report.script}: ${report.calls} calls, ${report.errors} errors, ${report.differences.length} differences`,
    );
    for (const [what, count] of report.notModelled) console.log(`    ${count} not compared: ${what}`);
    for (const found of report.differences) console.log(found.replaceAll(/^/gm, '    '));
  }
  const missing = [...scripts.keys()].filter((name) => !compared.has(name));
  console.log(
    `${calls} calls of ${compared.size} scripts (with ${PLAIN}), ${differences} differences, seed ${values.seed}`,
  );
  if (values.script === undefined && missing.length > 0) console.log(`not compared: ${missing.join(' ')}`);
  real.close();
  process.exitCode = differences > 0 ? 1 : 0;
}
