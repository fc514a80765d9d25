import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { withLock } from './lock.ts';
import { identityOf, isAlive, ownIdentity, placeOfPids } from './process-identity.ts';

let folder: string;
let path: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-lock-'));
  path = join(folder, 'deep', 'a.lock');
});

afterEach(() => rmSync(folder, { recursive: true, force: true }));

/** A process that runs `body` with `withLock` and `path` in scope. */
function start(body: string): ChildProcess {
  const script = `import { withLock } from ${JSON.stringify(new URL('lock.ts', import.meta.url).href)};
    import { appendFileSync } from 'node:fs';
    const path = ${JSON.stringify(path)}; ${body}`;
  return spawn(process.execPath, ['--conditions=@shoal/source', '--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
}

test('the lock is free again after its work, with the work’s value or error passed on', async () => {
  await expect(withLock(path, async () => 7)).resolves.toBe(7);
  await expect(
    withLock(path, async () => {
      throw new Error('no');
    }),
  ).rejects.toThrow('no');
  expect(readdirSync(join(folder, 'deep'))).toEqual([]);
});

test('four processes that want the same lock at once run one after the other', async () => {
  const log = join(folder, 'log');
  const body = `for (let i = 0; i < 5; i++) await withLock(path, async () => {
    appendFileSync(${JSON.stringify(log)}, 'in ');
    await new Promise((resolve) => setTimeout(resolve, 3));
    appendFileSync(${JSON.stringify(log)}, 'out\\n');
  }, { pollMs: 2 });`;
  await Promise.all([1, 2, 3, 4].map(() => once(start(body), 'exit')));
  expect(readFileSync(log, 'utf8')).toBe('in out\n'.repeat(20));
});

test('the lock of a killed owner is taken over at once, by one of those who wait', async () => {
  const owner = start(
    `await withLock(path, () => { console.log('held'); setInterval(() => {}, 1000); return new Promise(() => {}); });`,
  );
  await once(owner.stdout!, 'data');
  const waits: number[] = [];
  let inside = 0;
  let most = 0;
  const waiting = [1, 2, 3].map(() =>
    withLock(
      path,
      async () => {
        most = Math.max(most, ++inside);
        await new Promise((resolve) => setImmediate(resolve));
        inside--;
      },
      { pollMs: 2, onWait: (holder) => waits.push(holder!.pid) },
    ),
  );
  await expect.poll(() => waits).toEqual([owner.pid, owner.pid, owner.pid]);
  owner.kill('SIGKILL');
  await Promise.all(waiting);
  expect(most).toBe(1);
  expect(existsSync(path)).toBe(false);
});

test('a pid that was reused does not keep a lock', async () => {
  await withLock(path, async () => undefined);
  writeFileSync(
    path,
    JSON.stringify({ host: hostname(), place: placeOfPids(), pid: process.pid, startTime: 'long ago', nonce: 'x' }),
  );
  await expect(withLock(path, async () => 'mine')).resolves.toBe('mine');
});

test('an owner in another pid namespace of this host keeps its lock until it is untouched for a minute', async () => {
  await withLock(path, async () => undefined);
  writeFileSync(
    path,
    JSON.stringify({
      host: hostname(),
      place: `${placeOfPids()}0`,
      pid: 999_999_999,
      startTime: 'there',
      nonce: 'x',
    }),
  );
  await expect(withLock(path, async () => undefined, { timeoutMs: 20, pollMs: 5 })).rejects.toThrow(
    'process 999999999 on',
  );
  const old = new Date(Date.now() - 61_000);
  utimesSync(path, old, old);
  await expect(withLock(path, async () => 'mine')).resolves.toBe('mine');
});

test('waiting ends with an error that names the holder', async () => {
  await withLock(path, async () => {
    await expect(withLock(path, async () => undefined, { timeoutMs: 20, pollMs: 5 })).rejects.toThrow(
      `process ${process.pid} on`,
    );
  });
});

test('a signal ends the waiting with its own reason, and leaves the lock to its holder and nothing else', async () => {
  const stopping = new AbortController();
  let ran = false;
  const work = async (): Promise<void> => {
    ran = true;
  };
  await withLock(path, async () => {
    const waiting = withLock(path, work, {
      signal: stopping.signal,
      pollMs: 60_000,
      onWait: () => setImmediate(() => stopping.abort('enough')),
    });
    await expect(waiting).rejects.toBe('enough');
    expect(readdirSync(join(folder, 'deep'))).toEqual(['a.lock']);
  });
  await expect(withLock(path, work, { signal: stopping.signal })).rejects.toBe('enough');
  expect(ran).toBe(false);
  expect(readdirSync(join(folder, 'deep'))).toEqual([]);
});

test.each([process.platform, 'darwin'])(
  'a process is told apart from a later one with its pid, and a dead one is dead (as on %s)',
  async (platform) => {
    vi.spyOn(process, 'platform', 'get').mockReturnValue(platform as NodeJS.Platform);
    expect(isAlive(ownIdentity())).toBe(true);
    expect(isAlive({ ...ownIdentity(), startTime: 'another' })).toBe(false);
    const child = spawn(process.execPath, ['-e', '']);
    const identity = identityOf(child.pid!);
    await once(child, 'exit');
    expect(identity).toBeDefined();
    expect(isAlive(identity!)).toBe(false);
    expect(identityOf(-1)).toBeUndefined();
    vi.restoreAllMocks();
  },
);
