// The executor process: opens model, tokenizer, runtime and its own connection to the queue server, then lets core's Executor
// answer the claimer. It ends with its claimer: a closed channel means SIGKILL, because leaving in any softer way aborts
// while a run is in flight. Signals from a terminal are the claimer's to handle.

import { Executor, faultPointsFrom, invariant, keySpace, systemClock, toFailure, type FromExecutor, type InferenceBackend, type ToExecutor, type Tokenizer } from '@shoal/core';
import { PacedBackend, SimulatedDevice, paceOf, simulatedLaw, withDeadlyToken } from '@shoal/core/sim';
import { openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { createLogger } from '@shoal/ops/service';
import { RedisPayloadStore } from '@shoal/queue/payload';
import { openDeviceBudget, type DeviceBudget } from './device-budget.ts';
import { EXECUTOR_ENVIRONMENT, type ExecutorSettings } from './executor-settings.ts';
import type { FromExecutorProcess } from './forked-executor.ts';
import { openDevice } from './open-device.ts';
import { ThreadedTokenizer } from './threaded-tokenizer.ts';
import { warmShapes } from './warm-shapes.ts';

const settings = JSON.parse(process.env[EXECUTOR_ENVIRONMENT] ?? 'null') as ExecutorSettings;
invariant(settings !== null && process.send !== undefined, 'the executor is started by its worker');
const log = createLogger({ level: settings.logLevel, name: 'executor' });
let lastSent: Promise<void> = Promise.resolve();
const tell = (message: FromExecutorProcess): void => {
  lastSent = new Promise((resolve) => process.send?.(message, undefined, {}, () => resolve()));
};
let deviceBudget: DeviceBudget | undefined;
const send = (message: FromExecutor): void => {
  tell(message);
  deviceBudget?.hear(message);
  if (message.kind === 'budget' && deviceBudget !== undefined) tell({ kind: 'learned', learned: deviceBudget.budget.learned() });
};
const dieAtOnce = (): void => void process.kill(process.pid, 'SIGKILL');

process.on('disconnect', dieAtOnce);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => undefined);
process.on('unhandledRejection', (error) => {
  log.error({ err: error, code: toFailure(error, 'EXECUTOR_LOST').code }, 'executor cannot go on');
  dieAtOnce();
});

async function open(): Promise<{ executor: Executor; close: () => Promise<void> }> {
  const { redisUrl, prefix, queue, cpuQueue, cacheDir, limits } = settings;
  const connecting = RedisPayloadStore.connect({ redisUrl, prefix, queue, cpuQueue, log });
  connecting.catch(() => undefined); // awaited below, after the slower parts have begun
  const model = await openModel(settings.model, { cacheDir });
  const ownTokenizer = await openTokenizer(model, settings.maxTokens === undefined ? {} : { maxTokens: settings.maxTokens });
  const tokenizer = new ThreadedTokenizer({ tokenizer: ownTokenizer, model: settings.model, cacheDir, maxTokens: ownTokenizer.maxTokens, threads: settings.tokenizerThreads });
  const backend = withDeadlyToken(await openBackend(model, ownTokenizer), process.env['SHOAL_FAULT_TOKEN'], (whole) => (whole ? process.kill(process.ppid, 'SIGKILL') : process.abort()));
  deviceBudget = await openDeviceBudget({ backend, model, maxTokens: tokenizer.maxTokens, settings, clock: systemClock, log });
  const { budget, stop: stopMeasuring } = deviceBudget;
  await warmShapes(backend, budget, tokenizer.maxTokens, log);
  const store = await connecting;
  const name = `${settings.served}@${model.revision}`;
  const faults = faultPointsFrom(process.env['SHOAL_FAULT_POINT'], (signal) => process.kill(process.pid, signal));
  const keys = keySpace(prefix);
  const executor = new Executor({
    store, tokenizer, backend, budget, log, limits, send, faults,
    isLastLane: backend.device === 'cpu',
    model: name,
    prompts: model.prompts,
    clock: systemClock,
    resultKey: (jobId) => keys.output(queue, jobId),
  });
  send({ kind: 'ready', model: name, dims: model.dims, maxTokens: tokenizer.maxTokens, device: backend.device, precision: backend.precision, pid: process.pid });
  return {
    executor,
    close: async () => {
      stopMeasuring();
      await executor.stop();
      await backend.stop();
      await Promise.all([tokenizer.stop(), store.stop()]);
    },
  };
}

/** More than any budget measured so far. Buffers of shared memory cost what is written to them: 1 MB for ids of so many tokens. */
const SLOT_TOKENS = 262_144;

async function openBackend(model: StoredModel, tokenizer: Tokenizer): Promise<InferenceBackend> {
  const { limits, threads, cacheDir, simulatedTokensPerMs, device, precision, deviceSessions: sessions } = settings;
  const slots = { dims: model.dims, slotRows: limits.maxRows, slotTokens: Math.max(limits.maxPaddedTokens ?? SLOT_TOKENS, Math.ceil(tokenizer.maxTokens / 8) * 8) };
  const law = simulatedLaw(device);
  if (law !== undefined) return new SimulatedDevice({ ...slots, law, clock: systemClock });
  if (simulatedTokensPerMs !== undefined) return new PacedBackend({ ...slots, tokensPerMs: simulatedTokensPerMs, fixedMs: paceOf(device)?.fixedMs ?? 0 });
  return openDevice({ device, precision, sessions, slots, model, tokenizer, cacheDir, threads, log, environment: process.env });
}

try {
  const { executor, close } = await open();
  process.on('message', (message: ToExecutor) => {
    if (message.kind === 'stop') void close().then(leave);
    else executor.handle(message);
  });
} catch (error) {
  send({ kind: 'unfit', failure: toFailure(error, 'SETUP_FAILED') });
  await leave();
}

/** Ends the process once the last message is on its way. Nothing runs at the device by now; what else is open does not matter. */
async function leave(): Promise<never> {
  await lastSent;
  process.exit(0);
}
