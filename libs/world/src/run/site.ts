// Where a run happens: the world, the server, what was planned, and what is written down of it. Everybody in the run
// has it; nothing of the product does.

import { cpuLaneOf, mainQueue } from '@shoal/contract';
import { noLog, type Logger } from '@shoal/core';
import type { FaultPoints } from '@shoal/core/base';
import { FakeTokenizer } from '@shoal/core/testing';
import { Recorder, type HistorySink, type MemoryHistory } from '../history/recorder.ts';
import type { Network } from '../time/network.ts';
import type { Process, World } from '../time/world.ts';
import type { Plan, Target } from './plan.ts';

export const PREFIX = '{shoal}';
export const MODEL = 'fake@0123456789ab';
export const QUEUE = mainQueue('fake');
export const CPU_QUEUE = cpuLaneOf(QUEUE);
export const REDIS_URL = 'redis://simulated:6379';

export interface Site {
  readonly world: World;
  readonly network: Network;
  readonly plan: Plan;
  readonly history: MemoryHistory;
  readonly faults: FaultPoints;
  readonly tokenizer: FakeTokenizer;
  readonly log: Logger;
  /** Who is there now, by what faults call them. */
  readonly targets: Map<Target, Process>;
  /** What a process does that is told to end; gone once it has ended. */
  readonly endings: Map<Process, () => void>;
  /** Processes that were told to end and have not. */
  readonly leaving: Set<Process>;
  /** When a process that was killed is started again, ms after its death. */
  readonly backMs: Map<Target, number>;
  /** Jobs of which their producer knows how they ended: on its disk, so to say. */
  readonly ended: Set<string>;
  /** Jobs whose results somebody has asked for, with or without an answer. */
  readonly takes: Set<string>;
  /** The first deadline that a job was added with, ms: one that is there already keeps it. */
  readonly deadlines: Map<string, number>;
  /** Something that no process may come to, such as an error that is none of the product's. */
  readonly problems: string[];
}

export function recorderOf({ world, history }: Site, process: Process): Recorder {
  // code of a process that was killed in the middle of a step runs to the end of it
  const sink: HistorySink = { write: (event) => (process.isAlive ? history.write(event) : undefined) };
  return new Recorder(process.name, sink, () => world.nowMs);
}

/** Where nothing else is planned. */
const BACK_MS = 500;

/** Whoever keeps a process starts another one after its death. */
export function startAgain({ world, backMs }: Site, target: Target, start: () => void): void {
  world.after(world.outside, backMs.get(target) ?? BACK_MS, `start ${target} again`, start);
}

/** To `onLine`, where somebody wants to read along. */
export function logTo(onLine: ((line: string) => void) | undefined): Logger {
  if (onLine === undefined) return noLog;
  const sayAt =
    (level: string): Logger['info'] =>
    (facts, message) =>
      onLine(`    ${level} ${message} ${JSON.stringify(facts, errorsAsText)}`);
  return { debug: sayAt('debug'), info: sayAt('info'), warn: sayAt('warn'), error: sayAt('error') };
}

function errorsAsText(_: string, value: unknown): unknown {
  return value instanceof Error ? value.message : value;
}
