// Remembers on disk which executor belongs to which worker process, so that a worker that starts under the name of one that
// died waits until that one's executor has left the device, before it measures what is free there. An executor leaves by
// itself when its worker is gone; one that does not is killed, because nobody else will. Workers on other machines, or in
// other containers, that share the folder are left alone: their pids mean nothing here.

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
}

/** An executor notices at once that its worker is gone; freeing the device takes a driver longer than that. */
const LEAVE_MS = 2_000;
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

  /** Resolves when no executor of a dead worker of this name is left. Never throws: a note that cannot be read holds up nobody. */
  async untilPredecessorsLeft(): Promise<void> {
    const files = await readdir(this.folder).catch(() => []);
    await Promise.all(files.filter((file) => file.startsWith(`${this.options.name}.`)).map((file) => this.untilLeft(join(this.folder, file))));
  }

  /** Another executor is up. */
  async note(executorPid: number): Promise<void> {
    const executor = identityOf(executorPid);
    if (executor === undefined) return;
    const note: Note = { place: placeOfPids(), worker: ownIdentity(), executor };
    await mkdir(this.folder, { recursive: true });
    await writeFile(this.own, JSON.stringify(note));
  }

  /** The executor was stopped properly. */
  async stop(): Promise<void> {
    await rm(this.own, { force: true });
  }

  private async untilLeft(file: string): Promise<void> {
    const note = await readNote(file);
    if (note === undefined || note.place !== placeOfPids() || isAlive(note.worker)) return;
    const { executor } = note;
    const deadlineMs = performance.now() + LEAVE_MS;
    while (isAlive(executor) && performance.now() < deadlineMs) await sleep(LOOK_MS);
    if (isAlive(executor)) {
      this.options.log.warn({ pid: executor.pid }, 'the executor of a worker that died is still there, killing it');
      process.kill(executor.pid, 'SIGKILL');
      while (isAlive(executor)) await sleep(LOOK_MS);
    }
    await rm(file, { force: true });
  }
}

async function readNote(file: string): Promise<Note | undefined> {
  try {
    const note: unknown = JSON.parse(await readFile(file, 'utf8'));
    const isNote = typeof note === 'object' && note !== null && isIdentity(Reflect.get(note, 'worker')) && isIdentity(Reflect.get(note, 'executor'));
    return isNote ? (note as Note) : undefined;
  } catch {
    return undefined;
  }
}

function isIdentity(value: unknown): boolean {
  return typeof value === 'object' && value !== null && Number.isInteger(Reflect.get(value, 'pid')) && typeof Reflect.get(value, 'startTime') === 'string';
}
