// One executor process without a worker: jobs are given to it directly and commit into a queue server of the bench's
// own, so that what it runs is known to the row, and its memory is read from outside.

import { readFileSync, writeFileSync } from 'node:fs';
import { encodeTokens, keySpace, mainQueue } from '@shoal/contract';
import { resolveSettings, type FromExecutor } from '@shoal/core';
import type { JobOutcome } from '../../libs/core/src/protocol.ts';
import type { StoredModel } from '@shoal/models';
import { closeConnection, openConnection } from '@shoal/queue/payload';
import { startTestServer } from '@shoal/queue/testing';
import { ForkedExecutor } from '../../libs/worker/src/claimer/forked-executor.ts';
import type { ExecutorSettings } from '../../libs/worker/src/executor/executor-settings.ts';
import { MAX_TOKENS } from './sides.ts';

const PREFIX = '{bench}';
const TOKEN = 'bench';
const keys = keySpace(PREFIX);

export interface LoneExecutor {
  readonly pid: number;
  /** Runs one job of these rows and resolves with its ending. */
  run(jobId: string, rows: readonly (readonly number[])[]): Promise<JobOutcome>;
  onMessage(listener: (message: FromExecutor) => void): void;
  stop(): Promise<void>;
}

export interface ExecutorHost {
  start(
    model: StoredModel,
    options: { readonly threads: number; readonly limits: Partial<ExecutorSettings['limits']> },
  ): Promise<LoneExecutor>;
  stop(): Promise<void>;
}

/** A queue server for executors of models in `cacheDir`. */
export async function hostExecutors(cacheDir: string): Promise<ExecutorHost> {
  const server = await startTestServer();
  const redis = openConnection({ url: server.url, prefix: PREFIX, name: 'bench' });

  async function start(
    model: StoredModel,
    { threads, limits }: Parameters<ExecutorHost['start']>[1],
  ): Promise<LoneExecutor> {
    const queue = mainQueue(model.name);
    const executor = new ForkedExecutor({
      redisUrl: server.url,
      prefix: PREFIX,
      queue,
      cpuQueue: undefined,
      cacheDir,
      threads,
      tokenizerThreads: 0,
      device: 'cpu',
      precision: 'auto',
      deviceSessions: 1,
      model: model.name,
      served: model.name,
      maxTokens: MAX_TOKENS,
      logLevel: 'error',
      limits: { ...resolveSettings({}), maxWaitMs: 0, minRows: 1, ...limits },
    });
    const waiting = new Map<string, PromiseWithResolvers<JobOutcome>>();
    executor.onMessage((message) => {
      if (message.kind === 'outcomes')
        for (const outcome of message.outcomes) waiting.get(outcome.jobId)?.resolve(outcome);
    });
    executor.onLost((reason) => waiting.forEach(({ reject }) => reject(new Error(`the executor is gone: ${reason}`))));
    const { pid } = await executor.start();

    async function run(jobId: string, rows: readonly (readonly number[])[]): Promise<JobOutcome> {
      await redis.multi().set(keys.input(queue, jobId), encodeTokens(rows)).set(keys.lock(queue, jobId), TOKEN).exec();
      const ended = Promise.withResolvers<JobOutcome>();
      waiting.set(jobId, ended);
      const tokens = rows.reduce((sum, row) => sum + row.length, 0);
      executor.send({
        kind: 'run',
        isQueueDrained: false,
        jobs: [
          {
            jobId,
            token: TOKEN,
            queuedMs: 0,
            input: { form: 'tokens', rows: rows.length, tokens, tokenizer: model.tokenizerHash },
            fingerprint: undefined,
            class: 'bulk',
            truncate: 'end',
            prompt: undefined,
            output: { dtype: 'f32', dimensions: undefined },
            resultTtlMs: 1_000,
            remainingMs: undefined,
          },
        ],
      });
      const outcome = await ended.promise;
      waiting.delete(jobId);
      await redis.del(keys.input(queue, jobId), keys.lock(queue, jobId), keys.output(queue, jobId));
      return outcome;
    }
    return { pid, run, onMessage: (listener) => executor.onMessage(listener), stop: () => executor.stop() };
  }

  return {
    start,
    stop: async () => {
      await closeConnection(redis);
      await server.stop();
    },
  };
}

/** Ids that differ from row to row; only their number matters. */
export function rowOf(tokens: number, seed: number, { vocabularySize }: StoredModel): number[] {
  return Array.from({ length: tokens }, (_, i) => (seed * 31 + i * 7) % vocabularySize);
}

/** What a process holds (VmRSS), or held at most (VmHWM). */
export function heldBytes(pid: number, key: 'VmRSS' | 'VmHWM'): number {
  return Number(new RegExp(`^${key}:\\s+(\\d+)`, 'm').exec(readFileSync(`/proc/${pid}/status`, 'latin1'))![1]) * 1024;
}

/** Makes VmHWM count from now on. */
export function forgetPeak(pid: number): void {
  writeFileSync(`/proc/${pid}/clear_refs`, '5');
}
