// Runs many seeds in processes of their own, as many side by side as there are cores to use, and says what they found.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { invariant } from '@shoal/contract';
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
  readonly runs: number;
  readonly steps: number;
  readonly virtualMs: number;
  /** Of this machine's time. */
  readonly tookMs: number;
  /** By seed, the smallest first. */
  readonly failed: readonly RunReport[];
}

/** Seeds that a process runs before it is heard of. */
const BATCH = 20;

export async function runSeeds(options: SeedsOptions): Promise<SeedsReport> {
  const { from, seeds, mostMs = Infinity, processes, mostFailures = 1, onProgress } = options;
  const beganMs = performance.now();
  let next = from;
  let [runs, steps, virtualMs] = [0, 0, 0];
  const failed: RunReport[] = [];
  const report = (): SeedsReport => ({
    runs,
    steps,
    virtualMs,
    tookMs: performance.now() - beganMs,
    failed: failed.toSorted((a, b) => Number(a.seed) - Number(b.seed)),
  });
  const work = async (): Promise<void> => {
    const runner = await RunProcess.start(options.plant);
    try {
      while (next < from + seeds && performance.now() - beganMs < mostMs && failed.length < mostFailures) {
        const count = Math.min(BATCH, from + seeds - next);
        const batch = Array.from({ length: count }, (_, at) => String(next + at));
        next += count;
        const ran = await runner.ask({ kind: 'seeds', seeds: batch });
        invariant(ran.kind === 'ran', 'seeds are answered with what they found');
        runs += ran.runs;
        steps += ran.steps;
        virtualMs += ran.virtualMs;
        failed.push(...ran.failed);
        onProgress?.(report());
      }
    } finally {
      runner.stop();
    }
  };
  await Promise.all(Array.from({ length: Math.max(1, processes) }, work));
  return report();
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
      execArgv: ['--conditions=@shoal/source', '--no-warnings'],
      env: { ...process.env, [PLANT_VARIABLE]: plant },
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    const runner = new RunProcess(child);
    await runner.answer();
    return runner;
  }

  /** Throws when the process ends without an answer. */
  async ask(question: ToRunProcess): Promise<FromRunProcess> {
    this.child.send(question);
    return this.answer();
  }

  stop(): void {
    if (this.child.connected) this.child.disconnect();
  }

  private async answer(): Promise<FromRunProcess> {
    const end = new AbortController();
    try {
      const ended = once(this.child, 'exit', { signal: end.signal }).then(([code, signal]: unknown[]) => {
        throw new Error(`a process that runs seeds ended without an answer (${String(code ?? signal)})`);
      });
      const [message] = (await Promise.race([once(this.child, 'message', { signal: end.signal }), ended])) as unknown[];
      return message as FromRunProcess;
    } finally {
      end.abort();
    }
  }
}
