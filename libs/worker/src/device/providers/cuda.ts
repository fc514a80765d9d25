// NVIDIA GPUs: the native encoder where it can, else ONNX Runtime's CUDA provider.

import { cudaProviderProblem } from '@shoal/inference';
import { linkKeptProvider } from '../cuda-provider.ts';
import type { OpenProvider } from '../device-options.ts';
import { Refused } from '../device-refusals.ts';
import { onlyGpu } from '../only-gpu.ts';
import { nativeEncoder } from './native-encoder.ts';
import { openPrecise, type Kinds } from './precise.ts';

/** From here on a second session is worth its copy of weights and arena: 5 % more texts per second on an H200. */
const LARGE_CARD_BYTES = 40e9;

/**
 * The graph for each precision. Of those in fp16 the fused one was the fastest on an H200, in bulk by 2 % and alone by
 * 6 %, at the same least cosine (bench/results/gpu.md).
 */
const CUDA_KINDS: Kinds = { fp16: 'fused-fp16', fp32: 'cuda-fp32', bf16: 'cuda-bf16' };

export const openCuda: OpenProvider = async (options) => {
  const { environment, model, log } = options;
  if (model.graphKind === 'int8')
    throw new Refused(`${model.name} is an int8 model, and those run on CPUs alone`, { isAbsence: true });
  const { device, found } = await onlyGpu(options.device, environment, log);
  const totalBytes = found.reading?.totalBytes ?? 0;
  const usualLanes = totalBytes >= LARGE_CARD_BYTES ? 2 : 1;
  const place = { device, deviceKind: found.reading?.name, readMemory: found.readMemory, probe: found.probe };
  const native = await nativeEncoder(options, { ...place, usualLanes });
  if (native !== undefined) return native;
  await linkKeptProvider(options.cacheDir);
  const problem = await cudaProviderProblem();
  if (problem !== undefined) throw new Refused(problem);
  const sessions = options.sessions ?? usualLanes;
  return openPrecise({ ...options, sessions }, CUDA_KINDS, { ...place, provider: 'cuda' });
};
