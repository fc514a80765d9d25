// The process behind shape-probe.ts: opens a backend, runs shapes, says what each held and took, and waits to be
// killed.

import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { invariant, toFailure } from '@shoal/contract';
import type { InferenceBackend, RunShape } from '@shoal/core';
import { OrtBackend } from '@shoal/inference';
import type { FromProbe, ToProbe } from './shape-probe.ts';

const send = (message: FromProbe): void => void process.send?.(message);

process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'));
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => undefined);

/** Whatever else runs here does work for somebody; this only measures. */
function dieFirst(): void {
  try {
    writeFileSync('/proc/self/oom_score_adj', '1000');
  } catch {
    // only Linux has it
  }
}

/** Opening the graph takes more than small runs do; without this their peak would not show. */
function forgetPeak(): void {
  try {
    writeFileSync('/proc/self/clear_refs', '5');
  } catch {
    // only Linux has it
  }
}

async function heldBytes(backend: InferenceBackend): Promise<{ readonly now: number; readonly peak: number }> {
  const { footprintBytes = 0, liveBytes = footprintBytes } = (await backend.memory()) ?? {};
  return { now: footprintBytes, peak: liveBytes };
}

async function probe(
  backend: InferenceBackend,
  shape: RunShape,
  repeats: number,
  loadedBytes: number,
): Promise<FromProbe> {
  const { rows, width } = shape;
  const slot = backend.lend();
  invariant(slot !== undefined, 'a slot is free while nothing runs');
  slot.ids.fill(0, 0, rows * width);
  slot.lengths.fill(width, 0, rows);
  const runMs: number[] = [];
  for (let i = 0; i < repeats; i++) {
    const result = await backend.run(slot, shape);
    if (!result.ok) return { kind: 'out-of-memory', shape };
    runMs.push(result.runMs);
  }
  backend.giveBack(slot);
  const { now, peak } = await heldBytes(backend);
  return { kind: 'shape', shape: { rows, width, loadedBytes, peakBytes: Math.max(now, peak), runMs } };
}

try {
  dieFirst();
  const [{ backend: options, shapes, repeats, arenaTokens }] = (await once(process, 'message')) as [ToProbe];
  const backend = await OrtBackend.open(options);
  await backend.prepare(arenaTokens);
  forgetPeak();
  const { now: loadedBytes } = await heldBytes(backend);
  for (const shape of shapes) {
    const found = await probe(backend, shape, repeats, loadedBytes);
    send(found);
    if (found.kind === 'out-of-memory') break;
  }
  send({ kind: 'done' });
} catch (error) {
  send({ kind: 'failed', message: toFailure(error).message });
}
