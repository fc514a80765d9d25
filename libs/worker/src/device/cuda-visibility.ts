// Which GPU a process may see: one, so that it is the provider's device 0 and nothing of the process can land on
// another. The index of `gpu:<index>` counts through the list of CUDA_VISIBLE_DEVICES where one is given, as every CUDA
// program does.

export type Visibility = { readonly devices: string } | { readonly refusal: string };

/**
 * `given`: CUDA_VISIBLE_DEVICES as it was found. The result's `devices` is what to set it to: an index, a UUID or a MIG
 * id.
 */
export function visibleDevice(index: number, given: string | undefined): Visibility {
  if (given === undefined) return { devices: String(index) };
  const listed = listedDevices(given);
  const chosen = listed[index];
  if (chosen !== undefined) return { devices: chosen };
  if (listed.length === 0)
    return {
      refusal:
        `CUDA_VISIBLE_DEVICES is ${JSON.stringify(given)}, which hides every GPU from CUDA; unset it, or name ` +
        'the GPU there',
    };
  return {
    refusal:
      `CUDA_VISIBLE_DEVICES shows ${listed.length === 1 ? 'one GPU' : `${listed.length} GPUs`} ` +
      `(${listed.join(', ')}): gpu:${index} is none of them`,
  };
}

/** As the driver reads the list: an entry that is no device ends it. */
export function listedDevices(given: string): readonly string[] {
  const entries = given.split(',').map((entry) => entry.trim());
  const invalid = entries.findIndex((entry) => !/^(\d+|GPU-.+|MIG-.+)$/.test(entry));
  return invalid === -1 ? entries : entries.slice(0, invalid);
}
