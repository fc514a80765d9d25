// How it is known what a backend's runs hold in memory. Each backend says it of itself; whoever makes a budget for it
// asks no backend of which class it is.

import type { MemoryLaw } from '../budget/memory-model.ts';
import type { Precision } from './run-shape.ts';

/** Free and total memory of the device a worker runs on, bytes. Undefined where no source exists. */
export interface MemoryProbe {
  read(): Promise<{ readonly freeBytes: number; readonly totalBytes: number } | undefined>;
}

/** A card that can be measured, and whose presets are looked up by its name. */
export interface Card {
  /** The name that its driver gives it: "NVIDIA H200". */
  readonly name: string;
  readonly probe: MemoryProbe | undefined;
}

/** An open graph, in what another process needs to open the same. */
export interface GraphFacts {
  readonly graphPath: string;
  readonly precision: Precision;
  readonly dims: number;
  /** Values of a token in its hidden states. Left out: as many as `dims`. */
  readonly hidden?: number | undefined;
  /** Threads of one run. */
  readonly threads: number;
  readonly slotRows: number;
  /** Padded tokens. */
  readonly slotTokens: number;
}

export type MemoryPlan =
  /** The backend says to the byte what it holds and what a run will make it hold. */
  | {
      readonly kind: 'exact';
      readonly card: Card;
      readonly sizes: { readonly hiddenSize: number; readonly intermediateSize: number; readonly heads: number };
      law(loadedBytes: number): MemoryLaw;
      /** What the backend holds on the card now. */
      heldBytes(): number;
      /** Gives back what no run needs; false where there was nothing. */
      shrink(): Promise<boolean>;
    }
  /** Runs take memory of this process. Their law is fitted to a few shapes that another process runs. */
  | {
      readonly kind: 'fitted';
      readonly graph: GraphFacts;
      /**
       * Lays memory out before the first run for runs of up to so many padded tokens, in no more address space than
       * `mostBytes`.
       */
      prepare(paddedTokens: number, mostBytes?: number): Promise<void>;
    }
  /** A card whose name has a preset, which runs correct; the driver tells what is left. */
  | { readonly kind: 'preset'; readonly card: Card; readonly provider: string; readonly graphPath: string }
  /** A simulated card, of which nobody has measured anything. */
  | { readonly kind: 'simulated'; readonly probe: MemoryProbe }
  /** Nothing tells: the budget grows by trial, and shrinks when the device runs out of memory. */
  | {
      readonly kind: 'none';
      readonly graphPath?: string;
      /** The device is as fast with small batches as with large ones. */
      readonly hasLevelRate?: boolean;
    };

export type MemoryPlanOf<Kind extends MemoryPlan['kind']> = Extract<MemoryPlan, { readonly kind: Kind }>;
