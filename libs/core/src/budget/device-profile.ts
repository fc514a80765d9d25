// What was measured of one graph on one kind of device, as it is stored between starts. Whatever does not fit the graph
// and device at hand is ignored with a reason, never bent into shape.

import { z } from 'zod';
import { memoryLawSchema } from './memory-model.ts';

const keySchema = z.strictObject({
  /** Hash of the graph's bytes: another weight, builder or option makes another graph. */
  graphHash: z.string().min(8).max(128),
  /** The execution provider: cpu, cuda, webgpu. */
  provider: z.string().min(1).max(32),
  precision: z.enum(['fp32', 'fp16', 'bf16', 'int8']),
  /** The name of the device: "NVIDIA H200", or the CPU's with its threads. */
  deviceKind: z.string().min(1).max(256),
});

export type DeviceProfileKey = z.infer<typeof keySchema>;

export const deviceProfileSchema = z.strictObject({
  v: z.literal(1),
  key: keySchema,
  memory: memoryLawSchema.optional(),
  /** Padded tokens beyond which a larger batch is no faster. */
  kneeTokens: z.number().int().positive().optional(),
  /** Runs side by side of the native encoder, with which that knee was measured. */
  lanes: z.number().int().min(1).max(4).optional(),
  measuredAt: z.iso.datetime().optional(),
});

export type DeviceProfile = z.infer<typeof deviceProfileSchema>;

export function encodeDeviceProfile(profile: DeviceProfile): string {
  return `${JSON.stringify(deviceProfileSchema.parse(profile), null, 2)}\n`;
}

export type ReadProfile = { readonly profile: DeviceProfile } | { readonly reason: string };

/** The stored profile, or why it is not for `key`: a line for the log. */
export function decodeDeviceProfile(text: string, key: DeviceProfileKey): ReadProfile {
  const parsed = deviceProfileSchema.safeParse(asJson(text));
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    return { reason: `it is not a device profile: ${issue?.path.join('.') || 'the whole of it'}: ${issue?.message}` };
  }
  const other = (Object.keys(key) as (keyof DeviceProfileKey)[]).find((part) => parsed.data.key[part] !== key[part]);
  return other === undefined
    ? { profile: parsed.data }
    : { reason: `its ${other} is ${parsed.data.key[other]}, not ${key[other]}` };
}

function asJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
