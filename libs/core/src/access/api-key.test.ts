import { expect, test } from 'vitest';
import { ShoalError } from '@shoal/contract';
import { apiKeyId, isDigestOf, makeApiKey, readApiKey } from './api-key.ts';

test('a key is told by its digest, and what is kept of it does not hold it', () => {
  const { text, kept } = makeApiKey({ name: 'search box', tenant: 'acme' }, 1_000);
  const digest = Buffer.from(kept.digest, 'hex');
  expect(isDigestOf(digest, text)).toBe(true);
  expect(isDigestOf(digest, `${text.slice(0, -1)}${text.endsWith('A') ? 'B' : 'A'}`)).toBe(false);
  expect(apiKeyId(text)).toBe(kept.id);
  expect(JSON.stringify(kept)).not.toContain(text.slice('shoal_'.length + kept.id.length + 1));
  expect(readApiKey(JSON.parse(JSON.stringify(kept)), 'here')).toEqual(kept);
});

test('two keys are never alike', () => {
  const texts = Array.from({ length: 100 }, () => makeApiKey({ name: 'a' }, 0).text);
  expect(new Set(texts).size).toBe(100);
});

test.each([
  [{ name: '' }, /name/],
  [{ name: 'a', tenant: 'a~b' }, /tenant: must have 1 to 64 characters without/],
  [{ name: 'a', limits: { texts: 0 } }, /limits\.texts/],
] as const)('a key that cannot be is refused by the name of what is wrong: %j', (wanted, words) => {
  expect(() => makeApiKey(wanted, 0)).toThrow(words);
});

test('what is kept with a field that nobody knows is refused, so that a misspelt limit is not ignored', () => {
  const { kept } = makeApiKey({ name: 'a' }, 0);
  expect(() => readApiKey({ ...kept, expires: 5 }, 'key 1 of keys.json')).toThrow(
    new ShoalError('CONFIG_INVALID', 'key 1 of keys.json is not what is kept of a key: there is no field "expires"'),
  );
});

test.each(['', 'none', 'sk-1234', 'shoal_abc_def', `shoal_abcdefghij_${'a'.repeat(44)}`])(
  'a text of another form has no id: %s',
  (text) => expect(apiKeyId(text)).toBeUndefined(),
);
