// `npm run set-version -- 0.2.0`: the version of Shoal, into every manifest of the workspace, what they ask of each
// other, and the lock file. Changes nothing else.

import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const PROJECT = join(import.meta.dirname, '..');
const [version = ''] = process.argv.slice(2);
if (!/^\d+\.\d+\.\d+(?:-[\w.]+)?$/.test(version)) {
  console.error(`set-version: "${version}" is no version such as 0.2.0 or 0.2.0-rc.1`);
  process.exit(2);
}

type Manifest = Record<string, unknown>;

const folders = ['libs', 'apps'].flatMap((kind) => readdirSync(join(PROJECT, kind)).map((name) => `${kind}/${name}`));
for (const folder of ['.', ...folders]) rewrite(join(PROJECT, folder, 'package.json'), stamp);
rewrite(join(PROJECT, 'package-lock.json'), (lock) => {
  const packages = lock['packages'] as Record<string, Manifest>;
  lock['version'] = version;
  for (const folder of ['', ...folders]) stamp(packages[folder]!);
});

function stamp(manifest: Manifest): void {
  manifest['version'] = version;
  for (const kind of ['dependencies', 'devDependencies']) {
    const wanted = (manifest[kind] ?? {}) as Record<string, string>;
    for (const name of Object.keys(wanted)) if (name.startsWith('@shoal/')) wanted[name] = version;
  }
}

function rewrite(path: string, change: (content: Manifest) => void): void {
  const content = JSON.parse(readFileSync(path, 'utf8')) as Manifest;
  change(content);
  writeFileSync(path, `${JSON.stringify(content, undefined, 2)}\n`);
}
