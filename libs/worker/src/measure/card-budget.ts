// Budgets on a card: of a backend that knows its memory to the byte, and of one that begins with the preset for the
// card's name.

import { createBudget, lawOfSessions, type DeviceProfile, type Preset } from '@shoal/core';
import { encoderPreset, graphPreset } from './card-presets.ts';
import { readMemoryOften, type MakeBudget } from './device-budget-parts.ts';
import { IdleShrink } from './idle-shrink.ts';
import { encoderKey, profileKey, readProfile } from './profile-store.ts';

/**
 * Nothing of the memory is measured or corrected; where the encoder is fastest, `shoal tune` found out or the preset
 * says. While nobody asks for anything, what a burst took is given back.
 */
export const exactBudget: MakeBudget<'exact'> = async ({ backend, model, settings, clock, log }, plan, common) => {
  const { device, precision } = backend;
  const { name, probe } = plan.card;
  const loadedBytes = (await backend.memory())?.footprintBytes ?? 0;
  const totalBytes = (await probe?.read())?.totalBytes;
  const own = ownBytes(loadedBytes, () => plan.heldBytes());
  const preset = encoderPreset({ name, precision, totalBytes }, plan.sizes, common.maxTokens);
  const key = encoderKey(model, { device, deviceKind: name, precision });
  const profile = await readProfile(settings.cacheDir, key, log);
  log.info({ device, totalBytes }, preset.line);
  const budget = createBudget({
    ...common,
    totalBytes,
    startTokens: preset.startTokens,
    kneeTokens: kneeOf(profile, preset),
    memory: { law: plan.law(loadedBytes), source: 'fitted' },
  });
  const idle = new IdleShrink({ runningMs: () => backend.runningMs(), shrink: () => plan.shrink() }, clock);
  const stop = readMemoryOften(clock, async () => {
    await idle.look();
    budget.deviceMemory(await probe?.read(), own());
  });
  return { budget, hear: (message) => idle.hear(message), stop };
};

/**
 * Begins with what is stored of this card, else with the preset for its name; what others use of it is asked of the
 * driver. Memory is not measured beside the work here: a second process on the card would take what the first is about
 * to need.
 */
export const presetBudget: MakeBudget<'preset'> = async ({ backend, model, settings, clock, log }, plan, common) => {
  const { device, precision, sessions = 1 } = backend;
  const { provider, graphPath, card } = plan;
  const totalBytes = (await card.probe?.read())?.totalBytes;
  const key = profileKey({ model, graphPath, provider, precision, deviceKind: card.name });
  const profile = await readProfile(settings.cacheDir, key, log);
  const preset = await graphPreset({ name: card.name, precision, totalBytes }, model, graphPath, common.maxTokens);
  if (profile === undefined) log.info({ device, totalBytes }, preset.line);
  const loadedBytes = (await backend.memory())?.footprintBytes ?? preset.law.loadedBytes;
  const budget = createBudget({
    ...common,
    totalBytes,
    startTokens: preset.startTokens,
    kneeTokens: kneeOf(profile, preset),
    memory: {
      law: { ...lawOfSessions(profile?.memory ?? preset.law, sessions), loadedBytes },
      source: profile?.memory === undefined ? 'preset' : 'stored',
    },
  });
  // nothing counts what is ours of the card: the budget predicts it
  const stop = readMemoryOften(clock, async () => budget.deviceMemory(await card.probe?.read()));
  return { budget, hear: () => undefined, stop };
};

/**
 * A card that is known keeps its knee until `shoal tune` has measured it: bulk runs are all of one size, and teach
 * nothing of others.
 */
function kneeOf(profile: DeviceProfile | undefined, { isKnown, startTokens }: Preset): number | undefined {
  return profile?.kneeTokens ?? (isKnown ? startTokens : undefined);
}

/**
 * What of the device is this worker's: what it held once it was open, and what it took since, by its own count. The
 * driver's count would be every process's: from it, whoever comes later would be taken for ours.
 */
export function ownBytes(loadedBytes: number, held: () => number): () => number {
  const heldAtOpen = held();
  return () => loadedBytes + held() - heldAtOpen;
}
