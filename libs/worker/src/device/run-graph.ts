// A graph file over rows of token ids, on the CPU as a worker computes there: for whoever makes models and has no engine.

import { availableParallelism } from 'node:os';
import { invariant, ShoalError } from '@shoal/contract';
import { OrtBackend } from '@shoal/inference';
import type { RunGraph } from '@shoal/models';

/** Each row alone, in a session that lives until the last one was read. */
export const runGraph: RunGraph = async function* runGraphAlone({ path, dims, precision }, rows) {
  const slotTokens = Math.max(...rows.map(({ length }) => widthOf(length)));
  const backend = await OrtBackend.open({
    graphPath: path,
    dims,
    precision,
    threads: availableParallelism(),
    slotRows: 1,
    slotTokens,
  });
  try {
    for (const row of rows) {
      const width = widthOf(row.length);
      const slot = backend.lend();
      invariant(slot !== undefined, 'a slot is free while nothing runs');
      slot.ids.fill(0, 0, width);
      slot.ids.set(row);
      slot.lengths[0] = row.length;
      const result = await backend.run(slot, { rows: 1, width });
      if (!result.ok)
        throw new ShoalError('OUT_OF_VRAM', `no room for one row of ${width} tokens: ${result.outOfVram.message}`);
      const values = slot.embeddings.slice(0, dims);
      backend.giveBack(slot);
      yield values;
    }
  } finally {
    await backend.stop();
  }
};

function widthOf(tokens: number): number {
  return Math.ceil(tokens / 8) * 8;
}
