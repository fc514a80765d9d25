// Running out of device memory for real, beside a co-tenant that holds most of the card: a run that finds no room is a
// result and not an exception, the session gives the same vectors afterwards, bit by bit, half the batch runs, and a
// batch of usual size takes as long as before. fp32 with plain operators needs the most.
//
//   out-of-memory.ts [--device gpu:0] [--small]

import { OrtBackend } from '@shoal/inference';
import { openGraph, openModel, type GraphKind } from '@shoal/models';
import { cacheDir, isSmall, median, partArguments, provider, round, row, usedMebibytes } from './kit.ts';

partArguments(import.meta.url, {});
const model = await openModel('minilm', { cacheDir });
const WIDTH = 512;
/**
 * 2^31 attention scores would be an overflow of integers, not a lack of memory: 682 rows × 12 heads × 512². 1,344 rows
 * were an illegal access (ONNX Runtime 1.30).
 */
const MOST_ROWS = isSmall ? 4 : 672;

for (const kind of (isSmall ? ['plain-fp32'] : ['plain-fp32', 'fused-fp16']) as readonly GraphKind[]) {
  const backend = await OrtBackend.open({
    graphPath: await openGraph(model, { cacheDir, kind }),
    provider,
    dims: model.dims,
    threads: 1,
    slotRows: Math.max(8, MOST_ROWS),
    slotTokens: MOST_ROWS * WIDTH,
  });
  const before = await vectors(8, 64);
  const usualMs = await usualRunMs();
  const beforeMebibytes = usedMebibytes();
  const steps: object[] = [];
  for (let rows = isSmall ? 2 : 84; rows <= MOST_ROWS; rows *= 2) {
    const startedMs = performance.now();
    const slot = fill(rows, WIDTH);
    const result = await backend
      .run(slot, { rows, width: WIDTH })
      .catch((error: Error) => ({ ok: false as const, outOfVram: { message: `THROWN ${error.message}` } }));
    backend.giveBack(slot);
    const isSame = (await vectors(8, 64)).every((value, at) => value === before[at]);
    steps.push({
      rows,
      ok: result.ok,
      ms: round(performance.now() - startedMs),
      ...(result.ok ? {} : { message: result.outOfVram.message.slice(0, 160) }),
      sameVectorsAfter: isSame,
      usedMebibytes: usedMebibytes(),
    });
    if (!result.ok) {
      const half = fill(rows / 2, WIDTH);
      const again = await backend.run(half, { rows: rows / 2, width: WIDTH });
      backend.giveBack(half);
      steps.push({ rows: rows / 2, ok: again.ok, isHalfOfTheFailed: true });
      break;
    }
  }
  const mostMebibytes = usedMebibytes();
  const facts = {
    usualMs,
    usualMsAfter: await usualRunMs(),
    beforeMebibytes,
    mostMebibytes,
  };
  row({
    part: 'out-of-memory',
    kind,
    table: steps,
    shape: `×${WIDTH}`,
    ...facts,
  });
  await backend.stop();
  row({ part: 'out-of-memory', kind, releasedMebibytes: usedMebibytes() });

  /** A batch as bulk work has them. */
  async function usualRunMs(): Promise<number> {
    const times: number[] = [];
    for (let at = 0; at < 12; at++) {
      const slot = fill(isSmall ? 4 : 40, WIDTH);
      const result = await backend.run(slot, { rows: isSmall ? 4 : 40, width: WIDTH });
      backend.giveBack(slot);
      if (result.ok && at >= 2) times.push(result.runMs);
    }
    return round(median(times), 2);
  }

  function fill(rows: number, width: number) {
    const slot = backend.lend()!;
    slot.ids.fill(2000, 0, rows * width);
    for (let at = 0; at < rows; at++) slot.lengths[at] = width - (at % 8);
    return slot;
  }

  async function vectors(rows: number, width: number): Promise<Float32Array> {
    const slot = fill(rows, width);
    const result = await backend.run(slot, { rows, width });
    if (!result.ok) throw new Error(`the session is gone: ${result.outOfVram.message}`);
    const found = slot.embeddings.slice(0, rows * model.dims);
    backend.giveBack(slot);
    return found;
  }
}
