import { readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { expect, test } from 'vitest';

/** Every module that an entry point reaches through relative imports, and each package that these import or require. */
function reach(file: string, seen = new Set<string>(), packages = new Set<string>()): Set<string> {
  if (seen.has(file)) return packages;
  seen.add(file);
  const text = readFileSync(file, 'utf8');
  for (const [, isType, from = ''] of text.matchAll(/^(?:import|export) (type )?[^;]*? from '([^']+)'/gm)) {
    if (isType !== undefined) continue;
    if (from.startsWith('.')) reach(resolve(dirname(file), from), seen, packages);
    else packages.add(from);
  }
  for (const [, name = ''] of text.matchAll(/\brequire\('([^']+)'\)/g)) packages.add(name);
  return packages;
}

test('the payload entry point carries no bullmq and nothing of producers: an executor loads it', () => {
  const files = new Set<string>();
  const packages = reach(resolve(import.meta.dirname, '../payload.ts'), files);
  const rooms = [...files].map((file) => relative(resolve(import.meta.dirname, '..'), dirname(file)));
  expect([...new Set(rooms)].sort()).toEqual(['', 'payload', 'payload/lua', 'redis']);
  expect([...packages].filter((name) => !name.startsWith('node:')).sort()).toEqual([
    '@shoal/contract',
    '@shoal/core',
    '@shoal/core/base',
    '@shoal/fetch/s3', // AWS's client comes with the first bucket
    'ioredis',
  ]);
  expect(reach(resolve(import.meta.dirname, '../index.ts'))).toContain('bullmq');
});

test('no module imports bullmq itself: it is required, which loads in less than half the time', () => {
  const room = resolve(import.meta.dirname, '..');
  const files = new Set<string>();
  reach(join(room, 'index.ts'), files);
  expect(files).toContain(join(room, 'bullmq/package.ts'));
  const importers = [...files].filter((file) =>
    /^(?:import|export) (?!type )[^;]*? from 'bullmq'/m.test(readFileSync(file, 'utf8')),
  );
  expect(importers).toEqual([]);
});
