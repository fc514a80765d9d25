import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
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
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { fetchReason } from './fetch-failure.ts';
import { fetchWheel, type Wheel } from './fetch-wheel.ts';

// A wheel of our own, served to pip from a folder: the tests need python3 with pip but no network.
let folder: string;
let digest: string;
let offline: Record<string, string | undefined>;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-wheel-test-'));
  const content = join(folder, 'content');
  mkdirSync(join(content, 'tiny'), { recursive: true });
  mkdirSync(join(content, 'tiny-1.0.dist-info'));
  writeFileSync(join(content, 'tiny', 'data.txt'), 'the data');
  writeFileSync(join(content, 'tiny-1.0.dist-info', 'METADATA'), 'Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n');
  writeFileSync(
    join(content, 'tiny-1.0.dist-info', 'WHEEL'),
    'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
  );
  writeFileSync(join(content, 'tiny-1.0.dist-info', 'RECORD'), '');
  const file = join(folder, 'tiny-1.0-py3-none-any.whl');
  const zipped = spawnSync('python3', ['-m', 'zipfile', '-c', file, 'tiny/', 'tiny-1.0.dist-info/'], {
    cwd: content,
    encoding: 'utf8',
  });
  if (zipped.status !== 0) throw new Error(`the test wheel could not be made: ${zipped.stderr}`);
  digest = createHash('sha256').update(readFileSync(file)).digest('hex');
  mkdirSync(join(folder, 'tmp'));
  process.env['TMPDIR'] = join(folder, 'tmp');
  offline = { ...process.env, PIP_FIND_LINKS: folder, PIP_INDEX_URL: 'http://127.0.0.1:9', PIP_RETRIES: '0' };
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

const tiny = (sha256: Wheel['sha256'], version = '1.0'): Wheel => ({ project: 'tiny', version, sha256 });

async function failure(wheel: Wheel, environment: Record<string, string | undefined>): Promise<string> {
  let taken = false;
  const error = await fetchWheel(
    wheel,
    async () => {
      taken = true;
    },
    { environment },
  ).catch((caught: unknown) => caught);
  expect(taken).toBe(false);
  return `${fetchReason(error)}: ${(error as Error).message}`;
}

test('the files of a pinned wheel are handed over and the temporary folder is gone afterwards', async () => {
  let seen = '';
  const text = await fetchWheel(
    tiny(digest),
    async (unpacked) => {
      seen = unpacked;
      return readFileSync(join(unpacked, 'tiny', 'data.txt'), 'utf8');
    },
    { environment: offline },
  );
  expect(text).toBe('the data');
  expect(existsSync(seen)).toBe(false);
});

test('a pin per platform is chosen by this platform, and a platform without one is told which have', async () => {
  await expect(
    fetchWheel(tiny({ [`${process.platform}-${process.arch}`]: digest }), async () => 'ok', { environment: offline }),
  ).resolves.toBe('ok');
  await expect(failure(tiny({ 'sunos-ppc': digest }), offline)).resolves.toMatch(
    /^not-found: .*no build for .* only for sunos-ppc/,
  );
});

test('a wheel with another digest is refused before anything of it is read', async () => {
  await expect(failure(tiny('0'.repeat(64)), offline)).resolves.toMatch(
    new RegExp(`^mismatch: .*should be 0{64} and is ${digest}`),
  );
});

test('no network, an unknown version, no pip and no python are four different messages', async () => {
  await expect(failure(tiny(digest), { ...offline, PIP_FIND_LINKS: '' })).resolves.toMatch(
    /^unreachable: .*cannot be reached/,
  );
  await expect(failure(tiny(digest, '2.0'), offline)).resolves.toMatch(/^not-found: .*not version 2\.0 .*offers 1\.0/);
  await expect(failure(tiny(digest), { ...offline, PATH: join(folder, 'nothing') })).resolves.toMatch(
    /^missing-tool: python3 .*apt install/,
  );
  const withoutPip = join(folder, 'bin');
  mkdirSync(withoutPip);
  writeFileSync(join(withoutPip, 'python3'), '#!/bin/sh\necho "/usr/bin/python3: No module named pip" >&2\nexit 1\n');
  chmodSync(join(withoutPip, 'python3'), 0o755);
  await expect(failure(tiny(digest), { ...offline, PATH: withoutPip })).resolves.toMatch(
    /^missing-tool: python3 has no pip/,
  );
  expect(readdirSync(join(folder, 'tmp'))).toEqual([]);
});

test('a signal ends it with its own reason, and nothing is left, running or on the disk', async () => {
  const slow = join(folder, 'slow');
  const pidFile = join(folder, 'pid');
  mkdirSync(slow);
  writeFileSync(
    join(slow, 'python3'),
    `#!/bin/sh\necho half > "$TMPDIR/half.whl"\necho $$ > ${pidFile}\nexec sleep 60\n`,
  );
  chmodSync(join(slow, 'python3'), 0o755);
  const stopping = new AbortController();
  const fetching = fetchWheel(tiny(digest), async () => undefined, {
    environment: { ...offline, PATH: `${slow}:${process.env['PATH']}` },
    signal: stopping.signal,
    onProgress: () => stopping.abort('enough'),
  });
  await expect(fetching).rejects.toBe('enough');
  expect(() => process.kill(Number(readFileSync(pidFile, 'utf8')), 0)).toThrow('ESRCH');
  expect(readdirSync(join(folder, 'tmp'))).toEqual([]);
});
