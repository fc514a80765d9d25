// The addon of native/encoder and the encoder libraries it opens, when they were built and fit this machine. Absent is
// no error: ONNX Runtime computes the same vectors. The only place that knows where these files lie and what the addon
// exports.

import { createRequire } from 'node:module';
import { nativeFile } from '@shoal/core/base';

/** A queue, and a thread for each lane. */
export type NativeEncoder = object & { readonly brand: 'NativeEncoder' };

/** Held on the device: by weights, by lanes, most by lanes so far. */
export type HeldBytes = readonly [weights: number, lanes: number, mostLanes: number];

/**
 * `sizes`: see EncoderSizes. Arrays must not be touched before the promise is settled. A rejection is an Error with a
 * `status` of encoder.h.
 */
export interface EncoderAddon {
  /** Devices the library can use, and why there are none. Throws where it cannot be opened. */
  devices(library: string): [count: number, reason: string];
  encoder(library: string): NativeEncoder;
  /** Chooses matrix products for runs of up to `preparedTokens`. */
  open(
    encoder: NativeEncoder,
    sizes: Float64Array,
    weights: readonly Float32Array[],
    preparedTokens: number,
  ): Promise<HeldBytes>;
  run(
    encoder: NativeEncoder,
    ids: Int32Array,
    lengths: Int32Array,
    embeddings: Float32Array,
    rows: number,
    width: number,
    isUrgent: boolean,
  ): Promise<readonly [runMs: number, ...HeldBytes]>;
  shrink(encoder: NativeEncoder): Promise<HeldBytes>;
  /** What a lane will hold for runs of up to so many tokens and rows; of the weights where `tokens` is 0. */
  bytes(encoder: NativeEncoder, sizes: Float64Array, tokens: number, rows: number): number;
  runningMs(encoder: NativeEncoder): number;
  /**
   * Each value to binary16, rounded to nearest, ties to even; `halves` are at least as many. False where the processor
   * has no instruction for it: nothing was written.
   */
  halves(values: Float32Array, halves: Uint16Array): boolean;
  /** CRC-32, as zlib's. Undefined where the processor has no instruction for it. */
  checksum(bytes: Uint8Array): number | undefined;
  /** After everything that was asked before; once. */
  close(encoder: NativeEncoder): Promise<readonly []>;
}

/** As in encoder.h. */
export const ENCODER_STATUS = { OUT_OF_MEMORY: 1, DEVICE_LOST: 2, BAD_ARGUMENT: 3, UNSUPPORTED: 4, FAILED: 5 } as const;

/** `cuda` is the one that serves; the reference is for tests, and computes in fp32 on the CPU. */
export const ENCODER_LIBRARIES = {
  cuda: nativeFile('cuda', 'encoder', 'libshoal_encoder.so'),
  reference: nativeFile('addons', 'encoder', 'libshoal_encoder_reference.so'),
} as const;
const ADDON = nativeFile('addons', 'encoder', 'encoder.node');

type Outcome = { readonly addon: EncoderAddon } | { readonly problem: string };

let loaded: Outcome | undefined;

function load(): Outcome {
  try {
    return { addon: createRequire(import.meta.url)(ADDON) as EncoderAddon };
  } catch (error) {
    return { problem: firstLine(error) };
  }
}

export function encoderAddon(): EncoderAddon | undefined {
  const outcome = (loaded ??= load());
  return 'addon' in outcome ? outcome.addon : undefined;
}

/** Why the library cannot be used here, in one line; undefined where it can. */
export function nativeEncoderProblem(library: string = ENCODER_LIBRARIES.cuda): string | undefined {
  const outcome = (loaded ??= load());
  if ('problem' in outcome) return `the native encoder's addon cannot be loaded (${outcome.problem})`;
  try {
    const [devices, reason] = outcome.addon.devices(library);
    return devices > 0 ? undefined : `the native encoder finds no device: ${reason}`;
  } catch (error) {
    return `the native encoder's library cannot be opened (${firstLine(error)})`;
  }
}

function firstLine(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).split('\n', 1)[0] ?? '';
}
