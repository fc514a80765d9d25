// What a shape costs the first time: batches of like size in shapes that the provider has not seen, each run three
// times.
//
//   new-shapes.ts [--device gpu:0] [--kind fused-fp16]

import { OrtBackend } from '@shoal/inference';
import { openGraph, type GraphKind } from '@shoal/models';
import { cacheDir, isSmall, median, openCorpus, partArguments, provider, round, row } from './kit.ts';

const values = partArguments(import.meta.url, { kind: { type: 'string' } });
const kind = (values.kind ?? 'fused-fp16') as GraphKind;
const { model } = await openCorpus();
const TOKENS = isSmall ? 256 : 50_000;
const backend = await OrtBackend.open({
  graphPath: await openGraph(model, { cacheDir, kind }),
  provider,
  sessions: 1,
  dims: model.dims,
  threads: 1,
  slotRows: 32_768,
  slotTokens: 2 * TOKENS,
});

const times: number[][] = [];
for (let at = 0; at < (isSmall ? 3 : 40); at++) {
  const width = 8 * (1 + ((at * 7) % 40));
  const rows = Math.floor((TOKENS * (0.9 + 0.2 * ((at * 0.618) % 1))) / width);
  const slot = backend.lend()!;
  for (let i = 0; i < rows; i++) slot.lengths[i] = width - (i % 8);
  for (let i = 0; i < rows * width; i++)
    slot.ids[i] = i % width < width - (Math.floor(i / width) % 8) ? 1000 + ((i * 7919) % 29_000) : 0;
  const own: number[] = [];
  for (let again = 0; again < 3; again++) {
    const result = await backend.run(slot, { rows, width });
    if (!result.ok) throw new Error(result.outOfVram.message);
    own.push(round(result.runMs, 2));
  }
  backend.giveBack(slot);
  times.push(own);
}
await backend.stop();
row({
  part: 'new-shapes',
  kind,
  loading: process.env['CUDA_MODULE_LOADING'],
  medianFirstMs: round(median(times.slice(5).map((own) => own[0]!)), 2),
  medianAgainMs: round(median(times.slice(5).map((own) => own[2]!)), 2),
  raw: times,
});
