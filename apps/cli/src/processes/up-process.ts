// One of the processes of `shoal up`: a worker, the HTTP producer, the dashboard. Kept running until it is told to
// stop.
//
// starting: the process was forked and has not said `ready`. The first time, `unfit` is final: the command fails with
//           what it says (a port that is taken, a model that cannot be opened). Later it counts as a death: what it
//           needs, such as the queue server, may come back.
// up:       it said `ready` and gives signs of life. Half a minute without one, and it is killed, which is a death.
// pausing:  it died. The next one starts after a pause that doubles from a quarter of a second up to ten, and is short
//           again once a process has been up for half a minute.
// failed:   it could not be started even once. Final, unless it is one of several that do the same (`others`): then
//           this is said and it goes on pausing, because a device that is taken or ill may come back.
// stopped:  it was told to stop and is gone. Final.
//
// A part leaves by itself when the channel to this process closes, so that even a SIGKILL leaves nothing behind.

import { fork, type ChildProcess } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { ShoalError, toFailure } from '@shoal/contract';
import { environmentName } from '@shoal/core';
import { descriptorFailure, programFile } from '@shoal/core/base';
import { KeptProcess, type AfterDeath } from '@shoal/ops/kept-process';
import { REPLACE_ME } from '@shoal/ops/service';
import { PARENT_TELLS, SILENT_FOR, watchSigns, type SignsTerms } from '@shoal/ops/signs-of-life';
import { endOf, stopWorker, unfitReport } from './keep-worker.ts';

export type App = 'cpu-worker' | 'gpu-worker' | 'producer' | 'dashboard';

/** What a process says when it is up: its pid, and its url or device and model. */
export type ReadyReport = Readonly<Record<string, unknown>>;

export interface UpProcessOptions {
  /** For a person: "worker", "HTTP". */
  readonly name: string;
  /** `first`: what it said when it was up for the first time, so that the next one can be at the same address. */
  readonly start: (first: ReadyReport | undefined) => ChildProcess;
  /** It died and will be started again. */
  readonly onDeath: (reason: string) => void;
  /** It is up again after a death. */
  readonly onReturn: (report: ReadyReport) => void;
  /** How long it may take to stop before it is killed. */
  readonly stopMs: number;
  /** Others do the same work, so that one which cannot be started is tried again for as long as they run. */
  readonly hasOthers?: boolean;
  readonly signs?: SignsTerms;
}

const PAUSE = { firstMs: 250, mostMs: 10_000 };
const STEADY_MS = 30_000;
/** Deaths without a word, before it was ever up, after which the command fails. */
const MOST_FAILED_STARTS = 5;

/** One process, from its start to its exit. */
interface Life {
  readonly reason: string;
  readonly failure: ShoalError | undefined;
}

export class UpProcess {
  readonly #options: UpProcessOptions;
  readonly #first = Promise.withResolvers<ReadyReport>();
  readonly #kept: KeptProcess<Life>;
  #firstReport: ReadyReport | undefined;
  #hasDied = false;

  constructor(options: UpProcessOptions) {
    this.#options = options;
    this.#first.promise.catch(() => undefined); // whoever cares awaits `ready`
    this.#kept = new KeptProcess({
      live: (stopping) => this.#runOne(stopping),
      onDeath: (life, deaths) => this.#died(life, deaths),
      pause: PAUSE,
      steadyMs: STEADY_MS,
    });
    void this.#kept.run();
  }

  /** Its first report; rejects when it cannot be started. Stays open when it is stopped before. */
  get ready(): Promise<ReadyReport> {
    return this.#first.promise;
  }

  /** Resolves when its process is gone. Safe to call twice. */
  stop(): Promise<void> {
    return this.#kept.stop();
  }

  #died({ reason, failure }: Life, deaths: number): AfterDeath {
    const isUnfit = this.#firstReport === undefined && (failure !== undefined || deaths >= MOST_FAILED_STARTS);
    if (isUnfit) this.#first.reject(failure ?? neverUp(this.#options.name, reason));
    if (isUnfit && this.#options.hasOthers !== true) return 'give-up';
    this.#hasDied = true;
    this.#options.onDeath(reason);
    return isUnfit ? 'later' : 'again';
  }

  async #runOne(stopping: AbortSignal): Promise<Life> {
    const { start, stopMs, signs } = this.#options;
    const child = start(this.#firstReport);
    let failure: ShoalError | undefined;
    let isSilent = false;
    watchSigns(child, () => (isSilent = child.kill('SIGKILL')), signs);
    child.on('message', (message) => {
      const unfit = unfitReport(message);
      if (unfit !== undefined) failure = new ShoalError(unfit.code, unfit.message);
      else if (isReady(message)) this.#isUp(message);
    });
    const stop = (): void => void stopWorker(child, stopMs);
    stopping.addEventListener('abort', stop, { once: true });
    try {
      const { code, signal } = await endOf(child);
      const end = typeof signal === 'string' ? `killed by ${signal}` : endOfCode(code);
      return { failure, reason: failure?.message ?? (isSilent ? `silent for ${SILENT_FOR} and killed` : end) };
    } catch (error) {
      // it could not even be forked
      return { failure, reason: toFailure(descriptorFailure(error) ?? error).message };
    } finally {
      stopping.removeEventListener('abort', stop);
    }
  }

  #isUp(report: ReadyReport): void {
    const isReturn = this.#hasDied;
    this.#firstReport ??= report;
    this.#first.resolve(report);
    if (isReturn) this.#options.onReturn(report);
  }
}

/**
 * An app as a child of this process. It has a process group of its own: Ctrl-C in a terminal goes to the whole group,
 * and when it stops is our decision. Node's flags, such as the source condition, are inherited.
 */
export function forkApp(app: App, environment: Readonly<Record<string, string | undefined>>): ChildProcess {
  const program = fileURLToPath(programFile(`../../../${app}/src/main`, import.meta.url));
  return fork(program, [PARENT_TELLS], {
    detached: true,
    env: { ...environment },
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
}

/** The port of the address in a report, as the setting `key` for the next process; nothing before there was one. */
export function samePort(key: 'httpPort' | 'dashboardPort', report: ReadyReport | undefined): Record<string, string> {
  const url = report?.['url'];
  return typeof url === 'string' && URL.canParse(url) ? { [environmentName(key)]: new URL(url).port } : {};
}

function endOfCode(code: unknown): string {
  return code === REPLACE_ME ? 'told to make room for its successor' : `exit code ${String(code)}`;
}

function isReady(message: unknown): message is ReadyReport {
  return typeof message === 'object' && message !== null && Reflect.get(message, 'kind') === 'ready';
}

function neverUp(name: string, reason: string): ShoalError<'SETUP_FAILED'> {
  return new ShoalError(
    'SETUP_FAILED',
    `${name} could not be started: it died ${MOST_FAILED_STARTS} times (${reason}); its log lines above say why`,
  );
}
