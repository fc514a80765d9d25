// The rows of a run that is not finished yet, in a hidden file beside its target. The target appears by one rename,
// after an fsync, or not at all. Knows bytes and rows; what the bytes mean is the format's business.

import type { BigIntStats } from 'node:fs';
import { open, rename, rm, stat, type FileHandle } from 'node:fs/promises';
import { dirname } from 'node:path';
import { ShoalError, invariant } from '@shoal/contract';
import { writeAt } from '@shoal/fetch';
import { hiddenLists } from './beside.ts';
import { CHECKPOINT_MS, writeRunState, type RunState } from './run-state.ts';
import { writeFailure } from '@shoal/worker/files/write-failure';
import type { FileTarget } from './target.ts';

/** What grows with the rows and has to be on the disk before they count. */
interface Beside {
  readonly bytes: number;
  sync(): Promise<void>;
}

export class PartialFile {
  readonly #target: FileTarget;
  readonly #file: FileHandle;
  #state: RunState;
  #lastCheckpointMs = performance.now();
  #isClosed = false;
  /**
   * Which file it is: its name may come to mean another's, when this run was stopped for so long that its claim gave
   * way.
   */
  readonly #facts: BigIntStats;
  readonly #beside: Beside | undefined;

  private constructor(
    target: FileTarget,
    file: FileHandle,
    facts: BigIntStats,
    state: RunState,
    beside: Beside | undefined,
  ) {
    this.#target = target;
    this.#file = file;
    this.#facts = facts;
    this.#state = state;
    this.#beside = beside;
  }

  /** A partial file with nothing but `head` in it; what an earlier run left is removed. */
  static async create(target: FileTarget, state: RunState, head: Buffer, beside?: Beside): Promise<PartialFile> {
    // behind a first shard, the state is the only one that there is
    if (state.rows === 0) await removeLeftovers(target);
    else await rm(target.partial, { force: true });
    return PartialFile.#open(target, 'wx', { ...state, bytes: 0 }, beside, (partial) =>
      partial.append(head, 0, state.position),
    );
  }

  /** The partial file of `state`, cut to the rows that the state vouches for. Undefined when the file has fewer. */
  static async reopen(target: FileTarget, state: RunState, beside?: Beside): Promise<PartialFile | undefined> {
    const size = await sizeOf(target.partial);
    if (size === undefined || size < state.bytes) return undefined;
    return PartialFile.#open(target, 'r+', state, beside, (partial) => partial.#file.truncate(state.bytes));
  }

  static async #open(
    target: FileTarget,
    flags: string,
    state: RunState,
    beside: Beside | undefined,
    prepare: (partial: PartialFile) => Promise<void>,
  ): Promise<PartialFile> {
    const file = await open(target.partial, flags).catch((error: unknown) => {
      throw writeFailure(target.name, error);
    });
    const partial = new PartialFile(target, file, await file.stat({ bigint: true }), state, beside);
    try {
      await prepare(partial);
      await partial.checkpoint();
      return partial;
    } catch (error) {
      if (flags === 'wx' && state.rows === 0) await partial.discard();
      else await partial.keep();
      throw writeFailure(target.name, error);
    }
  }

  get state(): RunState {
    return this.#state;
  }

  /**
   * Adds whole rows, after which `position` records are done with. A checkpoint follows when the last one is old
   * enough.
   */
  async append(bytes: Buffer, rows: number, position: number): Promise<void> {
    try {
      await writeAt(this.#file, bytes, this.#state.bytes);
    } catch (error) {
      throw writeFailure(this.#target.name, error);
    }
    const { idBytes: _, ...state } = this.#state;
    this.#state = {
      ...state,
      rows: state.rows + rows,
      position,
      bytes: state.bytes + bytes.length,
      ...(this.#beside === undefined || this.#beside.bytes === 0 ? {} : { idBytes: this.#beside.bytes }),
    };
    if (performance.now() - this.#lastCheckpointMs >= CHECKPOINT_MS) await this.checkpoint();
  }

  /** Rows to the disk first, then the state that counts them: after a power cut the state never promises too much. */
  async checkpoint(): Promise<void> {
    if (this.#isClosed) return;
    this.#lastCheckpointMs = performance.now();
    try {
      await this.#file.datasync();
      await this.#beside?.sync();
      await writeRunState(this.#target.state, this.#state);
    } catch (error) {
      throw writeFailure(this.#target.name, error);
    }
  }

  /** Rows that were written before, for formats that have to know where. */
  async read(position: number, length: number): Promise<Buffer> {
    try {
      const { buffer, bytesRead } = await this.#file.read(Buffer.alloc(length), 0, length, position);
      return buffer.subarray(0, bytesRead);
    } catch (error) {
      throw writeFailure(this.#target.name, error);
    }
  }

  /**
   * Replaces the beginning by `head` of the same size, writes `tail` behind the rows, then gives the file its name. The
   * state counts all rows by then and no byte of the tail, so that a run that dies in here is gone on with from behind
   * the rows; it stays, until whoever has the run in hand removes it or writes the next file. `path`: another name than
   * the target's, for rows that no run can go on with.
   */
  async finish({
    head,
    tail,
    path = this.#target.path,
  }: {
    readonly head: Buffer;
    readonly tail: Buffer;
    readonly path?: string;
  }): Promise<void> {
    invariant(!this.#isClosed, 'a partial file is finished once');
    await this.checkpoint();
    try {
      await writeAt(this.#file, head, 0);
      await writeAt(this.#file, tail, this.#state.bytes);
      await this.#file.sync();
      await this.#close();
      if ((await this.#nowThere()) !== 'ours') throw this.#lost();
      await rename(this.#target.partial, path);
      await syncFolder(dirname(path));
    } catch (error) {
      throw error instanceof ShoalError ? error : writeFailure(this.#target.name, error);
    }
  }

  /** Leaves nothing behind; what another run has put in the place is that run's. */
  async discard(): Promise<void> {
    await this.#close();
    if ((await this.#nowThere()) !== 'another') await removeLeftovers(this.#target);
  }

  /** Leaves rows and state for a later run. Where the last rows cannot be made safe, an older state is still true. */
  async keep(): Promise<void> {
    await this.checkpoint().catch(() => undefined);
    await this.#close();
  }

  async #close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    await this.#file.close();
  }

  async #nowThere(): Promise<'ours' | 'another' | 'nothing'> {
    const found = await stat(this.#target.partial, { bigint: true }).catch(() => undefined);
    if (found === undefined) return 'nothing';
    return found.dev === this.#facts.dev && found.ino === this.#facts.ino ? 'ours' : 'another';
  }

  #lost(): ShoalError<'FILE_UNWRITABLE'> {
    return new ShoalError(
      'FILE_UNWRITABLE',
      `cannot write ${this.#target.name}: its unfinished file was removed or replaced while this run wrote it, ` +
        'perhaps by another shoal embed; run the command again',
      { file: this.#target.name },
    );
  }
}

/** Hidden files of a run that is over. */
export async function removeLeftovers(target: FileTarget): Promise<void> {
  const { ids, scales, skipped } = hiddenLists(target);
  for (const path of [target.partial, target.state, `${target.state}.new`, ids, scales, skipped])
    await rm(path, { force: true });
}

async function sizeOf(path: string): Promise<number | undefined> {
  const file = await open(path, 'r').catch(() => undefined);
  if (file === undefined) return undefined;
  try {
    return (await file.stat()).size;
  } finally {
    await file.close();
  }
}

/** Makes the rename itself survive a power cut. Some file systems do not allow it; the rename stands all the same. */
async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r').catch(() => undefined);
  await handle?.sync().catch(() => undefined);
  await handle?.close();
}
