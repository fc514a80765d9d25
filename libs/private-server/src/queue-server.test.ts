// What a private server is started with.

import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { expect, test } from 'vitest';
import { serverEnvironment, tuning } from './queue-server.ts';

test('the allocator of a program with glibc keeps no small pieces, and what somebody set for it wins', () => {
  const own = 'glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0';
  expect(serverEnvironment({ PATH: '/bin' })).toEqual({ PATH: '/bin', GLIBC_TUNABLES: own });
  expect(serverEnvironment({ GLIBC_TUNABLES: '' })['GLIBC_TUNABLES']).toBe(own);
  expect(serverEnvironment({ GLIBC_TUNABLES: 'glibc.malloc.tcache_count=7' })['GLIBC_TUNABLES']).toBe(
    `${own}:glibc.malloc.tcache_count=7`,
  );
});

test.each([
  [2e9, '1gb'],
  [8e9, '1gb'],
  [25.3e9, '4gb'],
  [64e9, '8gb'],
  [128e9, '8gb'],
  [256e9, '16gb'],
  [549e9, '32gb'],
  [2e12, '32gb'],
])('on a machine of %d bytes the append-only file is rewritten from %s on', (memoryBytes, size) => {
  const words = tuning({ cores: 2, memoryBytes });
  expect(words[words.indexOf('--auto-aof-rewrite-min-size') + 1]).toBe(size);
});

const loader = ['/lib64/ld-linux-x86-64.so.2', '/lib/ld-linux-aarch64.so.1'].find((path) => existsSync(path));

// The loader says what it understood of it.
test('glibc understands it, and takes the later of two', ({ skip }) => {
  if (loader === undefined) return skip('no loader of glibc on this machine');
  const said = (environment: NodeJS.ProcessEnv): string =>
    execFileSync(loader, ['--list-tunables'], { encoding: 'utf8', env: serverEnvironment(environment) });
  expect(said({})).toMatch(/glibc\.malloc\.tcache_count: 0x0 /);
  expect(said({})).toMatch(/glibc\.malloc\.mxfast: 0x0 /);
  expect(said({ GLIBC_TUNABLES: 'glibc.malloc.tcache_count=7' })).toMatch(/glibc\.malloc\.tcache_count: 0x7 /);
});
