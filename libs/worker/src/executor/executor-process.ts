// What every executor process is, whatever it computes: it has its settings from its worker, answers it over the
// channel, and ends with it. A closed channel means SIGKILL, because leaving in any softer way aborts while a run is in
// flight. Signals from a terminal are the claimer's to handle.

import { invariant, toFailure } from '@shoal/contract';
import type { AnyOrder, FromExecutor, Logger, ToExecutor } from '@shoal/core';
import { Batcher, descriptorFailure } from '@shoal/core/base';
import { createLogger } from '@shoal/ops/service';
import { SHOAL_VERSION } from '../claimer/shoal-version.ts';
import { EXECUTOR_ENVIRONMENT, type ExecutorSettings, type SimilarityExecutorSettings } from './executor-settings.ts';
import type { FromExecutorProcess } from '../claimer/forked-executor.ts';

export interface ExecutorProcess<Settings> {
  readonly settings: Settings;
  readonly log: Logger;
  /**
   * What is told in one turn of the event loop travels together, in order: each message by itself costs both processes
   * a system call and a wake-up.
   */
  readonly tell: (message: FromExecutorProcess) => void;
}

export interface OpenExecutor<Order extends AnyOrder> {
  handle(message: Exclude<ToExecutor<Order>, { kind: 'stop' }>): void;
  /** Finishes what has begun and frees the device. */
  close(): Promise<void>;
}

/** Runs this process: `open` says `ready` when it can work. */
export async function executorProcess<
  Settings extends ExecutorSettings | SimilarityExecutorSettings,
  Order extends AnyOrder,
>(open: (process: ExecutorProcess<Settings>) => Promise<OpenExecutor<Order>>): Promise<void> {
  const settings = JSON.parse(process.env[EXECUTOR_ENVIRONMENT] ?? 'null') as Settings;
  invariant(settings !== null && process.send !== undefined, 'the executor is started by its worker');
  const { logLevel: level, logFormat: format, workerName: worker, queue } = settings;
  const who = { ...(worker !== undefined && { worker }), queue, version: SHOAL_VERSION };
  const log = createLogger({ level, format, name: 'executor', who });
  let lastSent: Promise<void> = Promise.resolve();
  const batcher = new Batcher<FromExecutorProcess>({
    send(together) {
      lastSent = new Promise((resolve) => process.send?.(together, undefined, {}, () => resolve()));
    },
  });
  const tell = (message: FromExecutorProcess): void => {
    batcher.add([message]);
    // who is at the device has to be known before it can end this process; rows of parts are nobody's suspects
    if (message.kind === 'began' && message.jobIds.length > 0) batcher.flush();
  };
  /**
   * Ends the process once the last message is on its way. Nothing runs at the device by now; what else is open does not
   * matter.
   */
  const leave = async (): Promise<never> => {
    batcher.flush();
    await lastSent;
    process.exit(0);
  };
  endWithWorker(log);
  try {
    const executor = await open({ settings, log, tell });
    process.on('message', (message: ToExecutor<Order>) => {
      if (message.kind === 'stop') void executor.close().then(leave);
      else executor.handle(message);
    });
  } catch (error) {
    tell({
      kind: 'unfit',
      failure: toFailure(descriptorFailure(error) ?? error, 'SETUP_FAILED'),
    } satisfies FromExecutor);
    await leave();
  }
}

function dieAtOnce(): void {
  process.kill(process.pid, 'SIGKILL');
}

function endWithWorker(log: Logger): void {
  process.on('disconnect', dieAtOnce);
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => undefined);
  process.on('unhandledRejection', (error) => {
    log.error({ err: error, code: toFailure(error, 'EXECUTOR_LOST').code }, 'executor cannot go on');
    dieAtOnce();
  });
}
