// A line over the addon of native/ort-session: runs wait and go on a thread of its own, whose arena can be limited,
// asked and told to give back what it does not use. On CUDA the arena grows by what is asked for, not by doubling, and
// fp32 is fp32. A run that finds no room is tried once more after giving back: the arena keeps regions of the sizes
// that were asked for before, and what lies free in them fits nothing larger.

import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ShoalError, invariant } from '@shoal/contract';
import { MOST_HELD, type MemoryReading } from '@shoal/core';
import { SHORT_WIDTH, layOutArena } from './arena-region.ts';
import {
  nativeOrt,
  nativeOrtProblem,
  type ArenaFigures,
  type NativeLine as AddonLine,
  type NativeOrt,
} from './native-ort.ts';
import type { ArenaUse, LineOptions, OrtLine, RunAnswer, RunRequest } from './ort-line.ts';
import { readTrace, refuseStrays, type TracedNode } from './ort-trace.ts';
import { processMemory } from './process-memory.ts';
import { classifyRunFailure } from './run-failure.ts';

/** A reading of the process costs 0.04 ms and says little new after each of many short runs. */
const READ_MEMORY_EVERY_MS = 20;
/** Giving back for less would cost more than it brings: a region is asked for again at the next run. */
const WORTH_GIVING_BACK_BYTES = 2 ** 20;

export interface NativeSessionOptions extends Pick<LineOptions, 'graphPath' | 'provider' | 'threads'> {
  readonly arenaBytes?: number | undefined;
  /** Further options of the CUDA provider, by its own names. */
  readonly cuda?: Readonly<Record<string, string>>;
  readonly ownsStream?: boolean;
}

/**
 * Throws SETUP_FAILED where there is no addon, and what the runtime said when it does not open the graph or does not
 * run it where it was told to.
 */
export async function openNativeLine(options: LineOptions): Promise<OrtLine> {
  const addon = nativeOrt();
  if (addon === undefined)
    throw new ShoalError(
      'SETUP_FAILED',
      `the native binding was asked for and is not here (${nativeOrtProblem()}); npm run build makes it where ` +
        'there is a C++ compiler, SHOAL_RUNTIME_BINDING=stock does without',
    );
  const line = addon.line();
  try {
    await openTrue(addon, line, options);
    const use = useOf(await addon.statistics(line, 0));
    return new NativeLine(addon, line, options, use);
  } catch (error) {
    await addon.close(line);
    throw error;
  }
}

/** For benches: a session by itself, with the nodes of a first run where they are asked for. */
export function openGraphOn(
  addon: NativeOrt,
  line: AddonLine,
  { graphPath, provider, threads, arenaBytes = 0, cuda = {}, ownsStream = false }: NativeSessionOptions,
  trace = '',
): Promise<readonly [graph: number]> {
  const isCuda = provider === 'cuda';
  const given = {
    device_id: '0',
    arena_extend_strategy: 'kSameAsRequested',
    use_tf32: process.env['NVIDIA_TF32_OVERRIDE'] === '1' ? '1' : '0',
    ...(arenaBytes > 0 && { gpu_mem_limit: String(Math.floor(arenaBytes)) }),
    ...cuda,
  };
  return addon.open(
    line,
    graphPath,
    isCuda,
    threads,
    trace,
    isCuda ? Object.entries(given).flat() : [],
    isCuda ? 0 : Math.floor(arenaBytes),
    ownsStream,
  );
}

/** The truth gate, as in ort-thread.ts. */
async function openTrue(addon: NativeOrt, line: AddonLine, options: LineOptions): Promise<void> {
  if (options.provider === 'cpu') return void (await openGraphOn(addon, line, options));
  const folder = await mkdtemp(join(tmpdir(), 'shoal-trace-'));
  try {
    const [graph] = await openGraphOn(addon, line, options, join(folder, 'trace'));
    refuseStrays(await firstNodes(addon, line, graph, options.dims), options.provider);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Of two short rows under the runtime's profiler, which costs nothing afterwards. */
export async function firstNodes(
  addon: NativeOrt,
  line: AddonLine,
  graph: number,
  dims: number,
): Promise<readonly TracedNode[]> {
  await addon.run(
    line,
    graph,
    new Int32Array(16).fill(1),
    Int32Array.of(8, 5),
    new Float32Array(2 * dims),
    2,
    8,
    dims,
    false,
    false,
  );
  return readTrace(await readFile(await addon.endTrace(line, graph), 'utf8'));
}

function useOf([inUse, mostInUse, held]: ArenaFigures): ArenaUse {
  return { inUse, mostInUse, held };
}

class NativeLine implements OrtLine {
  pending = 0;
  /** Runs, with their second tries, and givings back: the line is closed behind the last. */
  private readonly open = new Set<Promise<unknown>>();
  private readonly addon: NativeOrt;
  private readonly line: AddonLine;
  private readonly options: LineOptions;
  private use: ArenaUse;
  /** Most that one run made the arena grow by since it was given back last. */
  private mostGrown = 0;
  private exactGraph: Promise<number> | undefined;
  /** Since when the exact graph has been opening, or waiting for runs that were asked for before. */
  private openingSinceMs: number | undefined;
  private memoryReadMs = Number.NEGATIVE_INFINITY;
  private stopped: Promise<unknown> | undefined;

  constructor(addon: NativeOrt, line: AddonLine, options: LineOptions, use: ArenaUse) {
    this.addon = addon;
    this.line = line;
    this.options = options;
    this.use = use;
  }

  run(request: RunRequest): Promise<RunAnswer> {
    this.pending++;
    return this.tracked(this.tryTwice(request)).finally(() => this.pending--);
  }

  /** A graph that never opens holds up its rows like a run that hangs. */
  runningMs(): number {
    const openingMs = this.openingSinceMs === undefined ? 0 : performance.now() - this.openingSinceMs;
    return Math.max(this.addon.runningMs(this.line), openingMs);
  }

  /** With a limit the arena grows as it is asked, and a region for all would be most of the limit. */
  prepare(reserveTokens: number): Promise<void> {
    return layOutArena(this.options.arenaBytes === undefined ? reserveTokens : 1, (rows, id) =>
      this.canRunShort(rows, id, false),
    );
  }

  arena(): ArenaUse {
    return this.use;
  }

  async shrink(): Promise<boolean> {
    return this.stopped === undefined && this.tracked(this.giveBack());
  }

  cancel(): boolean {
    const isRunning = this.addon.runningMs(this.line) > 0;
    if (isRunning) this.addon.cancel(this.line);
    return isRunning;
  }

  async stop(): Promise<void> {
    await (this.stopped ??= this.close());
  }

  private async close(): Promise<void> {
    while (this.open.size > 0) await Promise.allSettled(this.open);
    await this.addon.close(this.line); // served after everything before it
  }

  private tracked<T>(work: Promise<T>): Promise<T> {
    this.open.add(work);
    return work.finally(() => this.open.delete(work));
  }

  private async tryTwice(request: RunRequest): Promise<RunAnswer> {
    const first = await this.attempt(request, request.isUrgent);
    const canRetry = !first.ok && classifyRunFailure(first.message) === 'out-of-vram' && (await this.giveBack());
    return canRetry ? await this.attempt(request, true) : first; // its turn was before all that wait
  }

  private async giveBack(): Promise<boolean> {
    this.use = useOf(await this.addon.statistics(this.line, 0));
    if (this.use.held - this.use.inUse < WORTH_GIVING_BACK_BYTES) return false;
    const heldBefore = this.use.held;
    await this.canRunShort(1, 0, true);
    return this.use.held < heldBefore;
  }

  private async attempt({ slot, rows, width, isExact }: RunRequest, isUrgent: boolean): Promise<RunAnswer> {
    const shared = this.options.slots[slot]!;
    const { dims } = this.options;
    try {
      const graph = isExact ? await this.openExact() : 0;
      const [runMs, ...figures] = await this.addon.run(
        this.line,
        graph,
        new Int32Array(shared.ids),
        new Int32Array(shared.lengths),
        new Float32Array(shared.embeddings),
        rows,
        width,
        dims,
        isUrgent,
        false,
      );
      if (!isExact) this.grewTo(useOf(figures));
      if (this.holdsTooMuch()) await this.giveBack(); // before the answer, so that nobody sees more than this
      return this.options.provider === 'cpu'
        ? { ok: true, runMs, memory: this.processMemory() }
        : { ok: true, runMs, ...(!isExact && { arena: this.use }) };
    } catch (error) {
      return { ok: false, message: firstLine(error) };
    }
  }

  private grewTo(use: ArenaUse): void {
    this.mostGrown = Math.max(this.mostGrown, use.held - this.use.held);
    this.use = use;
  }

  /**
   * Not by what was in use at most: that figure never falls again, so that one wide run would excuse everything after
   * it; and a fresh arena takes up to 1.86 times what is in use (two workspaces of attention, with a small tensor in
   * the first), which would be given back after every run.
   */
  private holdsTooMuch(): boolean {
    const { inUse, held } = this.use;
    return this.growsAsAsked && held - inUse > MOST_HELD * this.mostGrown + WORTH_GIVING_BACK_BYTES;
  }

  /** The CPU's arena without a limit is laid out beforehand, see prepare(). */
  private get growsAsAsked(): boolean {
    return this.options.provider === 'cuda' || this.options.arenaBytes !== undefined;
  }

  /**
   * Opened when a row needs it for the first time, and stays: a model that overflows does so again. One that could not
   * be opened is tried again: there may be room then.
   */
  private openExact(): Promise<number> {
    const { exactGraphPath: graphPath } = this.options;
    invariant(graphPath !== undefined, 'an exact run needs an exact graph');
    if (this.exactGraph === undefined) this.openingSinceMs = performance.now();
    return (this.exactGraph ??= openGraphOn(this.addon, this.line, { ...this.options, graphPath })
      .finally(() => (this.openingSinceMs = undefined))
      .then(
        ([graph]) => graph,
        (error: unknown) => {
          this.exactGraph = undefined;
          throw error;
        },
      ));
  }

  private canRunShort(rows: number, id: number, shrinks: boolean): Promise<boolean> {
    return this.addon.runPlain(this.line, 0, rows, SHORT_WIDTH, id, shrinks).then(
      (figures) => {
        this.use = useOf(figures);
        if (shrinks) this.mostGrown = 0;
        return true;
      },
      () => false,
    );
  }

  private processMemory(): MemoryReading | undefined {
    const nowMs = performance.now();
    if (nowMs - this.memoryReadMs < READ_MEMORY_EVERY_MS) return undefined;
    this.memoryReadMs = nowMs;
    return processMemory();
  }
}

function firstLine(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).split('\n', 1)[0] ?? '';
}
