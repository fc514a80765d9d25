// The graph in which a GPU computes: fp16 where it gives the vectors of fp32, else fp32; or the precision that was
// asked for, if the device can do it at all.

import type { InferenceBackend, Precision } from '@shoal/core';
import { OrtBackend, type OrtBackendOptions } from '@shoal/inference';
import { openGraph, type GraphKind, type StoredModel } from '@shoal/models';
import { exactCanary, openCanary, type CanaryCheck } from '../canary.ts';
import type { DeviceOptions } from '../device-options.ts';
import { Refused } from '../device-refusals.ts';
import { LEAST_COSINE, accepted } from '../truth-gate.ts';

/** The kind of graph that a provider runs in each precision it can. */
export type Kinds = Readonly<Partial<Record<Precision, GraphKind>>>;
type Place = Pick<OrtBackendOptions, 'provider' | 'device' | 'deviceKind' | 'readMemory' | 'probe'>;

/** Asked of a precision that somebody chose knowingly. Below, the device computes nonsense. */
const LEAST_COSINE_CHOSEN = 0.99;

interface Attempt {
  readonly precision: Precision;
  readonly kind: StoredModel['graphKind'];
  readonly kinds: Kinds;
  readonly place: Place;
  readonly canary: CanaryCheck;
  readonly least: number;
}

export async function openPrecise(options: DeviceOptions, kinds: Kinds, place: Place): Promise<InferenceBackend> {
  const { model, precision: asked } = options;
  const canary = await openCanary(options);
  const shared = { kinds, place, canary, least: LEAST_COSINE_CHOSEN };
  if (model.graphKind === 'imported')
    return openProven(options, { ...shared, precision: model.precision, kind: 'imported' });
  if (asked !== 'auto') return openProven(options, { ...shared, precision: asked, kind: kindOf(asked, kinds, place) });
  return firstAccepted(options, { ...shared, least: LEAST_COSINE });
}

/** Goes from fp16 on to fp32, with a warning. */
async function firstAccepted(
  options: DeviceOptions,
  shared: Omit<Attempt, 'precision' | 'kind'>,
): Promise<InferenceBackend> {
  const { kinds, place } = shared;
  const open = async (precision: Precision): Promise<InferenceBackend> =>
    openProven(options, { ...shared, precision, kind: kindOf(precision, kinds, place) });
  try {
    return await open('fp16');
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    options.log.warn({ device: place.device, precision: 'fp16', reason }, 'precision refused, trying the next');
    return open('fp32');
  }
}

function kindOf(precision: Precision, kinds: Kinds, place: Place): GraphKind {
  const kind = kinds[precision];
  if (kind === undefined) throw new Refused(`${String(place.provider)} has no graph in ${precision}`);
  return kind;
}

/** Opens the graph and holds its vectors against those of the CPU. */
async function openProven(options: DeviceOptions, attempt: Attempt): Promise<OrtBackend> {
  return accepted(await openIn(options, attempt), attempt.canary, attempt.least, options.log);
}

async function openIn(
  { model, slots, cacheDir, sessions, log }: DeviceOptions,
  { precision, kind, kinds, place }: Attempt,
): Promise<OrtBackend> {
  const graphPath = await openGraph(model, { cacheDir, log, kind });
  const exactGraphPath =
    precision === 'fp32' || kind === 'imported' || kinds.fp32 === undefined
      ? undefined
      : await openGraph(model, { cacheDir, log, kind: kinds.fp32 });
  return OrtBackend.open({
    ...slots,
    ...place,
    threads: 1,
    precision,
    graphPath,
    exactGraphPath,
    proveExact: exactCanary(model, { device: place.device ?? String(place.provider), slots, log }),
    ...(sessions !== undefined && { sessions }),
  });
}
