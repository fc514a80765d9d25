// What every sink promises, as tests: rows are there when a write resolves, once, the last of those with an id, and what
// cannot go there is refused before.

import { describe, expect, test } from 'vitest';
import type { SinkForm, SinkPlace, SinkRow } from '../sinks/sink.ts';

export interface SinkUnderTest {
  readonly place: SinkPlace;
  /** What is there, by id. */
  rows(): Promise<ReadonlyMap<string, { readonly text: string | null; readonly vector: readonly number[] }>>;
}

export const SINK_FORM: SinkForm = { dims: 3, dtype: 'f32', withText: true, vectorField: 'embedding', creates: true };

export function sinkRow(number: number, text = `text ${number}`): SinkRow {
  return { id: `i${number}`, text, vector: Float32Array.of(number, -0.1, 1 / 3) };
}

export function sinkConformance(name: string, fresh: () => Promise<SinkUnderTest>): void {
  describe(`a sink: ${name}`, () => {
    test('has rows when they are written, with every value as it was', async () => {
      const { place, rows } = await fresh();
      const sink = await place.open(SINK_FORM);
      const hard = { ...sinkRow(2, 'a \'quote\', "two"\nlines \\ grüße 魚 🐟'), id: `'); drop table x; --` };
      expect(await sink.write([sinkRow(1), hard])).toEqual({ added: 2, replaced: 0 });
      const found = await rows();
      expect(found.get('i1')).toEqual({ text: 'text 1', vector: [...sinkRow(1).vector] });
      expect(found.get(hard.id)).toEqual({ text: hard.text, vector: [...hard.vector] });
      await sink.close();
    });

    test('has a row once, the last that was written with its id', async () => {
      const { place, rows } = await fresh();
      const sink = await place.open(SINK_FORM);
      await sink.write([sinkRow(1), sinkRow(2)]);
      expect(await sink.write([sinkRow(1), sinkRow(2)])).toEqual({ added: 0, replaced: 2 });
      expect(await sink.write([sinkRow(3, 'old'), sinkRow(2, 'new'), sinkRow(3, 'newer')])).toEqual({
        added: 1,
        replaced: 2,
      });
      const found = await rows();
      expect([found.size, found.get('i2')?.text, found.get('i3')?.text]).toEqual([3, 'new', 'newer']);
      await sink.close();
      const again = await place.open({ ...SINK_FORM, creates: false });
      await again.write([sinkRow(4)]);
      await again.close();
      expect((await rows()).size).toBe(4);
    });

    test('refuses what cannot go there before a row comes', async () => {
      const { place } = await fresh();
      await expect(place.open({ ...SINK_FORM, creates: false })).rejects.toThrow(/there is no table[^]*--create-table/);
      await (await place.open(SINK_FORM)).close();
      await expect(place.open({ ...SINK_FORM, dims: 4 })).rejects.toThrow(/"embedding" of [^]* has the type/);
      await expect(place.open({ ...SINK_FORM, vectorField: 'other' })).rejects.toThrow('has no column "other"');
      await expect(place.open({ ...SINK_FORM, dtype: 'i8' })).rejects.toThrow('i8');
    });
  });
}
