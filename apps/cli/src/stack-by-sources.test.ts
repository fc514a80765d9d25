import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, expect, test } from 'vitest';
import { stackBySources } from './stack-by-sources.ts';

const folder = mkdtempSync(join(tmpdir(), 'shoal-stack-'));
afterAll(() => rmSync(folder, { recursive: true }));

test('a place in a bundle is told as the place in its source, any other as it is', () => {
  const bundle = join(folder, 'cli.js');
  // One segment: line 2, column 1 of the bundle is line 5, column 3 of the source.
  writeFileSync(
    `${bundle}.map`,
    JSON.stringify({ version: 3, sources: ['../src/a.ts'], names: [], mappings: ';AAIE' }),
  );
  const { href } = pathToFileURL(bundle);
  const other = pathToFileURL(join(folder, 'other.js')).href;
  const lines = (first: string): string => `Error: x\n    at run (${first})\n    at ${other}:1:1\n    at node:fs:1:2`;
  expect(stackBySources(lines(`${href}:2:7`))).toBe(lines(`${join(folder, '../src/a.ts')}:5:3`));
});
