// Rows of known token ids through a backend that nobody uses yet: for what is asked of a device before its first job.

import { invariant, ShoalError } from '@shoal/contract';
import type { InferenceBackend, Slot } from '@shoal/core';

export interface KnownRow {
  readonly ids: ArrayLike<number>;
  /** Of a pair: at which id its second text begins. */
  readonly second?: number | undefined;
}

/** Runs them in as few runs as the slots allow: neighbours and padding are a part of what is checked. */
export async function vectorsOf(backend: InferenceBackend, rows: readonly KnownRow[]): Promise<Float32Array> {
  const width = widthOf(rows);
  const atOnce = Math.max(1, Math.min(backend.slotRows, Math.floor(backend.slotTokens / width)));
  const vectors = new Float32Array(rows.length * backend.dims);
  for (let first = 0; first < rows.length; first += atOnce)
    vectors.set(await runRows(backend, rows.slice(first, first + atOnce), width), first * backend.dims);
  return vectors;
}

async function runRows(backend: InferenceBackend, rows: readonly KnownRow[], width: number): Promise<Float32Array> {
  const slot = backend.lend();
  invariant(slot !== undefined, 'a backend that nobody uses yet has a free slot');
  fillRows(slot, rows, width);
  const result = await backend.run(slot, { rows: rows.length, width });
  const vectors = slot.embeddings.slice(0, rows.length * backend.dims);
  backend.giveBack(slot);
  if (!result.ok)
    throw new ShoalError(
      'OUT_OF_VRAM',
      `the device has no room for ${rows.length} × ${width} tokens: ${result.outOfVram.message}`,
    );
  return vectors;
}

/** Into the beginning of a slot. */
export function fillRows({ ids, lengths, secondFrom }: Slot, rows: readonly KnownRow[], width: number): void {
  ids.fill(0, 0, rows.length * width);
  for (const [at, row] of rows.entries()) {
    ids.set(row.ids, at * width);
    lengths[at] = row.ids.length;
    secondFrom[at] = row.second ?? 0;
  }
}

/** The width of a run of these rows, in tokens. */
export function widthOf(rows: readonly KnownRow[]): number {
  return Math.ceil(Math.max(...rows.map(({ ids }) => ids.length)) / 8) * 8;
}
