// Remembers on disk which executor belongs to which worker process, so that a worker that starts under the name of one
// that died waits until that one's executor has left the device, before it measures what is free there. An executor
// leaves by itself when its worker is gone; one that does not is killed, because nobody else will. Workers on other
// machines, or in other containers, that share the folder are left alone: their pids mean nothing here.

import { mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from '@shoal/core';
import { identityOf, isAlive, ownIdentity, placeOfPids, type ProcessIdentity } from '@shoal/fetch';

interface Note {
  readonly place: string;
  readonly worker: ProcessIdentity;
  readonly executor: ProcessIdentity;
}

export interface ExecutorNotesOptions {
  readonly cacheDir: string;
  /** What the worker is called over all its lives. */
  readonly name: string;
  readonly log: Logger;
  /** For tests. */
  readonly kill?: ((pid: number) => void) | undefined;
  readonly leaveMs?: number | undefined;
  readonly killedMs?: number | undefined;
}

/** An executor notices at once that its worker is gone; freeing the device takes a driver longer than that. */
const LEAVE_MS = 2_000;
/**
 * One that is stuck in the driver does not end by being killed either; somebody has to look, and a worker that waits
 * for it serves nobody.
 */
const KILLED_MS = 30_000;
const LOOK_MS = 20;

export class ExecutorNotes {
  private readonly options: ExecutorNotesOptions;
  private readonly folder: string;
  private readonly own: string;

  constructor(options: ExecutorNotesOptions) {
    this.options = options;
    this.folder = join(options.cacheDir, 'executors');
    this.own = join(this.folder, `${options.name}.${process.pid}.json`);
  }

  /**
   * Resolves when no executor of a dead worker of this name is left, or none that can be made to leave. Never throws: a
   * note that cannot be read holds up nobody.
   */
  async untilPredecessorsLeft(): Promise<void> {
    const files = await readdir(this.folder).catch(() => []);
    await Promise.all(
      files
        .filter((file) => file.startsWith(`${this.options.name}.`))
        .map((file) => this.untilLeft(join(this.folder, file))),
    );
  }

  /** Another executor is up. */
  async note(executorPid: number): Promise<void> {
    const executor = identityOf(executorPid);
    if (executor === undefined) return;
    const note: Note = { place: placeOfPids(), worker: ownIdentity(), executor };
    await mkdir(this.folder, { recursive: true, mode: 0o700 });
    await writeFile(this.own, JSON.stringify(note));
  }

  /** The executor was stopped properly. */
  async stop(): Promise<void> {
    await rm(this.own, { force: true });
  }

  private async untilLeft(file: string): Promise<void> {
    const note = await readNote(file);
    if (note === undefined || note.place !== placeOfPids() || isAlive(note.worker)) return;
    const { leaveMs = LEAVE_MS, log } = this.options;
    const hasLeft = (await isGoneWithin(note.executor, leaveMs)) || (await this.killed(note.executor));
    if (!hasLeft)
      return log.warn(
        { pid: note.executor.pid },
        'the executor of a worker that died cannot be ended, starting beside it; what it holds of the device ' +
          'stays taken',
      );
    await rm(file, { force: true }).catch(() => undefined); // it says nothing any more, of a process that is gone
  }

  private async killed(executor: ProcessIdentity): Promise<boolean> {
    const { log, kill = sigkill, killedMs = KILLED_MS } = this.options;
    log.warn({ pid: executor.pid }, 'the executor of a worker that died is still there, killing it');
    try {
      kill(executor.pid);
    } catch (error) {
      if (isAlive(executor))
        log.warn(
          { pid: executor.pid, reason: error instanceof Error ? error.message : String(error) },
          'it cannot be killed',
        );
      return !isAlive(executor);
    }
    return isGoneWithin(executor, killedMs);
  }
}

function sigkill(pid: number): void {
  process.kill(pid, 'SIGKILL');
}

async function isGoneWithin(process: ProcessIdentity, ms: number): Promise<boolean> {
  const deadlineMs = performance.now() + ms;
  while (isAlive(process) && performance.now() < deadlineMs) await sleep(LOOK_MS);
  return !isAlive(process);
}

async function readNote(file: string): Promise<Note | undefined> {
  try {
    const note: unknown = JSON.parse(await readFile(file, 'utf8'));
    const isNote =
      typeof note === 'object' &&
      note !== null &&
      isIdentity(Reflect.get(note, 'worker')) &&
      isIdentity(Reflect.get(note, 'executor'));
    return isNote ? (note as Note) : undefined;
  } catch {
    return undefined;
  }
}

function isIdentity(value: unknown): boolean {
  return (
    typeof value === 'object' &&
    value !== null &&
    Number.isInteger(Reflect.get(value, 'pid')) &&
    typeof Reflect.get(value, 'startTime') === 'string'
  );
}
