// The token budget of the device this executor runs on: begins with what is stored of this graph on this device, else
// with the preset, and has the memory law measured once that may be. Tells the budget what the device has left, every
// few seconds.

import { stat } from 'node:fs/promises';
import {
  createBudget,
  lawOfSessions,
  presetFor,
  type Budget,
  type BudgetOptions,
  type Clock,
  type DeviceProfileKey,
  type FromExecutor,
  type InferenceBackend,
  type LearnedBudget,
  type Logger,
  type MemoryProbe,
  type ModelSizes,
  type Preset,
} from '@shoal/core';
import { PacedBackend, SimulatedDevice } from '@shoal/core/sim';
import { EncoderBackend, OrtBackend, type EncoderBackendOptions, type OrtBackendOptions } from '@shoal/inference';
import type { StoredModel } from '@shoal/models';
import type { ExecutorSettings } from '../executor/executor-settings.ts';
import { hostMemory } from '../device/host-memory.ts';
import { measureMemory } from './measure-memory.ts';
import { IdleShrink } from './idle-shrink.ts';
import { MemoryFit } from './memory-fit.ts';
import { cpuKind, encoderKey, keepProfile, profileKey, readProfile } from './profile-store.ts';

export interface DeviceBudgetOptions {
  readonly backend: InferenceBackend;
  readonly model: StoredModel;
  /** Longest row, tokens. */
  readonly maxTokens: number;
  readonly settings: Pick<ExecutorSettings, 'limits' | 'threads' | 'cacheDir'> & {
    readonly learned?: LearnedBudget | undefined;
  };
  readonly clock: Clock;
  readonly log: Logger;
}

export interface DeviceBudget {
  readonly budget: Budget;
  /** Everything the executor says, so that nothing is measured before its first batch. */
  hear(message: FromExecutor): void;
  stop(): void;
}

/**
 * Larger batches only add padding on a CPU: of 512 to 8,192 tokens 1,024 gave most texts per second in fp32 and in int8
 * (2 cores, 2026-11).
 */
export const CPU_KNEE_TOKENS = 1_024;
const READ_MEMORY_EVERY_MS = 5_000;
/** On a busy machine a probe of low priority gets a tenth of a core. */
const PROBE_TIMEOUT_MS = 120_000;

/** Throws CONFIG_INVALID when the memory this worker may use holds no single row. */
export async function openDeviceBudget(options: DeviceBudgetOptions): Promise<DeviceBudget> {
  const { backend, model, settings, maxTokens, clock, log } = options;
  const { limits } = settings;
  const sizes = backend instanceof OrtBackend ? await sizesOf(model, backend.options.graphPath, maxTokens) : undefined;
  const common = {
    model: sizes,
    maxPaddedTokens: limits.maxPaddedTokens ?? backend.slotTokens,
    maxRows: limits.maxRows ?? backend.slotRows,
    maxTokens,
    memoryFraction: limits.memoryFraction,
    latencyTargetMs: limits.latencyTargetMs,
    learned: settings.learned,
  };
  // its rate is the same at every size: what it is capped at is where it is best
  if (backend instanceof PacedBackend)
    return withoutMemory(createBudget({ ...common, kneeTokens: limits.maxPaddedTokens ?? CPU_KNEE_TOKENS }));
  if (backend instanceof SimulatedDevice) return simulatedBudget(options, backend, common);
  if (backend instanceof EncoderBackend) return encoderBudget(options, backend, common);
  if (backend instanceof OrtBackend && !isCpu(backend)) return gpuBudget(options, backend, common);
  if (!isCpu(backend)) return withoutMemory(createBudget(common));

  const host = capped(hostMemory(), limits.maxDeviceBytes);
  const key = keyOf(options, backend);
  const profile = await readProfile(settings.cacheDir, key, log);
  const kneeTokens = profile?.kneeTokens ?? CPU_KNEE_TOKENS;
  const totalBytes = (await host.read())?.totalBytes;
  await backend.prepare(Math.max(maxTokens, Math.min(kneeTokens, common.maxPaddedTokens)), totalBytes);
  const loadedBytes = (await backend.memory())?.footprintBytes ?? 0;
  const budget = createBudget({
    ...common,
    kneeTokens,
    totalBytes,
    memory: profile?.memory && {
      law: { ...lawOfSessions(profile.memory, backend.sessions), loadedBytes },
      source: 'stored',
    },
  });
  if (profile !== undefined)
    log.info(
      { ...budget.current(), measuredAt: profile.measuredAt },
      'what was measured of this model on this device is used',
    );
  const stopReading = readEvery(READ_MEMORY_EVERY_MS, clock, async () =>
    budget.deviceMemory(await host.read(), (await backend.memory())?.footprintBytes),
  );
  const fit =
    profile?.memory === undefined ? fitMemory(options, backend, { budget, host, key, loadedBytes }) : undefined;
  return {
    budget,
    hear: (message) => fit?.hear(message),
    stop: () => {
      stopReading();
      fit?.stop();
    },
  };
}

/**
 * Begins with what is stored of this card, else with the preset for its name; what others use of it is asked of the
 * driver. Memory is not measured beside the work here: a second process on the card would take what the first is about
 * to need.
 */
async function gpuBudget(
  { settings, model, maxTokens, clock, log }: DeviceBudgetOptions,
  backend: OrtBackend,
  common: BudgetOptions,
): Promise<DeviceBudget> {
  const { graphPath, provider = 'cuda', deviceKind, probe } = backend.options;
  if (deviceKind === undefined || probe === undefined) return withoutMemory(createBudget(common));
  const totalBytes = (await probe.read())?.totalBytes;
  const key = profileKey({ model, graphPath, provider, precision: backend.precision, deviceKind });
  const profile = await readProfile(settings.cacheDir, key, log);
  const preset = await gpuPreset({ ...backend.options, deviceKind }, model, maxTokens, totalBytes);
  if (profile === undefined) log.info({ device: backend.device, totalBytes }, preset.line);
  const loadedBytes = (await backend.memory())?.footprintBytes ?? preset.law.loadedBytes;
  // A card that is known keeps its knee until `shoal tune` has measured it: bulk runs are all of one size, and teach
  // nothing of others.
  const kneeTokens = profile?.kneeTokens ?? (preset.isKnown ? preset.startTokens : undefined);
  const budget = createBudget({
    ...common,
    totalBytes,
    startTokens: preset.startTokens,
    kneeTokens,
    memory: {
      law: { ...lawOfSessions(profile?.memory ?? preset.law, backend.sessions), loadedBytes },
      source: profile?.memory === undefined ? 'preset' : 'stored',
    },
  });
  // nothing counts what is ours of the card: the budget predicts it
  const stop = readEvery(READ_MEMORY_EVERY_MS, clock, async () => budget.deviceMemory(await probe.read(), undefined));
  return { budget, hear: () => undefined, stop };
}

/**
 * What of the device is this worker's: what it held once it was open, and what it took since, by its own count. The
 * driver's count would be every process's: from it, whoever comes later would be taken for ours. Undefined where there
 * is no count; then the budget predicts it.
 */
export function ownBytes(loadedBytes: number, held: () => number | undefined): () => number | undefined {
  const heldAtOpen = held();
  return () => {
    const heldNow = held();
    return heldAtOpen === undefined || heldNow === undefined ? undefined : loadedBytes + heldNow - heldAtOpen;
  };
}

/**
 * What the native encoder holds is known before it runs, so that nothing of it is measured or corrected; where it is
 * fastest, `shoal tune` found out or the preset says.
 */
async function encoderBudget(
  { model, settings, clock, log }: DeviceBudgetOptions,
  backend: EncoderBackend,
  common: BudgetOptions,
): Promise<DeviceBudget> {
  const { probe } = backend.options;
  const loadedBytes = (await backend.memory())?.footprintBytes ?? 0;
  const totalBytes = (await probe?.read())?.totalBytes;
  const own = ownBytes(loadedBytes, () => backend.heldBytes());
  const preset = encoderPreset(backend.options, common.maxTokens, totalBytes);
  const profile = await readProfile(settings.cacheDir, encoderKey(model, backend.options), log);
  const kneeTokens = profile?.kneeTokens ?? (preset.isKnown ? preset.startTokens : undefined);
  log.info({ device: backend.device, totalBytes }, preset.line);
  const budget = createBudget({
    ...common,
    totalBytes,
    startTokens: preset.startTokens,
    kneeTokens,
    memory: { law: backend.memoryLaw(loadedBytes), source: 'fitted' },
  });
  const idle = new IdleShrink(backend, clock);
  const stop = readEvery(READ_MEMORY_EVERY_MS, clock, async () => {
    await idle.look();
    budget.deviceMemory(await probe?.read(), own());
  });
  return { budget, hear: (message) => idle.hear(message), stop };
}

export function encoderPreset(
  { device, deviceKind = device, precision = 'fp16', model: { config } }: EncoderBackendOptions,
  maxTokens: number,
  totalBytes: number | undefined,
): Preset {
  const model = {
    hiddenSize: config.hidden,
    intermediateSize: config.intermediate,
    heads: config.heads,
    weightsBytes: 0,
    maxTokens,
  };
  return presetFor({ deviceName: deviceKind, totalBytes, precision, keepsScores: false, model });
}

/** For a card of this name. */
export async function gpuPreset(
  {
    deviceKind,
    graphPath,
    precision = 'fp32',
  }: Pick<OrtBackendOptions, 'graphPath' | 'precision'> & { readonly deviceKind: string },
  model: StoredModel,
  maxTokens: number,
  totalBytes: number | undefined,
): Promise<Preset> {
  return presetFor({
    deviceName: deviceKind,
    totalBytes,
    model: await sizesOf(model, graphPath, maxTokens),
    precision,
    keepsScores: false,
  });
}

/** The usual proportions of the family: a starting point needs no more. */
async function sizesOf({ dims }: StoredModel, graphPath: string, maxTokens: number): Promise<ModelSizes> {
  return {
    hiddenSize: dims,
    intermediateSize: 4 * dims,
    heads: Math.max(1, Math.round(dims / 32)),
    weightsBytes: (await stat(graphPath)).size,
    maxTokens,
  };
}

/** As on a GPU that nobody measured: the preset for an unknown card, corrected by what every run tells. */
async function simulatedBudget(
  { clock, log }: DeviceBudgetOptions,
  backend: SimulatedDevice,
  common: BudgetOptions,
): Promise<DeviceBudget> {
  const { totalBytes } = await backend.read();
  // the simulated law is MiniLM's, whatever the model
  const model = { hiddenSize: 384, intermediateSize: 1536, heads: 12, weightsBytes: 0, maxTokens: common.maxTokens };
  const preset = presetFor({
    deviceName: backend.device,
    totalBytes,
    model,
    precision: backend.precision,
    keepsScores: false,
  });
  log.info({ device: backend.device, startTokens: preset.startTokens }, preset.line);
  const budget = createBudget({
    ...common,
    totalBytes,
    startTokens: preset.startTokens,
    model,
    memory: { law: preset.law, source: 'preset' },
  });
  const stop = readEvery(READ_MEMORY_EVERY_MS, clock, async () =>
    budget.deviceMemory(await backend.read(), (await backend.memory())?.footprintBytes),
  );
  return { budget, hear: () => undefined, stop };
}

/** Grows by trial, and shrinks when the device runs out of memory. */
function withoutMemory(budget: Budget): DeviceBudget {
  return { budget, hear: () => undefined, stop: () => undefined };
}

function isCpu(backend: InferenceBackend): backend is OrtBackend {
  return backend instanceof OrtBackend && backend.device === 'cpu';
}

function keyOf({ model, settings }: DeviceBudgetOptions, backend: OrtBackend): DeviceProfileKey {
  return profileKey({
    model,
    graphPath: backend.options.graphPath,
    provider: 'cpu',
    precision: backend.precision,
    deviceKind: cpuKind(settings.threads, backend.sessions),
  });
}

interface FitParts {
  readonly budget: Budget;
  readonly host: MemoryProbe;
  readonly key: DeviceProfileKey;
  readonly loadedBytes: number;
}

function fitMemory(
  { settings, maxTokens, clock, log }: DeviceBudgetOptions,
  backend: OrtBackend,
  { budget, host, key, loadedBytes }: FitParts,
): MemoryFit {
  return new MemoryFit({
    clock,
    log,
    host,
    loadedBytes,
    measure: (signal) =>
      measureMemory({
        backend: backend.options,
        maxWidth: maxTokens,
        isBackground: true,
        timeoutMs: PROBE_TIMEOUT_MS,
        signal,
      }),
    onLaw: async (law) => {
      budget.useMemoryLaw({ ...lawOfSessions(law, backend.sessions), loadedBytes }, 'fitted');
      await keepProfile(settings.cacheDir, key, { memory: law }, log);
    },
  });
}

function capped(host: MemoryProbe, maxBytes: number | undefined): MemoryProbe {
  if (maxBytes === undefined) return host;
  return {
    read: async () => {
      const found = await host.read();
      return (
        found && { totalBytes: Math.min(found.totalBytes, maxBytes), freeBytes: Math.min(found.freeBytes, maxBytes) }
      );
    },
  };
}

function readEvery(periodMs: number, clock: Clock, read: () => Promise<void>): () => void {
  let cancel = clock.after(periodMs, again);
  function again(): void {
    void read();
    cancel = clock.after(periodMs, again);
  }
  return () => cancel();
}
