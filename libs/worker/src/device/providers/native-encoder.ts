// The encoder of our own on a GPU, where it is wanted and can: it was built, takes the model, and passes the truth
// gate. What it cannot is ONNX Runtime's; only who asked for nothing else is refused.

import type { InferenceBackend } from '@shoal/core';
import {
  EncoderBackend,
  OrtBackend,
  cudaProviderProblem,
  nativeEncoderProblem,
  type EncoderBackendOptions,
  type OrtBackendOptions,
} from '@shoal/inference';
import { openGraph, readEncoder } from '@shoal/models';
import { expectCanary, openCanary } from '../canary.ts';
import { linkKeptProvider } from '../cuda-provider.ts';
import { Refused } from '../device-refusals.ts';
import type { DeviceOptions } from '../device-options.ts';
import { encoderKey, readProfile } from '../../measure/profile-store.ts';
import { LEAST_COSINE, accepted } from '../truth-gate.ts';

export interface NativePlace extends Pick<
  EncoderBackendOptions,
  'device' | 'deviceKind' | 'readMemory' | 'probe' | 'library'
> {
  /** Lanes where neither a setting nor `shoal tune` says how many. Default 1. */
  readonly usualLanes?: number;
}

/** Undefined, and a line in the log, where ONNX Runtime is to be tried next. */
export async function nativeEncoder(options: DeviceOptions, place: NativePlace): Promise<InferenceBackend | undefined> {
  const { encoder = 'auto', log } = options;
  if (encoder === 'ort') return undefined;
  try {
    return await open(options, place);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    if (encoder === 'native') throw new Refused(`the native encoder was asked for and cannot be used: ${reason}`);
    log.info({ device: place.device, reason }, 'the native encoder is not used, ONNX Runtime is');
    return undefined;
  }
}

async function open(options: DeviceOptions, { usualLanes = 1, ...place }: NativePlace): Promise<EncoderBackend> {
  const {
    model,
    precision,
    slots: { slotRows, slotTokens },
    cacheDir,
    log,
  } = options;
  if (precision !== 'auto' && precision !== 'fp16')
    throw new Refused(`it computes in fp16, and ${precision} was asked for`);
  const problem = nativeEncoderProblem(place.library);
  if (problem !== undefined) throw new Refused(problem);
  const lanes = options.sessions ?? (await readProfile(cacheDir, encoderKey(model, place), log))?.lanes ?? usualLanes;
  const backend = await EncoderBackend.open({
    ...place,
    model: await readEncoder(model),
    lanes,
    slotRows,
    slotTokens,
    openExact: () => openExact(options, place),
  });
  const served = await accepted(backend, await openCanary(options), LEAST_COSINE, log);
  log.info({ device: place.device, lanes }, 'the native encoder serves');
  return served;
}

/**
 * Opens what runs rows that fp16 cannot say: fp32 on the same GPU where ONNX Runtime is able to, else on the CPU. It
 * gives the known text its known vector before a row is run again. Throws CANARY_FAILED.
 */
async function openExact(options: DeviceOptions, place: NativePlace): Promise<OrtBackend> {
  const { slots, threads } = options;
  const exact = await OrtBackend.open({ ...slots, threads, ...(await exactPlace(options, place)) });
  return expectCanary(exact, options);
}

async function exactPlace(
  { model, cacheDir, log }: DeviceOptions,
  { device }: NativePlace,
): Promise<Pick<OrtBackendOptions, 'graphPath' | 'provider' | 'device'>> {
  await linkKeptProvider(cacheDir);
  if ((await cudaProviderProblem()) !== undefined)
    return { graphPath: await openGraph(model, { cacheDir, log }), provider: 'cpu' };
  return { graphPath: await openGraph(model, { cacheDir, log, kind: 'cuda-fp32' }), provider: 'cuda', device };
}
