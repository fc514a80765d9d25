// Ten minutes of a worker, or of all together, as points of a line: one for every ten seconds. Pure.

import type { ReadStep, WorkerHistory } from '@shoal/queue';
import { HISTORY_MS } from './fleet-reading.ts';

const STEP_MS = 10_000;
const POINTS = HISTORY_MS / STEP_MS;
/** A step is told a few seconds after its ten are over. */
const LATE_MS = 15_000;

export interface TenMinutes {
  /** Undefined where the worker told nothing; so are the other two where nothing ran. */
  readonly textsPerSecond: readonly (number | undefined)[];
  /** Share of padding in what ran, 0 to 1. */
  readonly padding: readonly (number | undefined)[];
  /** Share of the time in which a micro-batch ran, 0 to 1. */
  readonly busy: readonly (number | undefined)[];
}

/**
 * Of one worker, or of several: rates add up, shares are of all together. A point is what each worker was doing in the
 * middle of its ten seconds; the newest step of one that is about to tell the next holds until then.
 */
export function tenMinutesOf(histories: readonly WorkerHistory[], atMs: number): TenMinutes {
  const lines = histories.map(({ steps }) => stepsAt(steps, atMs));
  const points = Array.from({ length: POINTS }, (_, at) => lines.flatMap((line) => line[at] ?? []));
  return {
    textsPerSecond: points.map((steps) => summed(steps, ({ texts, ms }) => (1_000 * texts) / ms)),
    padding: points.map((steps) => {
      const padded = summed(steps, (step) => step.padded) ?? 0;
      return padded === 0 ? undefined : 1 - summed(steps, ({ tokens }) => tokens)! / padded;
    }),
    busy: points.map((steps) => {
      const share = summed(steps, ({ busyMs, ms }) => Math.min(1, busyMs / ms));
      return share === undefined ? undefined : share / steps.length;
    }),
  };
}

/** The step of one worker at each point; a step covers the time before it was told. */
function stepsAt(steps: readonly ReadStep[], atMs: number): readonly (ReadStep | undefined)[] {
  let next = 0;
  return Array.from({ length: POINTS }, (_, point) => {
    const middleMs = atMs - HISTORY_MS + (point + 0.5) * STEP_MS;
    while (next < steps.length && steps[next]!.atMs < middleMs) next++;
    const step = steps[next];
    if (step !== undefined) return step.atMs - step.ms < middleMs ? step : undefined;
    const last = steps.at(-1);
    return last !== undefined && !last.isLast && middleMs - last.atMs < LATE_MS ? last : undefined;
  });
}

function summed(steps: readonly ReadStep[], of: (step: ReadStep) => number): number | undefined {
  return steps.length === 0 ? undefined : steps.reduce((sum, step) => sum + of(step), 0);
}

/** What happened, by its words, most first. */
export function eventsOf(
  history: WorkerHistory | undefined,
): readonly { readonly event: string; readonly count: number }[] {
  const counts = new Map<string, number>();
  for (const { events } of history?.steps ?? [])
    for (const [event, count] of Object.entries(events)) counts.set(event, (counts.get(event) ?? 0) + count);
  return [...counts].map(([event, count]) => ({ event, count })).toSorted((a, b) => b.count - a.count);
}
