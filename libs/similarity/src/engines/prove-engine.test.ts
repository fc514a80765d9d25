// Every engine of this machine passes, and one that errs in anything does not.

import { expect, test } from 'vitest';
import { openStandIn, standInEngine } from '../testing/stand-in.ts';
import { ISAS, type Engine } from './engine.ts';
import { cpuEngine } from './kernels.ts';
import { nativeAddon } from './native-addon.ts';
import { plainEngine } from './plain-engine.ts';
import { proveEngine } from './prove-engine.ts';

const standIn = openStandIn();
const refused = (what: RegExp): unknown =>
  expect.objectContaining({ code: 'CANARY_FAILED', message: expect.stringMatching(what) as unknown });

test('the engines of this machine give what plain code gives', async () => {
  const engines = ISAS.filter((isa) => isa === 'plain' || nativeAddon()?.isas().includes(isa) === true).map(
    (isa): Engine => cpuEngine({ isa, threads: 2 }),
  );
  if (standIn !== undefined) engines.push(standInEngine(standIn));
  for (const engine of engines) await expect(proveEngine(engine)).resolves.toBeUndefined();
});

/** Plain code under another name, with one call that errs. */
function erring(call: Partial<Engine>): Engine {
  return { ...plainEngine(), isa: 'portable', ...call };
}

test('an engine that errs in one kind of call is refused, with the call named', async () => {
  const plain = plainEngine();
  const { topK, matrix, rescore, spread } = plain;
  await expect(
    proveEngine(erring({ topK: async (q, rows, metric, k) => topK(q, rows, metric === 'l2' ? 'dot' : metric, k) })),
  ).rejects.toEqual(refused(/portable gives another answer for the 10 best rows by l2 with rows of f32/));
  await expect(
    proveEngine(
      erring({
        topK: async (q, rows, metric, k) => {
          const best = await topK(q, rows, metric, k);
          return { ...best, scores: best.scores.map((score) => (rows.dtype === 'i8' ? score * 1.01 : score)) };
        },
      }),
    ),
  ).rejects.toEqual(refused(/their scores by dot with rows of i8/));
  await expect(
    proveEngine(
      erring({
        matrix: async (q, rows, metric) => (await matrix(q, rows, metric)).map((score, at) => (at === 7 ? NaN : score)),
      }),
    ),
  ).rejects.toEqual(refused(/every score by dot/));
  await expect(
    proveEngine(
      erring({
        rescore: async (q, rows, metric, begin, candidates) =>
          (await rescore(q, rows, metric, begin, candidates)).fill(0, 3, 4),
      }),
    ),
  ).rejects.toEqual(refused(/scores of candidates by dot/));
  await expect(
    proveEngine(
      erring({ spread: async (graph, lanes, seeds, terms) => spread(graph, lanes, seeds, { ...terms, steps: 3 }) }),
    ),
  ).rejects.toEqual(refused(/activation that spreads/));
});
