// The executor process of a worker that embeds: opens model, tokenizer, runtime and its own connection to the queue
// server, then lets core's Executor answer the claimer. How it lives and ends is executor-process.ts.

import { keySpace } from '@shoal/contract';
import {
  Executor,
  faultPointsFrom,
  sizesOf,
  systemClock,
  type FromExecutor,
  type InferenceBackend,
  type JobOrder,
  type Logger,
  type Tokenizer,
} from '@shoal/core';
import { PacedBackend, SimulatedDevice, paceOf, simulatedLaw, withDeadlyToken } from '@shoal/core/sim';
import { openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { RedisPayloadStore } from '@shoal/queue/payload';
import { openDeviceBudget } from '../measure/device-budget.ts';
import { executorProcess } from './executor-process.ts';
import type { ExecutorSettings } from './executor-settings.ts';
import { openDevice, type SlotSizes } from '../device/open-device.ts';
import { ThreadedTokenizer } from './threaded-tokenizer.ts';
import { warmShapes } from './warm-shapes.ts';

/**
 * More than any budget measured so far. Buffers of shared memory cost what is written to them: 1 MB for ids of so many
 * tokens.
 */
const SLOT_TOKENS = 262_144;

await executorProcess<ExecutorSettings, JobOrder>(async ({ settings, log, tell }) => {
  const { redisUrl, prefix, queue, cpuQueue, cacheDir, limits } = settings;
  const connecting = RedisPayloadStore.connect({ redisUrl, prefix, queue, cpuQueue, log });
  connecting.catch(() => undefined); // awaited below, after the slower parts have begun
  const model = await openModel(settings.model, { cacheDir });
  const ownTokenizer = await openTokenizer(
    model,
    settings.maxTokens === undefined ? {} : { maxTokens: settings.maxTokens },
  );
  const tokenizer = new ThreadedTokenizer({
    tokenizer: ownTokenizer,
    model: settings.model,
    cacheDir,
    maxTokens: ownTokenizer.maxTokens,
    threads: settings.tokenizerThreads,
  });
  const backend = withDeadlyToken(
    await openBackend(settings, log, model, ownTokenizer),
    process.env['SHOAL_FAULT_TOKEN'],
    (whole) => (whole ? process.kill(process.ppid, 'SIGKILL') : process.abort()),
  );
  const deviceBudget = await openDeviceBudget({
    backend,
    model,
    maxTokens: tokenizer.maxTokens,
    settings,
    clock: systemClock,
    log,
  });
  const { budget, stop: stopMeasuring } = deviceBudget;
  await warmShapes(backend, budget, tokenizer.maxTokens, log);
  const store = await connecting;
  const name = `${settings.served}@${model.revision}`;
  const faults = faultPointsFrom(process.env['SHOAL_FAULT_POINT'], (signal) => process.kill(process.pid, signal));
  const keys = keySpace(prefix);
  const send = (message: FromExecutor): void => {
    tell(message);
    deviceBudget.hear(message);
    if (message.kind === 'budget') tell({ kind: 'learned', learned: budget.learned() });
  };
  const executor = new Executor({
    store,
    tokenizer,
    backend,
    budget,
    log,
    limits,
    send,
    faults,
    isLastLane: backend.device === 'cpu',
    model: name,
    prompts: model.prompts,
    clock: systemClock,
    resultKey: (jobId) => keys.output(queue, jobId),
  });
  send({
    kind: 'ready',
    model: name,
    dims: model.dims,
    maxTokens: tokenizer.maxTokens,
    device: backend.device,
    precision: backend.precision,
    pid: process.pid,
  });
  return {
    handle: (message) => executor.handle(message),
    close: async () => {
      stopMeasuring();
      await executor.stop();
      await backend.stop();
      await Promise.all([tokenizer.stop(), store.stop()]);
    },
  };
});

async function openBackend(
  {
    limits,
    threads,
    cacheDir,
    simulatedTokensPerMs,
    device,
    precision,
    encoder,
    deviceSessions: sessions,
  }: ExecutorSettings,
  log: Logger,
  model: StoredModel,
  tokenizer: Tokenizer,
): Promise<InferenceBackend> {
  const slotTokens = Math.max(limits.maxPaddedTokens ?? SLOT_TOKENS, Math.ceil(tokenizer.maxTokens / 8) * 8);
  const slots = (found: string): SlotSizes => ({
    dims: model.dims,
    slotRows: sizesOf(limits, found).maxRows,
    slotTokens,
  });
  const law = simulatedLaw(device);
  if (law !== undefined) return new SimulatedDevice({ ...slots(device), law, clock: systemClock });
  if (simulatedTokensPerMs !== undefined)
    return new PacedBackend({
      ...slots(device),
      tokensPerMs: simulatedTokensPerMs,
      fixedMs: paceOf(device)?.fixedMs ?? 0,
      sessions: sessions ?? 1,
    });
  return openDevice({
    device,
    precision,
    encoder,
    sessions,
    slots,
    model,
    tokenizer,
    cacheDir,
    threads,
    log,
    environment: process.env,
  });
}
