// The token budget of the device this executor runs on. How its memory is known the backend says itself; each way has a
// maker of its own.

import { createBudget, presetFor, type BudgetOptions, type MemoryPlan } from '@shoal/core';
import { exactBudget, presetBudget } from './card-budget.ts';
import { graphSizes } from './card-presets.ts';
import {
  readMemoryOften,
  untold,
  type DeviceBudget,
  type DeviceBudgetOptions,
  type MakeBudget,
} from './device-budget-parts.ts';
import { CPU_KNEE_TOKENS, fittedBudget } from './host-budget.ts';

/** Throws CONFIG_INVALID when the memory this worker may use holds no single row. */
export async function openDeviceBudget(options: DeviceBudgetOptions): Promise<DeviceBudget> {
  const plan = options.backend.memoryPlan();
  const common = await commonOptions(options, plan);
  switch (plan.kind) {
    case 'exact':
      return exactBudget(options, plan, common);
    case 'fitted':
      return fittedBudget(options, plan, common);
    case 'preset':
      return presetBudget(options, plan, common);
    case 'simulated':
      return simulatedBudget(options, plan, common);
    case 'none':
      return untold(createBudget(plan.hasLevelRate === true ? { ...common, kneeTokens: cappedKnee(options) } : common));
  }
}

async function commonOptions(
  { backend, model, maxTokens, settings: { limits, learned } }: DeviceBudgetOptions,
  plan: MemoryPlan,
): Promise<BudgetOptions> {
  const graphPath = plan.kind === 'fitted' ? plan.graph.graphPath : 'graphPath' in plan ? plan.graphPath : undefined;
  return {
    model: graphPath === undefined ? undefined : await graphSizes(model, graphPath, maxTokens),
    maxPaddedTokens: limits.maxPaddedTokens ?? backend.slotTokens,
    maxRows: limits.maxRows ?? backend.slotRows,
    maxTokens,
    memoryFraction: limits.memoryFraction,
    latencyTargetMs: limits.latencyTargetMs,
    learned,
  };
}

/** The knee of a device whose rate is the same at every size: what it is capped at is where it is best. */
function cappedKnee({ settings: { limits } }: DeviceBudgetOptions): number {
  return limits.maxPaddedTokens ?? CPU_KNEE_TOKENS;
}

/** As on a GPU that nobody measured: the preset for an unknown card, corrected by what every run tells. */
const simulatedBudget: MakeBudget<'simulated'> = async ({ backend, clock, log }, { probe }, common) => {
  const { device, precision } = backend;
  const totalBytes = (await probe.read())?.totalBytes;
  // the simulated law is MiniLM's, whatever the model
  const model = { hiddenSize: 384, intermediateSize: 1536, heads: 12, weightsBytes: 0, maxTokens: common.maxTokens };
  const preset = presetFor({ deviceName: device, totalBytes, model, precision, keepsScores: false });
  log.info({ device, startTokens: preset.startTokens }, preset.line);
  const budget = createBudget({
    ...common,
    totalBytes,
    startTokens: preset.startTokens,
    model,
    memory: { law: preset.law, source: 'preset' },
  });
  const stop = readMemoryOften(clock, async () =>
    budget.deviceMemory(await probe.read(), (await backend.memory())?.footprintBytes),
  );
  return { budget, hear: () => undefined, stop };
};
