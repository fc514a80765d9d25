// Makes any device deadly for one token, so that what becomes of poison can be tried with real processes. For tests and
// benches only: an executor uses it when SHOAL_FAULT_TOKEN is set.

import type { InferenceBackend, RunResult, RunShape, Slot } from '../ports/device.ts';

/** What happens once a run with the token in it was at the device. */
export type Fate = 'die' | 'hang' | 'worker' | 'refuse' | 'nan';

/**
 * `spec`: "<token id>" or "<token id>:<fate>"; `worker`: the whole worker dies with it; `refuse`: the device has no
 * memory for it; `nan`: its row is no number. The backend itself, its `run` replaced.
 */
export function withDeadlyToken<Backend extends InferenceBackend>(
  backend: Backend,
  spec: string,
  die: (whole: boolean) => void,
): Backend {
  const [token, fate = 'die'] = spec.split(':');
  const run = backend.run.bind(backend);
  const runningMs = backend.runningMs.bind(backend);
  if (fate === 'refuse') Object.defineProperty(backend, 'device', { value: 'small' }); // not the last one there is
  let hungSinceMs: number | undefined;
  backend.runningMs = () => (hungSinceMs === undefined ? runningMs() : performance.now() - hungSinceMs);
  backend.run = async (slot, shape, options) => {
    const isDeadly = slot.ids.subarray(0, shape.rows * shape.width).includes(Number(token));
    if (isDeadly && fate === 'refuse') return { ok: false, outOfVram: { message: `no room for token ${token}` } };
    const result = await run(slot, shape, options);
    if (!isDeadly) return result;
    if (fate === 'nan') return spoil(slot, shape, Number(token), backend.dims, result);
    if (fate !== 'hang') die(fate === 'worker');
    hungSinceMs ??= performance.now();
    return new Promise(() => undefined);
  };
  return backend;
}

function spoil(slot: Slot, { rows, width }: RunShape, token: number, dims: number, result: RunResult): RunResult {
  for (let row = 0; row < rows; row++) {
    if (slot.ids.subarray(row * width, row * width + slot.lengths[row]!).includes(token))
      slot.embeddings.fill(Number.NaN, row * dims, (row + 1) * dims);
  }
  return result;
}
