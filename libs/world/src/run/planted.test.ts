import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { PLANTED, changed, faultsIn, plantOf, type PlantedFault } from './planted.ts';

function sourceOf({ file }: PlantedFault): string {
  return readFileSync(fileURLToPath(new URL(`../../../../${file}`, import.meta.url)), 'utf8');
}

test.each(PLANTED)('$name still fits the product', (fault) => {
  const source = sourceOf(fault);
  const mistaken = changed(fault, source);
  expect(mistaken).not.toBe(source);
  if (fault.script === undefined) return;
  const shas = [...mistaken.matchAll(/sha: '([0-9a-f]{40})'/g)].map((match) => match[1]);
  const changedShas = shas.filter((sha) => !source.includes(sha!));
  expect(changedShas).toHaveLength(1);
  const lua = /lua: ("(?:[^"\\]|\\.)*")/.exec(mistaken)![1]!;
  expect(
    createHash('sha1')
      .update(JSON.parse(lua) as string)
      .digest('hex'),
  ).toBe(changedShas[0]);
});

test('what stands there twice or not at all is refused by name', () => {
  const fault: PlantedFault = { name: 'a', mistake: '', file: 'b.ts', from: 'x', to: 'y' };
  expect(() => changed(fault, 'x x')).toThrow(
    'the planted fault "a" does not fit b.ts any more: what it changes stands there 2 times',
  );
  expect(() => changed({ ...fault, script: 'c' }, '')).toThrow('there is no script c');
});

test('what something else hides is planted with the mistake that takes that away', () => {
  for (const fault of PLANTED) expect(faultsIn(plantOf(fault))).toContain(fault);
  expect(() => faultsIn('room-half-released+nothing')).toThrow(
    'no planted mistake is called nothing; there are commit-',
  );
});

test('docs/simulation.md says of each which seed finds it', () => {
  const page = readFileSync(fileURLToPath(new URL('../../../../docs/simulation.md', import.meta.url)), 'utf8');
  expect(PLANTED.filter(({ name }) => !page.includes(`| \`${name}\``) && !page.includes(`, \`${name}\` |`))).toEqual(
    [],
  );
});
