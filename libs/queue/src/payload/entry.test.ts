import { readFileSync } from 'node:fs';
import { dirname, relative, resolve } from 'node:path';
import { expect, test } from 'vitest';

/** Every module that an entry point reaches through relative imports, and every package that these import. */
function reach(file: string, seen = new Set<string>(), packages = new Set<string>()): Set<string> {
  if (seen.has(file)) return packages;
  seen.add(file);
  for (const [, isType, from = ''] of readFileSync(file, 'utf8').matchAll(
    /^(?:import|export) (type )?[^;]*? from '([^']+)'/gm,
  )) {
    if (isType !== undefined) continue;
    if (from.startsWith('.')) reach(resolve(dirname(file), from), seen, packages);
    else packages.add(from);
  }
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
    'ioredis',
  ]);
  expect(reach(resolve(import.meta.dirname, '../index.ts'))).toContain('bullmq');
});
