// Measures runs of given shapes in a process of its own: what they hold in memory and how long they take. A process of
// its own, because an arena never gives back what it took: a shape measured after others shows the most that any of
// them needed. It is the first that the kernel kills when memory runs out, and it may be killed.
//
// Why: docs/decisions/memory-and-budget.md#memory-is-measured-in-a-process-of-its-own

import { fork, type ChildProcess } from 'node:child_process';
import { setPriority } from 'node:os';
import { fileURLToPath } from 'node:url';
import { ShoalError } from '@shoal/contract';
import type { RunShape } from '@shoal/core';
import { descriptorFailure, programFile } from '@shoal/core/base';
import type { OrtBackendOptions } from '@shoal/inference';

export interface ProbedShape extends RunShape {
  /** Held before the first run of the process, bytes. */
  readonly loadedBytes: number;
  /** Most that was held up to the last run of this shape, bytes. */
  readonly peakBytes: number;
  /** What each repetition took. */
  readonly runMs: readonly number[];
}

export interface ProbeOptions {
  readonly backend: OrtBackendOptions;
  /** Run one after the other, each `repeats` times. */
  readonly shapes: readonly RunShape[];
  readonly repeats: number;
  /** What the arena is laid out for, padded tokens: as an executor with this budget would. */
  readonly arenaTokens: number;
  /** Leaves the cores to whoever else wants them: for a probe beside an executor at work. */
  readonly isBackground?: boolean;
  readonly timeoutMs: number;
  readonly onShape?: (shape: ProbedShape) => void;
  readonly signal?: AbortSignal;
}

export type ToProbe = Pick<ProbeOptions, 'backend' | 'shapes' | 'repeats' | 'arenaTokens'>;

export type FromProbe =
  | { readonly kind: 'shape'; readonly shape: ProbedShape }
  /** No memory for this shape; wider or longer ones were not tried. */
  | { readonly kind: 'out-of-memory'; readonly shape: RunShape }
  | { readonly kind: 'done' }
  | { readonly kind: 'failed'; readonly message: string };

/**
 * The shapes that could be measured: all, or those before the first that ran out of memory. Throws EXECUTOR_LOST when
 * the process ends early or is silent for `timeoutMs`.
 */
export async function probeShapes(options: ProbeOptions): Promise<readonly ProbedShape[]> {
  const { isBackground = false, timeoutMs, onShape, signal } = options;
  const child = startProbe(options);
  if (isBackground && child.pid !== undefined) setPriority(child.pid, 10);
  const kill = (): void => void child.kill('SIGKILL');
  const patience = setTimeout(kill, timeoutMs);
  signal?.addEventListener('abort', kill);
  const measured: ProbedShape[] = [];
  try {
    return await new Promise((resolve, reject) => {
      child.on('message', (message: FromProbe) => {
        patience.refresh();
        if (message.kind === 'failed') reject(new ShoalError('INFERENCE_FAILED', message.message));
        else if (message.kind === 'done') resolve(measured);
        else if (message.kind === 'shape') {
          measured.push(message.shape);
          onShape?.(message.shape);
        }
      });
      child.once('error', (error) => reject(descriptorFailure(error) ?? error));
      child.once('close', (code, by) =>
        reject(
          new ShoalError(
            'EXECUTOR_LOST',
            `the process that measures ended (${by ?? `exit code ${code}`}) after ${measured.length} of ` +
              `${options.shapes.length} shapes`,
          ),
        ),
      );
    });
  } finally {
    clearTimeout(patience);
    signal?.removeEventListener('abort', kill);
    kill();
  }
}

function startProbe({ backend, shapes, repeats, arenaTokens }: ProbeOptions): ChildProcess {
  const main = fileURLToPath(programFile('./shape-probe-main', import.meta.url));
  const child = fork(main, [], { stdio: ['ignore', 2, 2, 'ipc'] });
  // as JSON: what it cannot say, the probe does not need
  child.once('spawn', () => child.send({ backend, shapes, repeats, arenaTokens } satisfies ToProbe));
  return child;
}
