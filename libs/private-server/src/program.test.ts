import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { withLock } from '@shoal/fetch';
import { canReadDataOf, writeDataWriter, type DataWriter } from './data-writer.ts';
import { findPresentProgram, findServerProgram } from './program.ts';

let folder: string;
let steps: string[];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-program-'));
  steps = [];
});

afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(folder, { recursive: true, force: true });
});

/** A folder for PATH with one program that prints `version`. */
function installs(name: string, version: string): string {
  const bin = mkdtempSync(join(folder, 'bin-'));
  writeFileSync(join(bin, name), `#!/bin/sh\necho '${version}'\n`);
  chmodSync(join(bin, name), 0o755);
  return bin;
}

function find(path: string[], more: Record<string, string> = {}): ReturnType<typeof findServerProgram> {
  const environment = { ...process.env, PATH: [...path, '/usr/bin', '/bin'].join(delimiter), ...more };
  return findServerProgram({ cacheDir: join(folder, 'cache'), environment, onProgress: (step) => steps.push(step) });
}

const OFFLINE = { PIP_INDEX_URL: 'http://127.0.0.1:9', PIP_RETRIES: '0', PIP_FIND_LINKS: '', PIP_NO_CACHE_DIR: '1' };

test('Valkey is preferred to Redis, wherever on PATH they are', async () => {
  const redis = installs('redis-server', 'Redis server v=7.4.1 sha=00000000:0 malloc=jemalloc bits=64');
  const valkey = installs('valkey-server', 'Valkey server v=8.0.1 sha=00000000:0 malloc=jemalloc bits=64');
  await expect(find([redis, valkey])).resolves.toEqual({
    path: join(valkey, 'valkey-server'),
    name: 'Valkey',
    version: '8.0.1',
    warning: undefined,
  });
  await expect(find([redis])).resolves.toMatchObject({ name: 'Redis', version: '7.4.1' });
});

test('a version that works but is older than advised comes with a warning', async () => {
  const found = await find([installs('redis-server', 'Redis server v=7.0.15 sha=00000000:0')]);
  expect(found.warning).toMatch(/Redis 7\.0\.15 works, but Redis 7\.2/);
});

test('one that is too old or answers oddly is passed over with a line; without a network all is told', async () => {
  const path = [installs('valkey-server', 'hello'), installs('redis-server', 'Redis server v=6.2.7 sha=00000000:0')];
  await expect(find(path, OFFLINE)).rejects.toThrow(
    /no queue .*does not say its version.*6\.2\.7 is older than 7\.0\.8.*cannot be reached.*install valkey.*REDIS_URL/,
  );
  expect(steps).toHaveLength(3);
  expect(existsSync(join(folder, 'cache', 'server', 'valkey-9.1.2', 'valkey-server'))).toBe(false);
});

test('the cached wheel is used when nothing is installed', async () => {
  const kept = join(folder, 'cache', 'server', 'valkey-9.1.2');
  mkdirSync(kept, { recursive: true });
  writeFileSync(join(kept, 'valkey-server'), "#!/bin/sh\necho 'Valkey server v=9.1.2 sha=0'\n", { mode: 0o755 });
  const environment = { ...process.env, PATH: folder };
  for (const search of [findServerProgram, findPresentProgram])
    await expect(search({ cacheDir: join(folder, 'cache'), environment })).resolves.toMatchObject({
      path: join(kept, 'valkey-server'),
      version: '9.1.2',
    });
});

test('a look finds what is installed, tells what is passed over, and makes nothing', async () => {
  const look = (path: string) =>
    findPresentProgram({
      cacheDir: join(folder, 'cache'),
      environment: { PATH: path },
      onProgress: (step) => steps.push(step),
    });
  await expect(look(installs('valkey-server', 'Valkey server v=8.0.1 sha=0'))).resolves.toMatchObject({
    version: '8.0.1',
  });
  await expect(look(installs('redis-server', 'Redis server v=6.2.7 sha=0'))).resolves.toBeUndefined();
  expect(steps).toEqual([expect.stringMatching(/6\.2\.7 is older than 7\.0\.8/)]);
  expect(existsSync(join(folder, 'cache'))).toBe(false);
  hasDataOf('Redis', '7.4.1');
  await expect(look(folder)).rejects.toThrow(/which Redis 7\.4\.1 wrote/);
});

test(
  'a signal ends the fetch and the wait for another that fetches, with its own reason; no file, process or lock ' +
    'of it stays',
  async () => {
    const cacheDir = join(folder, 'cache');
    const [slow, temporary, pidFile] = [join(folder, 'slow'), join(folder, 'tmp'), join(folder, 'pid')];
    for (const made of [slow, temporary]) mkdirSync(made);
    writeFileSync(
      join(slow, 'python3'),
      `#!/bin/sh\necho half > "$TMPDIR/half.whl"\necho $$ > ${pidFile}.part\n/bin/mv ${pidFile}.part ` +
        `${pidFile}\nexec /bin/sleep 60\n`,
      { mode: 0o755 },
    );
    vi.stubEnv('TMPDIR', temporary);
    const fetching = new AbortController();
    const fetched = findServerProgram({ cacheDir, environment: { PATH: slow }, signal: fetching.signal });
    await Promise.race([fetched, vi.waitUntil(() => existsSync(pidFile), { timeout: 10_000 })]);
    fetching.abort('enough');
    await expect(fetched).rejects.toBe('enough');
    expect(() => process.kill(Number(readFileSync(pidFile, 'utf8')), 0)).toThrow('ESRCH');
    expect([readdirSync(temporary), readdirSync(cacheDir, { recursive: true })]).toEqual([[], ['server']]);
    const waiting = new AbortController();
    await withLock(join(cacheDir, 'server', 'valkey-9.1.2.lock'), async () => {
      const found = findServerProgram({
        cacheDir,
        environment: { PATH: slow },
        signal: waiting.signal,
        onProgress: () => waiting.abort('enough'),
      });
      await expect(found).rejects.toBe('enough');
    });
    expect(readdirSync(cacheDir, { recursive: true })).toEqual(['server']);
  },
);

/** The cache of somebody whose queue has data of this program. */
function hasDataOf(name: DataWriter['name'], version: string): void {
  const data = join(folder, 'cache', 'server', 'data');
  mkdirSync(data, { recursive: true });
  writeDataWriter(data, { name, version });
}

test('a program older than the one that wrote the data, or of another brand, is passed over with a line', async () => {
  hasDataOf('Valkey', '9.1.2');
  const redis = installs('redis-server', 'Redis server v=7.0.15 sha=00000000:0');
  const kept = join(folder, 'cache', 'server', 'valkey-9.1.2');
  mkdirSync(kept, { recursive: true });
  writeFileSync(join(kept, 'valkey-server'), "#!/bin/sh\necho 'Valkey server v=9.1.2 sha=0'\n", { mode: 0o755 });
  await expect(find([redis, installs('valkey-server', 'Valkey server v=8.1.0 sha=0')])).resolves.toMatchObject({
    path: join(kept, 'valkey-server'),
  });
  expect(steps).toEqual([
    expect.stringMatching(/Valkey 8\.1\.0 cannot read the queue's data, which Valkey 9\.1\.2 wrote$/),
    expect.stringMatching(/redis-server is passed over: Redis 7\.0\.15 cannot read/),
  ]);
  rmSync(join(folder, 'cache', 'server', 'data'), { recursive: true });
  await expect(find([redis])).resolves.toMatchObject({ name: 'Redis' });
});

test('where none can read the data the error names who wrote them, what was found and what to do', async () => {
  hasDataOf('Redis', '7.4.1');
  const data = join(folder, 'cache', 'server', 'data');
  await expect(find([installs('valkey-server', 'Valkey server v=9.0.0 sha=0')])).rejects.toThrow(
    new RegExp(
      `on the data in ${data}, which Redis 7\\.4\\.1 wrote: .*valkey-server is passed over: Valkey 9\\.0\\.0 ` +
        `cannot read.*Put Redis 7\\.4 or later on PATH, or move that folder away`,
    ),
  );
});

test.each<[string, string, string, string, boolean]>([
  ['Valkey', '9.1.2', 'Valkey', '9.1.0', true],
  ['Valkey', '9.1.2', 'Valkey', '10.0.0', true],
  ['Valkey', '9.1.2', 'Valkey', '9.0.3', false],
  ['Valkey', '8.0.0', 'Redis', '8.2.0', false],
  ['Redis', '7.2.9', 'Valkey', '8.0.0', true],
  ['Redis', '7.4.0', 'Valkey', '9.1.2', false],
])('data of %s %s and a %s %s: %5$s', (wroteName, wrote, readsName, reads, can) => {
  expect(
    canReadDataOf({ name: wroteName, version: wrote } as DataWriter, { name: readsName, version: reads } as DataWriter),
  ).toBe(can);
});
