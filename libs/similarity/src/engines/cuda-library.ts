// The CUDA library of native/similarity: where it is looked for, and whether there is a device that it can use.
// Everything that keeps it from being used is an ordinary answer with a reason. Opens; computes nothing (cuda-engine.ts
// does).

import { access } from 'node:fs/promises';
import { nativeCure } from '@shoal/core/base';
import {
  CUDA_LIBRARY,
  nativeAddon,
  nativeProblem,
  type CudaAddon,
  type CudaDevice,
  type CudaLibrary,
} from './native-addon.ts';

const HOW = nativeCure('cuda', '"sh native/similarity/build.sh cuda" builds them where there is nvcc');

export interface OpenedCuda {
  readonly addon: CudaAddon;
  readonly library: CudaLibrary;
  readonly path: string;
  readonly devices: readonly CudaDevice[];
}

/** `isAbsence`: there is nothing of the kind here, which is no news to anybody. */
export type CudaFound =
  | { readonly ok: true; readonly cuda: OpenedCuda }
  | { readonly ok: false; readonly reason: string; readonly isAbsence: boolean };

/**
 * `path` unset: beside the addon. Opens the driver, which takes up to a second the first time; a process sees the
 * devices of its CUDA_VISIBLE_DEVICES.
 */
export function openCuda(path: string = CUDA_LIBRARY): CudaFound {
  const addon = nativeAddon();
  if (addon === undefined)
    return {
      ok: false,
      reason: `the CUDA kernels are opened by the native code, which is not here (${nativeProblem()})`,
      isAbsence: true,
    };
  const library = addon.cudaOpen(path);
  if (typeof library === 'string')
    return {
      ok: false,
      reason: `the CUDA kernels cannot be opened (${library}); ${HOW}`,
      isAbsence: false,
    };
  const devices = addon.cudaDevices(library);
  if (typeof devices === 'string')
    return { ok: false, reason: `the CUDA kernels find no device: ${devices}`, isAbsence: false };
  return { ok: true, cuda: { addon, library, path, devices } };
}

/** Why the library would not be opened, as far as can be seen without opening it; undefined: it is there. */
export async function cudaLibraryProblem(path: string = CUDA_LIBRARY): Promise<string | undefined> {
  const isThere = await access(path).then(
    () => true,
    () => false,
  );
  return isThere ? undefined : `the CUDA kernels for similarity are not here (${path}); ${HOW}`;
}
