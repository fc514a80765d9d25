// Which version of Shoal this worker is, as its package says.

import { readFileSync } from 'node:fs';

export const SHOAL_VERSION = readVersion();

function readVersion(): string {
  const manifest: unknown = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
  return typeof manifest === 'object' && manifest !== null ? String(Reflect.get(manifest, 'version')) : '';
}
