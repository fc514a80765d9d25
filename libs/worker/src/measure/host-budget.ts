// The budget of a backend whose runs take memory of this process: begins with what is stored of this graph on this
// machine, and has the memory law fitted in another process once that may be.

import {
  createBudget,
  lawOfSessions,
  type Budget,
  type DeviceProfileKey,
  type MemoryPlanOf,
  type MemoryProbe,
} from '@shoal/core';
import { hostMemory } from '../device/host-memory.ts';
import { readMemoryOften, type DeviceBudgetOptions, type MakeBudget } from './device-budget-parts.ts';
import { measureMemory } from './measure-memory.ts';
import { MemoryFit } from './memory-fit.ts';
import { cpuKind, keepProfile, profileKey, readProfile } from './profile-store.ts';

/**
 * Larger batches only add padding on a CPU: of 512 to 8,192 tokens 1,024 gave most texts per second in fp32 and in int8
 * (2 cores, 2026-11).
 */
export const CPU_KNEE_TOKENS = 1_024;
/** On a busy machine a probe of low priority gets a tenth of a core. */
const PROBE_TIMEOUT_MS = 120_000;

export const fittedBudget: MakeBudget<'fitted'> = async (options, plan, common) => {
  const { backend, model, settings, maxTokens, clock, log } = options;
  const { limits, threads, cacheDir } = settings;
  const { sessions = 1, precision } = backend;
  const { graphPath } = plan.graph;
  const host = capped(hostMemory(), limits.maxDeviceBytes);
  const key = profileKey({ model, graphPath, provider: 'cpu', precision, deviceKind: cpuKind(threads, sessions) });
  const profile = await readProfile(cacheDir, key, log);
  const kneeTokens = profile?.kneeTokens ?? CPU_KNEE_TOKENS;
  const totalBytes = (await host.read())?.totalBytes;
  await plan.prepare(Math.max(maxTokens, Math.min(kneeTokens, common.maxPaddedTokens)), totalBytes);
  const loadedBytes = (await backend.memory())?.footprintBytes ?? 0;
  const budget = createBudget({
    ...common,
    kneeTokens,
    totalBytes,
    memory: profile?.memory && {
      law: { ...lawOfSessions(profile.memory, sessions), loadedBytes },
      source: 'stored',
    },
  });
  if (profile !== undefined)
    log.info(
      { ...budget.current(), measuredAt: profile.measuredAt },
      'what was measured of this model on this device is used',
    );
  const stopReading = readMemoryOften(clock, async () =>
    budget.deviceMemory(await host.read(), (await backend.memory())?.footprintBytes),
  );
  const fit = profile?.memory === undefined ? fitMemory(options, plan, { budget, host, key, loadedBytes }) : undefined;
  return {
    budget,
    hear: (message) => fit?.hear(message),
    stop: () => {
      stopReading();
      fit?.stop();
    },
  };
};

interface FitParts {
  readonly budget: Budget;
  readonly host: MemoryProbe;
  readonly key: DeviceProfileKey;
  readonly loadedBytes: number;
}

function fitMemory(
  { backend: { sessions = 1 }, settings, maxTokens, clock, log }: DeviceBudgetOptions,
  { graph }: MemoryPlanOf<'fitted'>,
  { budget, host, key, loadedBytes }: FitParts,
): MemoryFit {
  return new MemoryFit({
    clock,
    log,
    host,
    loadedBytes,
    measure: (signal) =>
      measureMemory({
        backend: graph,
        maxWidth: maxTokens,
        isBackground: true,
        timeoutMs: PROBE_TIMEOUT_MS,
        signal,
      }),
    onLaw: async (law) => {
      budget.useMemoryLaw({ ...lawOfSessions(law, sessions), loadedBytes }, 'fitted');
      await keepProfile(settings.cacheDir, key, { memory: law }, log);
    },
  });
}

/** The machine's memory as if it had no more than so much. */
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
