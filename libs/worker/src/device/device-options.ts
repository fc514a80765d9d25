// What a device is opened with, whichever provider takes it.

import type { InferenceBackend, Precision, Settings } from '@shoal/core';
import type { OrtBackendOptions } from '@shoal/inference';
import type { CanaryOptions } from './canary.ts';

export type SlotSizes = Pick<OrtBackendOptions, 'dims' | 'hidden' | 'slotRows' | 'slotTokens'>;

export interface DeviceOptions extends CanaryOptions {
  /** auto, cpu, gpu:<index> or a simulated one, sim:… */
  readonly device: string;
  readonly precision: 'auto' | Precision;
  /**
   * What computes on CUDA. Default auto: the native encoder where it was built and gives the vectors, else ONNX
   * Runtime.
   */
  readonly encoder?: Settings['encoder'] | undefined;
  readonly slots: SlotSizes;
  /**
   * Sessions or lanes side by side; undefined: on a GPU what was measured, else as many as its memory allows without a
   * thought; on a CPU cpuSessions.
   */
  readonly sessions?: number | undefined;
  /** A simulated one serves the queue of the model itself. Default false. */
  readonly servesModel?: boolean;
  /** The environment of this process: CUDA_VISIBLE_DEVICES is set in it. */
  readonly environment: Record<string, string | undefined>;
}

/** Opens the device, or throws why it cannot: a Refused where that is expected. */
export type OpenProvider = (options: DeviceOptions) => Promise<InferenceBackend>;
