import { assert, constantFrom, nat, oneof, property, tuple } from 'fast-check';
import { describe, expect, test } from 'vitest';
import { redactText, redactUrl } from './redact-url.ts';

const MARK = 'Hunter2Marker';

test.each([
  ['redis://localhost:6379', 'redis://localhost:6379'],
  ['redis://user:secret@host:6379/0', 'redis://***@host:6379/0'],
  ['rediss://:secret@host', 'rediss://***@host'],
  ['redis://:se/cr@et@host', 'redis://***@host'],
  ['redis://:sec@ret@[::1]:1', 'redis://***@[::1]:1'],
  ['redis+sentinel://u:p@a:1,b:2/mymaster?db=1', 'redis+sentinel://***@a:1,b:2/mymaster?db=1'],
  ['redis+sentinel://u:p@a/m?sentinelPassword=hu@sh&db=1', 'redis+sentinel://***@a/m?sentinelPassword=***&db=1'],
  ['redis+cluster://u:p@a:1,b:2', 'redis+cluster://***@a:1,b:2'],
  ['unix:///run/redis.sock?db=1', 'unix:///run/redis.sock?db=1'],
  ['unix://:pw@/run/redis.sock', 'unix://***@/run/redis.sock'],
  ['rediss://host?ca=/etc/ca.pem&serverName=a.b', 'rediss://host?ca=/etc/ca.pem&serverName=a.b'],
  ['user:secret@host', '***@host'],
  ['redis:/user:secret@host', 'redis:/***@host'],
  ['redis:user:secret@host', 'redis:***@host'],
  ['redis://host?password=secret', 'redis://host?password=***'],
  ['redis://host?secret', 'redis://host?***'],
  ['redis://u:secret', 'redis://***'],
  ['redis://u:12/secret/x', 'redis://u:12/***'],
  ['redis://u:p?secret@host', 'redis://***@***'],
  ['redis://u:12#secret@host', 'redis://***@host'],
  ['redis://a:1,redis://u:secret@b:2', 'redis://***@b:2'],
  ['redis://u:secret@b:2 redis://c', 'redis://***@***'],
  ['secret', '***'],
  ['localhost:6379', 'localhost:6379'],
  ['', '***'],
])('%s is shown as %s', (url, shown) => {
  expect(redactUrl(url)).toBe(shown);
  expect(redactUrl(shown)).not.toContain('secret');
});

/** A password as people have them: with characters that mean something in a URL, encoded or not. */
const password = tuple(
  constantFrom('', 'a', '@', '/', '?', '#', ':', '%', '%40', '&', '=', ' ', '"', '[', ','),
  nat(4),
).map(([odd, times]) => `${odd.repeat(times)}${MARK}${odd}`);
const scheme = constantFrom('redis://', 'rediss://', 'redis+sentinel://', 'redis+cluster://', 'unix://', 'redis:/');
const anyScheme = oneof(scheme, constantFrom('', 'redis:', 'redis:///', 'REDIS://', 'http://', '//', ' redis://'));
const host = constantFrom('host', 'host:6379', 'a:1,b:2', '127.0.0.1:1', '[::1]:1', '/run/a.sock', '');
const tail = constantFrom('', '/', '/0', '/mymaster', '?db=1', '/x?db=1&sentinelUsername=u', '#', ' redis://other');

describe('a password is never shown', () => {
  test('before the @, whatever is in it and whatever stands around it', () => {
    assert(
      property(anyScheme, constantFrom('', 'user', 'u@d', 'u%41'), password, host, tail, (...parts) => {
        const [begin, user, secret, where, end] = parts;
        for (const url of [`${begin}${user}:${secret}@${where}${end}`, `redis://h1,${begin}:${secret}@${where}${end}`])
          expect(redactUrl(url)).not.toContain(MARK);
      }),
      { numRuns: 2_000 },
    );
  });

  test('as a parameter, known to us or not', () => {
    const names = constantFrom('password', 'sentinelPassword', 'pass', 'auth', 'PASSWORD', 'x-y', '');
    assert(
      property(scheme, host, names, password, (begin, where, name, secret) => {
        expect(redactUrl(`${begin}${where}?${name}=${secret}`)).not.toContain(MARK);
        expect(redactUrl(`${begin}u:${secret}@${where}/0?db=1&${name}=${secret}`)).not.toContain(MARK);
      }),
      { numRuns: 2_000 },
    );
  });

  test('in a sentence or a stack', () => {
    assert(
      property(scheme, host, (begin, where) => {
        const text = `Error: cannot open '${begin}user:${MARK}@${where}'.\n at connect (${begin}:${MARK}@${where})`;
        expect(redactText(text)).not.toContain(MARK);
      }),
    );
    expect(redactText(`{"password":"${MARK}","a":1}`)).toBe('{"password":"***","a":1}');
    expect(redactText(`unknown option '--redis=redis://u:${MARK}@h:1/0'`)).toBe(
      "unknown option '--redis=redis://***@h:1/0'",
    );
    expect(redactText('see redis://host:6379/0.')).toBe('see redis://host:6379/0.');
  });
});
