// Vectors of devices that compute nothing.

/**
 * A vector for these token ids that means nothing, of SimulatedDevice and FakeBackend: of length 1, the same wherever
 * and beside whatever the row runs.
 */
export function fakeVector(ids: ArrayLike<number>, dims: number): Float32Array {
  let state = 0x811c_9dc5;
  for (let i = 0; i < ids.length; i++) state = Math.imul(state ^ (ids[i]! + 0x9e37_79b9), 0x0100_0193);
  const values = Float64Array.from({ length: dims }, () => {
    state = (state + 0x6d2b_79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 31 - 1;
  });
  const norm = Math.hypot(...values);
  return Float32Array.from(values, (value) => value / norm);
}
