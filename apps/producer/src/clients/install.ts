// Foreign clients in the versions of clients.json, below the cache folder under a hash of that file, so that a second
// run has them at once. Nothing of the project depends on them, and nothing else of the project is found from there.

import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { makeOnce } from '@shoal/fetch/testing';

/** The address under whose sha1 tiktoken looks for a vocabulary that was fetched before. */
const CL100K = 'https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken';

export interface Clients {
  /** Where the npm packages can be required from. */
  readonly folder: string;
  readonly python: string;
  /** For TIKTOKEN_CACHE_DIR. */
  readonly tiktoken: string;
}

/** Takes two minutes and 750 MB the first time. Throws what npm or pip said. */
export async function installClients(cacheDir: string): Promise<Clients> {
  const wanted = await readFile(new URL('clients.json', import.meta.url), 'utf8');
  const name = `test-clients-${createHash('sha256').update(wanted).digest('hex').slice(0, 16)}`;
  const folder = join(cacheDir, name);
  await makeOnce(folder, async () => install(JSON.parse(wanted) as Wanted, folder));
  return { folder, python: join(folder, 'venv/bin/python'), tiktoken: join(folder, 'tiktoken') };
}

interface Wanted {
  readonly npm: Readonly<Record<string, string>>;
  readonly pypi: Readonly<Record<string, string>>;
}

async function install({ npm, pypi }: Wanted, folder: string): Promise<void> {
  await writeFile(join(folder, 'package.json'), JSON.stringify({ private: true, dependencies: npm }));
  run('npm', ['install', '--silent', '--no-audit', '--no-fund', '--ignore-scripts'], folder);
  run('python3', ['-m', 'venv', 'venv'], folder);
  const pinned = Object.entries(pypi).map(([name, version]) => `${name}==${version}`);
  run(join(folder, 'venv/bin/python'), ['-m', 'pip', 'install', '--quiet', ...pinned], folder);
  await writeRanks(folder);
}

function run(program: string, args: readonly string[], cwd: string): void {
  execFileSync(program, args, { cwd, stdio: ['ignore', 'ignore', 'inherit'], timeout: 600_000 });
}

/** js-tiktoken carries the ranks that the Python package would fetch; tiktoken checks the hash of what it finds. */
async function writeRanks(folder: string): Promise<void> {
  const require = createRequire(join(folder, 'ranks.cjs'));
  const { bpe_ranks: packed } = require('js-tiktoken/ranks/cl100k_base') as { readonly bpe_ranks: string };
  const lines = packed
    .split('\n')
    .filter(Boolean)
    .flatMap((line) => {
      const [, first, ...tokens] = line.split(' ');
      return tokens.map((token, at) => `${token} ${Number(first) + at}\n`);
    });
  const made = join(folder, 'tiktoken.part');
  await mkdir(made);
  await writeFile(join(made, createHash('sha1').update(CL100K).digest('hex')), lines.join(''));
  await rename(made, join(folder, 'tiktoken'));
}
