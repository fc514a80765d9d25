// To which names servers answer: to those that no web page can have made its own.

import { hostname } from 'node:os';
import { expect, test } from 'vitest';
import { hostGuard, type HostGuardOptions } from './host-guard.ts';

/** The status of a request with these Host headers; 200 where it may be answered. */
function asked(options: HostGuardOptions, hosts: string[], { url = '/healthz', httpVersion = '1.1' } = {}): number {
  const rawHeaders = ['accept', '*/*', ...hosts.flatMap((host, at) => [at === 0 ? 'Host' : 'hOST', host])];
  return hostGuard(options)({ httpVersion, rawHeaders, url })?.status ?? 200;
}

const here = { host: '127.0.0.1' };
const everywhere = { host: '0.0.0.0' };

test.each([
  'localhost',
  'localhost:8787',
  'LocalHost.:8787',
  'shoal.localhost',
  '127.0.0.1:8787',
  '127.1.2.3',
  '[::1]:8787',
  '[::ffff:127.0.0.1]',
])('on loopback "%s" is answered', (host) => {
  expect(asked(here, [host])).toBe(200);
  expect(asked({ host: '::1' }, [host])).toBe(200);
});

test.each([
  'evil.example',
  'evil.example:8787',
  'localhost.evil.example',
  'evillocalhost',
  '127.0.0.1.evil.example',
  '10.0.0.5',
  '[2001:db8::1]:8787',
  '0.0.0.0',
])('on loopback "%s" is refused', (host) => {
  expect(asked(here, [host])).toBe(403);
});

test.each(['', 'a b', 'user@localhost', 'localhost:x', '[::1', '[localhost]', 'http://localhost', 'localhost/'])(
  '"%s" is no name of a host',
  (host) => {
    expect(asked(here, [host])).toBe(400);
    expect(asked({ host: '0.0.0.0', hosts: '*' }, [host])).toBe(400);
  },
);

test.each(['10.0.0.5:8787', '[2001:db8::1]', '127.0.0.1', 'localhost', hostname()])(
  'beyond loopback "%s" is answered, for probes by address and the machine’s own name',
  (host) => expect(asked(everywhere, [host])).toBe(200),
);

test('beyond loopback other names are refused, but the one it was told to listen on', () => {
  expect(asked(everywhere, ['evil.example'])).toBe(403);
  expect(asked({ host: 'shoal.internal' }, ['Shoal.Internal:80'])).toBe(200);
  expect(asked({ host: '::' }, ['evil.example'])).toBe(403);
});

test('httpHosts names more: each as it is, all below one, or all there are', () => {
  const proxied = { ...here, hosts: 'embed.example.com, *.svc.cluster.local,[2001:db8::1]' };
  expect(
    ['Embed.Example.com:443', 'a.svc.cluster.local', 'a.b.svc.cluster.local.'].map((h) => asked(proxied, [h])),
  ).toEqual([200, 200, 200]);
  expect(['example.com', 'svc.cluster.local', 'xembed.example.com'].map((h) => asked(proxied, [h]))).toEqual([
    403, 403, 403,
  ]);
  expect(asked({ ...here, hosts: '*' }, ['evil.example'])).toBe(200);
});

test('what a refusal says names the setting', () => {
  expect(hostGuard(here)({ httpVersion: '1.1', rawHeaders: ['Host', 'evil.example'], url: '/' })).toEqual({
    status: 403,
    code: 'host_not_allowed',
    message: expect.stringMatching(/"evil\.example".*httpHosts/),
  });
});

test('two Host headers, or none in HTTP/1.1, are a bad request; HTTP/1.0 needs none', () => {
  expect(asked(here, ['localhost', 'evil.example'])).toBe(400);
  expect(asked(here, ['localhost', 'localhost'])).toBe(400);
  expect(asked(here, [])).toBe(400);
  expect(asked(here, [], { httpVersion: '1.0' })).toBe(200);
});

test('a whole address in the request line is looked at as well', () => {
  expect(asked(here, ['localhost'], { url: 'http://evil.example/healthz' })).toBe(403);
  expect(asked(here, ['localhost'], { url: 'http://localhost:8787/healthz' })).toBe(200);
});
