// What the packages of the workspace promise in their package.json is there.

import { existsSync, globSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';

const PROJECT = join(import.meta.dirname, '..');
const PACKAGES = ['libs', 'apps'].flatMap((kind) => readdirSync(join(PROJECT, kind)).map((name) => `${kind}/${name}`));

interface Manifest {
  readonly version: string;
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly devDependencies?: Readonly<Record<string, string>>;
  readonly exports?: Readonly<Record<string, Readonly<Record<string, string>>>>;
}

function manifestOf(folder: string): Manifest {
  return JSON.parse(readFileSync(join(PROJECT, folder, 'package.json'), 'utf8')) as Manifest;
}

test.each(PACKAGES)('every entry point of %s has its source, and its build lies where that is built to', (folder) => {
  const manifest = manifestOf(folder);
  for (const [entry, { '@shoal/source': source = '', types, default: built }] of Object.entries(
    manifest.exports ?? {},
  )) {
    // one with a star stands for every module of a folder
    const isThere = entry.includes('*')
      ? globSync(join(PROJECT, folder, source)).length > 0
      : existsSync(join(PROJECT, folder, source));
    expect([entry, isThere]).toEqual([entry, true]);
    const module = source.replace('./src/', './dist/').replace(/\.ts$/, '');
    expect([entry, types, built]).toEqual([entry, `${module}.d.ts`, `${module}.js`]);
  }
});

test.each(PACKAGES)('the tests of %s are its own, in the groups that the whole suite has them in', (folder) => {
  const { scripts } = JSON.parse(readFileSync(join(PROJECT, folder, 'package.json'), 'utf8')) as {
    readonly scripts: Readonly<Record<string, string>>;
  };
  // --root: the groups of vitest.config.ts are paths from there; the last word is a part of a path, and filters
  expect(scripts['test']).toBe(`vitest run --root ../.. ${folder}/`);
});

test('the workspace has one version, by which its packages ask for each other', () => {
  const { version } = manifestOf('.');
  for (const folder of PACKAGES) {
    const { version: own, dependencies, devDependencies } = manifestOf(folder);
    const asked = Object.entries({ ...dependencies, ...devDependencies }).filter(([name]) =>
      name.startsWith('@shoal/'),
    );
    expect([folder, own, [...new Set(asked.map(([, wanted]) => wanted))]]).toEqual([
      folder,
      version,
      asked.length > 0 ? [version] : [],
    ]);
  }
});
