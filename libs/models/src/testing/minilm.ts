// The real model, for tests that need its vocabulary or weights: from this user's cache, fetched there by the first
// run.

import { cacheFolder } from '@shoal/core';
import { openModel } from '../store/model-store.ts';
import type { StoredModel } from '../store/stored-model.ts';

/** SHOAL_CACHE_DIR when set, as for every command of Shoal. */
export const testCacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);

/** A download may take a while; pass this as the hook's timeout. */
export const FETCH_TIMEOUT_MS = 300_000;

export function openMinilm(): Promise<StoredModel> {
  return openModel('minilm', { cacheDir: testCacheDir });
}
