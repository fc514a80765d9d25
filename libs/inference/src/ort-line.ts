// A line of runs at the device: a session of the runtime, opened on the provider that was asked for and proven to run
// there, and the runs that wait for it. Two bindings carry one: the package's own in a thread of Node's
// (thread-line.ts), and the addon of native/ort-session (native-line.ts). Runs go in the order of the calls, urgent
// ones first.

import type { MemoryReading } from '@shoal/core';
import type { Provider } from './provider.ts';

/** What carries a session: our addon on the runtime's C API, or the package's own binding. */
export type Binding = 'native' | 'stock';

export interface LineOptions {
  readonly graphPath: string;
  /** The same model in fp32, for rows that the graph's own precision turned into NaN; opened at the first need. */
  readonly exactGraphPath: string | undefined;
  readonly provider: Provider;
  /** Threads of one run. */
  readonly threads: number;
  readonly dims: number;
  readonly slots: readonly SharedSlot[];
  /** Most that the arena may hold. The native binding's alone. */
  readonly arenaBytes: number | undefined;
}

export interface SharedSlot {
  readonly ids: SharedArrayBuffer;
  readonly lengths: SharedArrayBuffer;
  readonly embeddings: SharedArrayBuffer;
}

export interface RunRequest {
  readonly slot: number;
  readonly rows: number;
  readonly width: number;
  /** Before everything that waits. */
  readonly isUrgent: boolean;
  /** On the exact graph. */
  readonly isExact: boolean;
}

/** Bytes of a session's arena on the device. */
export interface ArenaUse {
  readonly inUse: number;
  readonly mostInUse: number;
  readonly held: number;
}

export type RunAnswer =
  /** `arena`: where the device's memory is not this process's. */
  | {
      readonly ok: true;
      readonly runMs: number;
      readonly memory?: MemoryReading | undefined;
      readonly arena?: ArenaUse;
    }
  /** In the runtime's words. */
  | { readonly ok: false; readonly message: string };

export interface OrtLine {
  /** Runs asked for and not ended. */
  readonly pending: number;
  /** Rejects with DEVICE_LOST when whatever runs the session is gone. */
  run(request: RunRequest): Promise<RunAnswer>;
  runningMs(): number;
  /** Before the first run, on the CPU: see arena-region.ts. */
  prepare(reserveTokens: number): Promise<void>;
  /** What its arena holds now; undefined where the binding cannot tell. */
  arena(): ArenaUse | undefined;
  /** Gives back what no tensor lies in. Resolves false where the binding cannot. */
  shrink(): Promise<boolean>;
  /** Ends the run that goes on, which then fails. False where the binding cannot. */
  cancel(): boolean;
  /** After every run before. Safe to call twice. */
  stop(): Promise<void>;
}

/**
 * The one with least to do; of those with as much, the one whose run has gone on for longest is likely the next to be
 * free.
 */
export function soonestLine<Line extends Pick<OrtLine, 'pending' | 'runningMs'>>(lines: readonly Line[]): Line {
  return lines.reduce((best, other) =>
    other.pending < best.pending || (other.pending === best.pending && other.runningMs() > best.runningMs())
      ? other
      : best,
  );
}
