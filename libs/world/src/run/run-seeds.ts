// Runs many seeds in processes of their own, as many side by side as there are cores to use, and says what they found.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { extname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { invariant } from '@shoal/contract';
import { NO_RUNS, joinedDigests } from './digest.ts';
import type { Plan } from './plan.ts';
import { PLANT_VARIABLE, type FromRunProcess, type ToRunProcess } from './run-messages.ts';
import type { RunReport } from './simulate.ts';
import type { Shrunk } from './shrink.ts';

export interface SeedsOptions {
  /** Seeds are whole numbers; this is the first. */
  readonly from: number;
  /** Most that are run; Infinity where time alone ends it. */
  readonly seeds: number;
  /** Nothing begins after so long. */
  readonly mostMs?: number | undefined;
  readonly processes: number;
  /** Name of a planted fault; see planted.ts. */
  readonly plant?: string | undefined;
  /** Begin nothing more once so many seeds failed. Default 1. */
  readonly mostFailures?: number | undefined;
  readonly onProgress?: ((soFar: SeedsReport) => void) | undefined;
}

export interface SeedsReport {
  /** The first seed; `runs` of them from there on were run. */
  readonly from: number;
  readonly runs: number;
  readonly steps: number;
  readonly virtualMs: number;
  /** Of all traces: equal where the same seeds were run by the same code, wherever. */
  readonly digest: string;
  /** Of this machine's time. */
  readonly tookMs: number;
  /** By seed, the smallest first. */
  readonly failed: readonly RunReport[];
}

/** Seeds that a process runs before it is heard of. */
const BATCH = 20;

/** So long a batch may take at the most, ms: one run is a fraction of a second, and one that hangs is a finding. */
const BATCH_WITHIN_MS = 180_000;

export async function runSeeds(options: SeedsOptions): Promise<SeedsReport> {
  const { from, seeds, mostMs = Infinity, processes, mostFailures = 1, onProgress } = options;
  const beganMs = performance.now();
  let next = from;
  let [runs, steps, virtualMs, digest] = [0, 0, 0, NO_RUNS];
  const failed: RunReport[] = [];
  const report = (): SeedsReport => ({
    from,
    runs,
    steps,
    virtualMs,
    digest,
    tookMs: performance.now() - beganMs,
    failed: failed.toSorted((a, b) => Number(a.seed) - Number(b.seed)),
  });
  const add = (ran: Ran): void => {
    runs += ran.runs;
    steps += ran.steps;
    virtualMs += ran.virtualMs;
    digest = joinedDigests(digest, ran.digest);
    failed.push(...ran.failed);
    onProgress?.(report());
  };
  const work = async (): Promise<void> => {
    let runner = await RunProcess.start(options.plant);
    /** A process that ends or hangs is a finding like any other; the seed that did it is found by itself. */
    const runAll = async (batch: readonly string[]): Promise<void> => {
      let ran: FromRunProcess;
      try {
        ran = await runner.ask({ kind: 'seeds', seeds: batch }, BATCH_WITHIN_MS);
      } catch (error) {
        runner.kill();
        runner = await RunProcess.start(options.plant);
        if (batch.length === 1) return add(lost(batch[0]!, error));
        for (const seed of batch) await runAll([seed]);
        return;
      }
      invariant(ran.kind === 'ran', 'seeds are answered with what they found');
      add(ran);
    };
    try {
      while (next < from + seeds && performance.now() - beganMs < mostMs && failed.length < mostFailures) {
        const count = Math.min(BATCH, from + seeds - next);
        const batch = Array.from({ length: count }, (_, at) => String(next + at));
        next += count;
        await runAll(batch);
      }
    } finally {
      runner.stop();
    }
  };
  await Promise.all(Array.from({ length: Math.max(1, processes) }, work));
  return report();
}

type Ran = Extract<FromRunProcess, { readonly kind: 'ran' }>;

/** A run of which its process did not live to tell. */
function lost(seed: string, error: unknown): Ran {
  const violations = [`process-ended: ${error instanceof Error ? error.message : String(error)}`];
  const failed: RunReport[] = [{ seed, trace: '', steps: 0, virtualMs: 0, end: 'idle', violations }];
  return { kind: 'ran', runs: 1, steps: 0, virtualMs: 0, digest: NO_RUNS, failed };
}

export interface OneRunOptions {
  /** Each step is a line. */
  readonly isTraced?: boolean;
  /** Seeds that the same process runs before. */
  readonly after?: readonly string[];
  readonly plant?: string | undefined;
}

/** One run in a process of its own. */
export async function runPlan(
  plan: Plan,
  { isTraced = false, after = [], plant }: OneRunOptions = {},
): Promise<{ readonly report: RunReport; readonly lines: readonly string[] }> {
  const runner = await RunProcess.start(plant);
  try {
    if (after.length > 0) await runner.ask({ kind: 'seeds', seeds: after });
    const answer = await runner.ask({ kind: 'plan', plan, isTraced });
    invariant(answer.kind === 'report', 'a plan is answered with its report');
    return answer;
  } finally {
    runner.stop();
  }
}

/** The smallest plan that fails by the same rule as this one, which fails. */
export async function shrinkPlan(plan: Plan, plant?: string): Promise<Shrunk> {
  const runner = await RunProcess.start(plant);
  try {
    const answer = await runner.ask({ kind: 'shrink', plan });
    invariant(answer.kind === 'shrunk', 'a plan that is to be shrunk is answered with what is left');
    return answer.shrunk;
  } finally {
    runner.stop();
  }
}

class RunProcess {
  private readonly child: ChildProcess;

  private constructor(child: ChildProcess) {
    this.child = child;
  }

  static async start(plant = ''): Promise<RunProcess> {
    const child = fork(fileURLToPath(new URL(`./run-process${extname(import.meta.url)}`, import.meta.url)), [], {
      // a run leaves a heap of garbage behind: young space for all of it costs a third less than the default
      execArgv: ['--conditions=@shoal/source', '--no-warnings', '--max-semi-space-size=32'],
      env: { ...process.env, [PLANT_VARIABLE]: plant },
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    const runner = new RunProcess(child);
    await runner.answer();
    return runner;
  }

  /** Throws when the process ends without an answer, and when there is none in time. */
  async ask(question: ToRunProcess, withinMs?: number): Promise<FromRunProcess> {
    this.child.send(question);
    return this.answer(withinMs);
  }

  stop(): void {
    if (this.child.connected) this.child.disconnect();
  }

  kill(): void {
    this.child.kill('SIGKILL');
  }

  private async answer(withinMs?: number): Promise<FromRunProcess> {
    const end = new AbortController();
    const { signal } = end;
    try {
      const ended = once(this.child, 'exit', { signal }).then(([code, by]: unknown[]) => {
        throw new Error(`a process that runs seeds ended without an answer (${String(code ?? by)})`);
      });
      const late =
        withinMs === undefined
          ? []
          : [
              sleep(withinMs, undefined, { signal }).then(() => {
                throw new Error(`no answer within ${withinMs} ms`);
              }),
            ];
      const answered = once(this.child, 'message', { signal });
      const [message] = (await Promise.race([answered, ended, ...late])) as unknown[];
      return message as FromRunProcess;
    } finally {
      end.abort();
    }
  }
}
