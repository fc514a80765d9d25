import { expect, test } from 'vitest';
import { redactUrl } from '@shoal/core';
import { addressOf } from './server-address.ts';
import { ownerIn } from './slot-owner-connector.ts';

test('one server: host, port, credentials and database, or a socket', () => {
  expect(addressOf('redis://u:p%40ss@h:1/2')).toEqual({ host: 'h', port: 1, username: 'u', password: 'p@ss', db: 2 });
  expect(addressOf('rediss://[::1]')).toEqual({ host: '::1', port: 6379, tls: {} });
  expect(addressOf('unix:///tmp/a.sock?db=3')).toEqual({ path: '/tmp/a.sock', db: 3 });
});

test('Sentinels: their addresses, the name of the master, credentials of both', () => {
  const address = addressOf(
    'redis+sentinel://u:p%3A@a:1,[::1]:2,c/my%20master?db=4&sentinelUsername=s&sentinelPassword=t',
  );
  expect(address).toMatchObject({
    sentinels: [
      { host: 'a', port: 1 },
      { host: '::1', port: 2 },
      { host: 'c', port: 26_379 },
    ],
    name: 'my master',
    username: 'u',
    password: 'p:',
    db: 4,
    sentinelUsername: 's',
    sentinelPassword: 't',
    enableTLSForSentinelMode: false,
  });
  expect(addressOf('rediss+sentinel://a/m')).toMatchObject({ tls: {}, enableTLSForSentinelMode: true });
});

test('what cannot be an address is refused with what is missing, without its passwords', () => {
  expect(() => addressOf('redis+sentinel://:secret@a:1')).toThrow(
    /"redis\+sentinel:\/\/\*\*\*@a:1".*the name of the master is missing/,
  );
  expect(() => addressOf('redis+cluster://a:x,b')).toThrow(/each of its hosts is host or host:port/);
  expect(() => addressOf('redis+cluster://')).toThrow(/not the URL of a queue server/);
  expect(() => addressOf('redis+thing://a')).toThrow(/not the URL of a queue server/);
  expect(redactUrl('redis+sentinel://u:p@a,b/m?sentinelPassword=hush&db=1')).toBe(
    'redis+sentinel://***@a,b/m?sentinelPassword=***&db=1',
  );
});

test('a password may have an @ or a bare % in it, and is not told', () => {
  expect(addressOf('redis://:sec@ret@h:1')).toMatchObject({ host: 'h', port: 1, password: 'sec@ret' });
  expect(addressOf('redis+cluster://:sec@ret@h:1')).toMatchObject({ password: 'sec@ret' });
  expect(addressOf('unix://:sec@ret@/tmp/a.sock')).toMatchObject({ password: 'sec@ret', path: '/tmp/a.sock' });
  for (const [url, password] of [
    ['redis://:100%@h', '100%'],
    ['redis://:100%%40é@h', '100%@é'],
    ['redis://:%ff%zz@h', '%ff%zz'],
    ['redis+sentinel://:100%@h/m', '100%'],
  ])
    expect(addressOf(url!)).toMatchObject({ password });
  expect(redactUrl('redis://:sec@ret@127.0.0.1:1')).toBe('redis://***@127.0.0.1:1');
  for (const url of [
    'redis+cluster://:sec/ret@h',
    'redis+cluster://:sec?ret@h',
    'redis+sentinel://:sec@h:x/m',
    'redis://user/sec@h',
  ]) {
    expect(() => addressOf(url)).toThrow(
      expect.objectContaining({ code: 'CONFIG_INVALID', message: expect.not.stringMatching(/sec|ret/) }),
    );
  }
});

test('a database that is no number is refused, not taken for the first one', () => {
  for (const url of [
    'redis://h/abc',
    'rediss://h/1/2',
    'redis://h/-1',
    'unix:///tmp/a.sock?db=x',
    'redis+sentinel://a/m?db=1.5',
  ])
    expect(() => addressOf(url)).toThrow(/not the URL of a queue server; the database must be a number/);
  expect(addressOf('redis://h/')).not.toHaveProperty('db');
});

test('a server that refuses writes because another took over is left; other errors are not about that', () => {
  const { reconnectOnError } = addressOf('redis+cluster://a');
  const answers = [
    "READONLY You can't write",
    'MOVED 866 127.0.0.1:1',
    'NOREPLICAS Not enough good replicas',
    'OOM command not allowed',
    'CLUSTERDOWN Hash slot not served',
  ].map((message) => reconnectOnError?.(new Error(message)));
  expect(answers).toEqual([true, true, true, false, false]);
});

test('the owner of a slot, by a node that may not know its own name', () => {
  const ranges = [
    [0, 5, ['', 1, 'id'], ['b', 2, 'id']],
    [6, 9, ['?', 3, 'id']],
    [10, 11, ['c', 0, 'id']],
  ];
  expect(ownerIn(ranges, 4, 'asked')).toEqual({
    owner: { host: 'asked', port: 1 },
    nodes: [
      { host: 'asked', port: 1 },
      { host: 'b', port: 2 },
      { host: 'asked', port: 3 },
    ],
  });
  expect(ownerIn(ranges, 9, 'asked').owner).toEqual({ host: 'asked', port: 3 });
  expect(ownerIn(ranges, 12, 'asked').owner).toBeUndefined();
  expect(ownerIn(undefined, 0, 'asked')).toEqual({ owner: undefined, nodes: [] });
});
