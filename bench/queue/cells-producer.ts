// A producer of cells.ts, in a process of its own: adds texts to the cells it is told of until it is told to stop, takes
// every row once, and compares it with what the first cell gave alone.

import { ShoalClient } from '@shoal/client';
import { leastCosine } from '../similarity/cosine.ts';

export interface Cell {
  readonly name: string;
  readonly address: string;
}

/** What cells.ts says; each is answered once. */
export type Asked =
  | { readonly ask: 'expect'; readonly cells: readonly Cell[]; readonly model: string; readonly jobTexts: number }
  | { readonly ask: 'start'; readonly cells: readonly Cell[]; readonly inFlightJobs: number }
  | { readonly ask: 'count' }
  | { readonly ask: 'stop' };

export interface Counted {
  /** Since the start, each of them checked. */
  readonly rows: number;
  readonly cpuMs: number;
}

/** Texts that differ; a run takes them in turns. */
const TEXTS = Array.from({ length: 512 }, (_, at) => `${at} ${'one more word '.repeat(1 + (at % 8))}`);
/** Of a text on real devices, whose vectors depend a little on the company. */
const LEAST_COSINE = 0.9999;

const expected = new Map<string, Float32Array>();
let [model, jobTexts, rows] = ['', 0, 0];
let ending = new AbortController();
let running: Promise<void> = Promise.resolve();

process.on('message', (asked: Asked) => void answer(asked));

async function answer(asked: Asked): Promise<void> {
  if (asked.ask === 'expect') {
    ({ model, jobTexts } = asked);
    await expect(asked.cells);
  }
  if (asked.ask === 'start') {
    [rows, ending] = [0, new AbortController()];
    const client = await open(asked.cells, asked.inFlightJobs);
    running = produce(client);
  }
  if (asked.ask === 'stop') {
    ending.abort();
    await running; // what is under way still comes, and is checked
  }
  const { user, system } = process.cpuUsage();
  process.send!({ rows, cpuMs: (user + system) / 1_000 } satisfies Counted);
}

async function open(cells: readonly Cell[], maxInFlightJobs: number): Promise<ShoalClient> {
  return ShoalClient.connect({ cells, model, jobTexts, maxInFlightJobs });
}

async function expect(cells: readonly Cell[]): Promise<void> {
  const client = await open(cells, 8);
  const { vectors, dims } = await client.embed(TEXTS);
  for (const [at, text] of TEXTS.entries()) expected.set(text, vectors.slice(at * dims, (at + 1) * dims));
  await client.close();
}

async function produce(client: ShoalClient): Promise<void> {
  for await (const { item, vector, index } of client.embedMany(texts(ending.signal))) {
    if (index !== rows) throw new Error(`row ${index} came where row ${rows} was due`);
    if (!isSame(vector, expected.get(item)!)) throw new Error(`row ${index} is another`);
    rows++;
  }
  await client.close();
}

function isSame(vector: Float32Array, wanted: Float32Array): boolean {
  if (!model.endsWith('-sim')) return leastCosine(vector, wanted, wanted.length) >= LEAST_COSINE;
  return vector.length === wanted.length && vector.every((value, at) => value === wanted[at]);
}

function* texts(until: AbortSignal): Generator<string, void, undefined> {
  for (let at = 0; !until.aborted; at++) yield TEXTS[at % TEXTS.length]!;
}
