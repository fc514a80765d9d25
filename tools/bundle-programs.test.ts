// The bundles of the build (tools/bundle-programs.mjs), and that none of the programs that are started was forgotten.

import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { programFile } from '@shoal/core/base';
import { testsRunBuild } from '@shoal/core/testing';
import { expect, test } from 'vitest';
import { filesBelow } from './pack/packed-tree.ts';

const PROJECT = join(import.meta.dirname, '..');
const BUNDLES = join(PROJECT, 'dist/programs');
const version = (JSON.parse(readFileSync(join(PROJECT, 'package.json'), 'utf8')) as { readonly version: string })
  .version;

/** The programs and threads that modules start by programFile: by their names. */
const started = ['libs', 'apps'].flatMap((kind) =>
  filesBelow(join(PROJECT, kind))
    .filter((path) => /^[\w-]+\/src\/(?!testing\/).*(?<!\.test)\.ts$/.test(path))
    .map((path) => readFileSync(join(PROJECT, kind, path), 'utf8'))
    .filter((text) => text.includes('programFile('))
    .flatMap((text) => [...text.matchAll(/'\.{1,2}\/[\w./-]*?([\w-]+-(?:main|thread))'/g)].map(([, name]) => name!)),
);

test('every program that another one starts is bundled', () => {
  const bundler = readFileSync(join(PROJECT, 'tools/bundle-programs.mjs'), 'utf8');
  expect(started.length).toBeGreaterThan(8);
  expect(started.filter((name) => !bundler.includes(`/${name}.ts'`))).toEqual([]);
});

test('where there is no bundle, the module of the build is started, and from a source the source', () => {
  const built = new URL('../libs/worker/dist/claimer/forked-executor.js', import.meta.url).href;
  expect(fileURLToPath(programFile('../executor/none-main', built))).toBe(
    join(PROJECT, 'libs/worker/dist/executor/none-main.js'),
  );
  const source = built.replace('/dist/', '/src/').replace(/js$/, 'ts');
  const ending = testsRunBuild ? 'dist/executor/none-main.js' : 'src/executor/none-main.ts';
  expect(fileURLToPath(programFile('../executor/none-main', source))).toBe(join(PROJECT, 'libs/worker', ending));
});

test.runIf(testsRunBuild)('each is taken where it is, runs, and is whole but for native packages', () => {
  const built = new URL('../apps/cli/dist/processes/keep-worker.js', import.meta.url).href;
  const cli = fileURLToPath(programFile('../../../cli/src/main', built));
  expect(cli).toBe(join(BUNDLES, 'cli.js'));
  expect(execFileSync(process.execPath, [cli, '--version'], { encoding: 'utf8' })).toBe(`${version}\n`);
  for (const name of started) expect([name, existsSync(join(BUNDLES, `${name}.js`))]).toEqual([name, true]);
  const chunks = readdirSync(BUNDLES).filter((name) => name.endsWith('.js'));
  const outside = chunks.flatMap((name) =>
    [...readFileSync(join(BUNDLES, name), 'utf8').matchAll(/^(?:import|export) .* from "((?!node:)[^"]+)";$/gm)].map(
      ([, from]) => from!,
    ),
  );
  const packages = new Set(outside.filter((from) => !chunks.includes(basename(from))));
  expect([...packages].filter((name) => !/^(?:usearch|@bull-board\/.*|@fastify\/swagger.*)$/.test(name))).toEqual([]);
});
