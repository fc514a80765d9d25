import { gfm } from 'micromark-extension-gfm';
import { fromMarkdown } from 'mdast-util-from-markdown';
import { gfmFromMarkdown } from 'mdast-util-gfm';
import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { quickBareAddresses } from './bare-addresses.ts';

const PARTS = [
  '[',
  '![',
  ']',
  '](u)',
  '[a]: x\n',
  'www.a.org/*b*',
  'http://a.b/_c_',
  'me@a.org',
  ' ',
  'e\u0301',
  '\n',
  '*',
  '[^1]',
  '`',
  '\n\n',
];
const tree = (document: string, extension: ReturnType<typeof gfm>): unknown =>
  fromMarkdown(document, { extensions: [extension], mdastExtensions: gfmFromMarkdown() });

test('a document is read as with the extension itself, wherever brackets open and close', () => {
  const documents = fc.array(fc.constantFrom(...PARTS), { maxLength: 30 }).map((parts) => parts.join(''));
  fc.assert(
    fc.property(documents, (document) => {
      expect(tree(document, quickBareAddresses(gfm()))).toEqual(tree(document, gfm()));
    }),
    { numRuns: 500 },
  );
});
