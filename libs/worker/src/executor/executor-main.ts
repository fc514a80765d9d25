// The executor process of a worker that runs a model: opens model, tokenizer, runtime and its own connection to the queue
// server, then lets core's Executor answer the claimer. How it lives and ends is executor-process.ts.

import { askablePrompts, keySpace } from '@shoal/contract';
import {
  Executor,
  sizesOf,
  systemClock,
  type FromExecutor,
  type InferenceBackend,
  type JobOrder,
  type PartOrder,
  type Logger,
  type Tokenizer,
} from '@shoal/core';
import { faultPointsFrom } from '@shoal/core/base';
import { openModel, openTokenizer, type StoredModel } from '@shoal/models';
import {
  CellLedgers,
  CellStores,
  PartLedger,
  PayloadServers,
  RedisPayloadStore,
  processCounts,
} from '@shoal/queue/payload';
import { openDevice } from '../device/open-device.ts';
import { PartPlaces } from '../parts/part-place.ts';
import { PartRunner } from '../parts/part-runner.ts';
import { PartThreads } from '../parts/part-threads.ts';
import { openDeviceBudget } from '../measure/device-budget.ts';
import type { DeviceBudget } from '../measure/device-budget-parts.ts';
import { executorProcess, type ExecutorProcess } from './executor-process.ts';
import type { ExecutorSettings } from './executor-settings.ts';
import { ThreadedTokenizer } from './threaded-tokenizer.ts';
import { warmShapes } from './warm-shapes.ts';
import { tellBodies } from './told-bodies.ts';

/**
 * More than any budget measured so far. Buffers of shared memory cost what is written to them: 1 MB for ids of so many
 * tokens.
 */
const SLOT_TOKENS = 262_144;

/** Everything that the executor needs, open. */
interface Parts {
  readonly model: StoredModel;
  readonly tokenizer: ThreadedTokenizer;
  readonly backend: InferenceBackend;
  readonly deviceBudget: DeviceBudget;
  readonly store: RedisPayloadStore;
  readonly others: CellStores;
  readonly payloads: PayloadServers | undefined;
  /** Of a worker that takes parts. */
  readonly ofParts:
    | {
        readonly places: PartPlaces;
        readonly ledger: PartLedger;
        readonly ledgers: CellLedgers;
        readonly threads: PartThreads;
      }
    | undefined;
}

await executorProcess<ExecutorSettings, JobOrder | PartOrder>(async (own) => {
  const parts = await openParts(own);
  const { backend, deviceBudget, tokenizer, store, others, payloads, ofParts } = parts;
  const { executor, runner } = startExecutor(own, parts);
  payloads?.keepLooking();
  const stopTelling = tellBodies(processCounts, () => payloads?.facts(), own.tell);
  return {
    handle: (message) => {
      if (message.kind !== 'run') {
        if (message.kind === 'drop') runner?.drop(message.jobIds);
        return executor.handle(message);
      }
      const jobs = message.jobs.filter((order): order is JobOrder => !('part' in order));
      if (jobs.length > 0) executor.handle({ ...message, jobs });
      runner?.run(message.jobs.filter((order) => 'part' in order));
    },
    close: async () => {
      deviceBudget.stop();
      await runner?.stop();
      await executor.stop();
      stopTelling();
      await backend.stop();
      await Promise.all([
        tokenizer.stop(),
        others.stop(),
        ofParts?.ledger.stop(),
        ofParts?.ledgers.stop(),
        ofParts?.threads.stop(),
      ]);
      await store.stop();
    },
  };
});

async function openParts({ settings, log }: ExecutorProcess<ExecutorSettings>): Promise<Parts> {
  const { cacheDir, modelsDir, modelsReadOnly } = settings;
  const folders = { cacheDir, modelsDir, modelsReadOnly };
  const connecting = connectStore(settings, log);
  connecting.catch(() => undefined); // awaited below, after the slower parts have begun
  const { redisUrl, prefix, parts } = settings;
  const places = parts && placesOf(parts.folders, log);
  await places?.openBuckets();
  const ledger = parts && (await PartLedger.connect({ redisUrl, prefix, queue: parts.queue, log }));
  const model = await openModel(settings.model, folders);
  const ownTokenizer = await openTokenizer(
    model,
    settings.maxTokens === undefined ? {} : { maxTokens: settings.maxTokens },
  );
  const { maxTokens } = ownTokenizer;
  const tokenizing = { model: settings.model, ...folders, maxTokens };
  const tokenizer = new ThreadedTokenizer({
    tokenizer: ownTokenizer,
    ...tokenizing,
    threads: settings.tokenizerThreads,
  });
  const threads = parts && new PartThreads({ folders: parts.folders, tokenizer: tokenizing, log });
  const backend = await openBackend(settings, log, model, ownTokenizer);
  const deviceBudget = await openDeviceBudget({ backend, model, maxTokens, settings, clock: systemClock, log });
  await warmShapes(backend, deviceBudget.budget, maxTokens, log);
  const ledgers = parts && new CellLedgers({ prefix, queue: parts.queue, log });
  const ofParts = places && ledger && ledgers && threads && { places, ledger, ledgers, threads };
  return { model, tokenizer, backend, deviceBudget, ...(await connecting), ofParts };
}

function placesOf(folders: readonly string[], log: Logger): PartPlaces {
  return new PartPlaces(folders, {
    onAway: (reason, waitMs) =>
      log.warn({ reason, waitMs }, 'a store that gets objects of parts is away, and is waited for'),
  });
}

async function connectStore(
  settings: ExecutorSettings,
  log: Logger,
): Promise<Pick<Parts, 'store' | 'others' | 'payloads'>> {
  const { redisUrl, prefix, queue, cpuQueue, payloadServers } = settings;
  const clientName = `shoal:executor:${queue}`;
  const payloads =
    payloadServers === undefined ? undefined : await PayloadServers.connect({ payloadServers, clientName, log });
  const options = { prefix, queue, cpuQueue, payloads, log };
  const store = await RedisPayloadStore.connect({ ...options, redisUrl });
  return { store, others: new CellStores(options), payloads };
}

/** Tells the claimer that it may send work. */
function startExecutor(
  { settings, log, tell }: ExecutorProcess<ExecutorSettings>,
  { model, tokenizer, backend, deviceBudget, store, others, ofParts }: Parts,
): { readonly executor: Executor; readonly runner: PartRunner | undefined } {
  const { budget } = deviceBudget;
  const name = `${settings.served}@${model.revision}`;
  const keys = keySpace(settings.prefix);
  const faults = faultPointsFrom(process.env['SHOAL_FAULT_POINT'], (signal) => process.kill(process.pid, signal));
  const runner = runnerOf();
  const send = (said: FromExecutor): void => {
    const message = runner === undefined ? said : runner.hear(said);
    if (message === undefined) return;
    tell(message);
    deviceBudget.hear(message);
    if (message.kind === 'budget') tell({ kind: 'learned', learned: budget.learned() });
  };
  const executor = new Executor({
    store: runner === undefined ? store : runner.storeBefore(store),
    storeIn: (cell) => others.of(cell),
    tokenizer,
    backend,
    budget,
    log,
    limits: settings.limits,
    send,
    faults,
    isLastLane: backend.device === 'cpu',
    model: name,
    kind: model.kind,
    prompts: model.prompts,
    defaultPrompt: model.defaultPrompt,
    isNormalized: model.isNormalized,
    mayBeZero: model.staticTexts !== undefined,
    clock: systemClock,
    resultKey: (resultId) => keys.output(settings.queue, resultId),
  });
  send({
    kind: 'ready',
    model: name,
    dims: model.dims,
    maxTokens: tokenizer.maxTokens,
    device: backend.device,
    precision: backend.precision,
    encoder: backend.engine,
    pid: process.pid,
    prompts: askablePrompts(model),
    isNormalized: model.isNormalized,
  });
  runner?.serve(executor);
  return { executor, runner };

  function runnerOf(): PartRunner | undefined {
    if (ofParts === undefined) return undefined;
    const { dims, isNormalized } = model;
    const { device, precision } = backend;
    return new PartRunner({
      ledgerIn: (cell) => (cell === undefined ? ofParts.ledger : ofParts.ledgers.of(cell)),
      open: (terms, signal) => ofParts.threads.open(terms, signal),
      places: ofParts.places,
      model: { name, dims, isNormalized, device, precision },
      workerName: settings.workerName,
      tokenizer,
      prompts: model,
      poolTokens: sizesOf(settings.limits, device).poolTokens,
      tell,
      clock: systemClock,
      faults,
      log,
    });
  }
}

async function openBackend(
  { limits, threads, cacheDir, device, precision, encoder, deviceSessions: sessions, ...own }: ExecutorSettings,
  log: Logger,
  model: StoredModel,
  tokenizer: Tokenizer,
): Promise<InferenceBackend> {
  const slotTokens = Math.max(limits.maxPaddedTokens ?? SLOT_TOKENS, Math.ceil(tokenizer.maxTokens / 8) * 8);
  const backend = await openDevice({
    device,
    precision,
    encoder,
    sessions,
    servesModel: own.served === own.model,
    slots: (found) => ({
      dims: model.dims,
      hidden: model.hidden,
      slotRows: sizesOf(limits, found).maxRows,
      slotTokens,
    }),
    model,
    tokenizer,
    cacheDir,
    threads,
    log,
    environment: process.env,
  });
  return withFaults(backend, process.env['SHOAL_FAULT_TOKEN']);
}

/** The backend with the token made deadly that a test or bench named; what does so is loaded for them alone. */
async function withFaults(backend: InferenceBackend, deadlyToken: string | undefined): Promise<InferenceBackend> {
  if (deadlyToken === undefined || deadlyToken === '') return backend;
  const { withDeadlyToken } = await import('@shoal/core/sim');
  return withDeadlyToken(backend, deadlyToken, (whole) =>
    whole ? process.kill(process.ppid, 'SIGKILL') : process.abort(),
  );
}
