// What chaos and the matrix of faults let their producers ask for: rows of the small test model, and what an undisturbed
// run makes of them.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { openModel, openTokenizer } from '@shoal/models';
import type { ProducerOrder } from './producer.ts';
import { openBackend, runRows } from '../rig/sides.ts';

export const MODEL = 'tiny-random';
/** A token that no row has but the last ones: for a device that refuses it. */
export const REFUSED_TOKEN = 77;
const ROWS = 4_096;
const REFUSED_ROWS = 64;
const REFUSED_EVERY = 25;

export type Load = Pick<
  ProducerOrder,
  'model' | 'slug' | 'tokenizer' | 'dims' | 'rows' | 'refusedRows' | 'refusedEvery' | 'expectedPath'
>;

/** Rows of 4 to 40 tokens, and a file in the folder with the vectors of an undisturbed run. */
export async function prepareLoad(folder: string, cacheDir: string, random: () => number): Promise<Load> {
  const model = await openModel(MODEL, { cacheDir });
  const tokenizer = await openTokenizer(model);
  const rows = makeRows(random);
  const backend = await openBackend(model, 1);
  const expectedPath = join(folder, 'expected.f32');
  writeFileSync(expectedPath, Buffer.from((await runRows(backend, rows)).vectors.buffer));
  await backend.stop();
  return {
    model: `${model.name}@${model.revision}`,
    slug: MODEL,
    tokenizer: tokenizer.hash,
    dims: model.dims,
    rows,
    refusedRows: Array.from({ length: REFUSED_ROWS }, (_, at) => ROWS - REFUSED_ROWS + at),
    refusedEvery: REFUSED_EVERY,
    expectedPath,
  };
}

function makeRows(random: () => number): number[][] {
  return Array.from({ length: ROWS }, (_, row) => {
    const ids = Array.from({ length: 4 + Math.floor(random() * 37) }, () => 5 + Math.floor(random() * 60));
    return row < ROWS - REFUSED_ROWS ? ids : [REFUSED_TOKEN, ...ids];
  });
}

/** A producer in a process of its own, at work when it resolves. */
export async function startProducer(order: ProducerOrder, env: NodeJS.ProcessEnv = {}): Promise<ChildProcess> {
  const child = fork(fileURLToPath(new URL('./producer.ts', import.meta.url)), [], {
    stdio: ['ignore', 2, 2, 'ipc'],
    env: { ...process.env, ...env },
  });
  await once(child, 'spawn');
  child.send(order);
  return child;
}
