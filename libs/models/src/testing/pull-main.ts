// A process of its own that pulls a model, for tests that kill it: it says when some of the weights have arrived.

import { cacheFolder } from '@shoal/core';
import { pullModel } from '../store/model-store.ts';

await pullModel(process.argv[2]!, {
  cacheDir: cacheFolder(process.env['SHOAL_CACHE_DIR']),
  prove: async ({ dims }) => ({ ids: [1, 2], vector: new Float32Array(dims).fill(dims ** -0.5) }),
  onProgress: (bytes, total) => {
    if (total !== undefined && bytes > total / 2) process.send?.('half');
  },
});
