// A thread of parts.ts: starts a real server of each flavour when it is first asked for. They die with the thread.

import { parentPort, workerData } from 'node:worker_threads';
import type { Flavour } from '../command.ts';
import { readCorpus } from './corpus.ts';
import type { DonePart, Part } from './parts.ts';
import { RealServer } from './real-server.ts';
import { Conformance } from './run.ts';
import { allScripts } from './scripts.ts';

const { programs, mostDifferences } = workerData as {
  readonly programs: Readonly<Record<Flavour, string>>;
  readonly mostDifferences: number;
};
const texts = { scripts: await allScripts(), corpus: readCorpus() };
const started = new Map<Flavour, Conformance>();

async function conformanceOf(flavour: Flavour): Promise<Conformance> {
  const known = started.get(flavour);
  if (known !== undefined) return known;
  const made = new Conformance(await RealServer.start(programs[flavour]), flavour, texts);
  started.set(flavour, made);
  return made;
}

async function done(part: Part): Promise<DonePart> {
  const begun = performance.now();
  const conformance = await conformanceOf(part.flavour);
  const report = await conformance.run({ ...part, mostDifferences });
  return { ...part, ...report, seconds: Math.round(performance.now() - begun) / 1_000 };
}

parentPort!.on('message', (part: Part) => {
  void done(part).then((found) => parentPort!.postMessage(found));
});
