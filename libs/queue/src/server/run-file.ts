// The run file says which processes make up the running private server. Written by its supervisor alone, in one rename;
// read by every command that attaches, and by the next supervisor when this one was killed.

import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import type { ProcessIdentity } from '@shoal/fetch/process-identity';

/** Changes when commands of one version can no longer speak to a supervisor of another. */
export const RUN_VERSION = 1;

export interface RunFile {
  readonly version: number;
  readonly supervisor: ProcessIdentity;
  /** Undefined between two starts of the server. */
  readonly server?: ProcessIdentity | undefined;
  readonly socket: string;
  readonly control: string;
}

/** Undefined when there is none or it cannot be understood: then nothing is running that it could speak of. */
export function readRunFile(path: string): RunFile | undefined {
  try {
    const run = JSON.parse(readFileSync(path, 'utf8')) as RunFile;
    return typeof run.supervisor?.pid === 'number' && typeof run.control === 'string' ? run : undefined;
  } catch {
    return undefined;
  }
}

export function writeRunFile(path: string, run: RunFile): void {
  const draft = `${path}.${process.pid}`;
  writeFileSync(draft, JSON.stringify(run), { mode: 0o600 });
  renameSync(draft, path);
}

/** Removes the run file if it is still this supervisor's. */
export function removeRunFile(path: string): void {
  if (readRunFile(path)?.supervisor.pid === process.pid) rmSync(path, { force: true });
}
