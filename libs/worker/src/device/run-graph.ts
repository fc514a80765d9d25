// A graph file over rows of token ids, on the CPU as a worker computes there: for whoever makes models and has no engine.

import { availableParallelism } from 'node:os';
import { OrtBackend } from '@shoal/inference';
import type { RunGraph } from '@shoal/models';
import { vectorsOf, widthOf } from './run-rows.ts';

/** Each row alone, in a session that lives until the last one was read. */
export const runGraph: RunGraph = async function* runGraphAlone({ path, dims, precision }, rows) {
  const slotTokens = widthOf(rows.map((ids) => ({ ids })));
  const backend = await OrtBackend.open({
    graphPath: path,
    dims,
    precision,
    threads: availableParallelism(),
    slotRows: 1,
    slotTokens,
  });
  try {
    for (const ids of rows) yield await vectorsOf(backend, [{ ids }]);
  } finally {
    await backend.stop();
  }
};
