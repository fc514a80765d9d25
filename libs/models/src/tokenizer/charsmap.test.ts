// Charsmaps against the official package: which hit wins, what a cluster is, and tables that lead out of themselves.

import tokenizers from 'tokenizers';
import { describe, expect, test } from 'vitest';
import { hostileStrings, randomStrings } from '../testing/texts.ts';
import { smallCharsmap } from '../testing/small-charsmap.ts';
import { Charsmap } from './charsmap.ts';

/** Where a unit of the trie lies in the table. */
function unitOf(index: number): number {
  return 4 + 4 * index;
}

function refuse(what: string): never {
  throw new Error(what);
}

/** What the official package makes of texts. */
function reference(map: string): (text: string) => string {
  const normalizer = tokenizers.Tokenizer.fromString(
    JSON.stringify({
      version: '1.0',
      added_tokens: [],
      normalizer: { type: 'Precompiled', precompiled_charsmap: map },
      pre_tokenizer: { type: 'WhitespaceSplit' },
      model: { type: 'Unigram', unk_id: 0, vocab: [['<unk>', 0]] },
    }),
  ).getNormalizer();
  return (text) => normalizer!.normalizeString(text);
}

const MAPS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  'the shortest of several hits': { a: 'A', ab: 'B', 'a\u0301': 'á', é: 'e', e: 'E', 'e\u0301': '!' },
  'whole clusters under 6 bytes and characters of longer ones': {
    क: 'ka',
    '\u2122': 'TM',
    가: 'ga',
    '\u0301': "'",
    '\u{1f469}': 'w',
    '\r': ' ',
    '\r\n': '\n',
    ' ': '_',
  },
  'characters that vanish': { '\u200b': '', '\u0600': '', '\u00ad': '', x: '', '\u200d': '' },
  'blanks of all kinds': { '\t': ' ', '\n': ' ', '\r': ' ', '\u00a0': ' ', '\u3000': ' ', ﷺ: 'a b c' },
};

describe('a charsmap is applied as by the official package', () => {
  test.each(Object.keys(MAPS))('%s', (name) => {
    const map = smallCharsmap(MAPS[name]!);
    const [ours, theirs] = [new Charsmap(map, refuse), reference(map)];
    const texts = [...hostileStrings(4_000, 3), ...randomStrings(2_000, 3)].map((text) => text.toWellFormed());
    const differing = texts.filter((text) => ours.normalize(text) !== theirs(text));
    expect(differing.slice(0, 3)).toEqual([]);
  });
});

describe('a table is refused that', () => {
  const sound = Buffer.from(smallCharsmap({ a: 'b', é: 'e' }), 'base64');
  const withWord = (place: number, value: number): string => {
    const bytes = Buffer.from(sound);
    bytes.writeUInt32LE(value, place);
    return bytes.toString('base64');
  };

  test.each<[string, string, string]>([
    ['says more than it has', withWord(0, 0x7fffffff), 'says 2147483647 bytes of trie'],
    ['says half a unit', withWord(0, 1022), 'says 1022 bytes of trie'],
    ['leads out from its root', withWord(unitOf(0), (0x3fffff << 10) >>> 0), 'leads out of its trie'],
    ['leads out from a node', withWord(unitOf(256 + 0x61), ((0x1fff00 << 10) | 0x161) >>> 0), 'leads out of its trie'],
    ['points behind its replacements', withWord(unitOf(512), 0x80000000 + 77), 'points beside its replacements'],
    ['has replacements that are no text', Buffer.concat([sound, Buffer.of(0xff)]).toString('base64'), 'not UTF-8'],
  ])('%s', (_, map, message) => {
    expect(() => new Charsmap(map, refuse)).toThrow(message);
  });
});
