// For tests: a file system of its own that can be full or read-only, which is what a full disk really is. Linux and
// root only; elsewhere there is none, with the reason.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export class SmallDisk {
  readonly folder: string;
  #view: string | undefined;

  private constructor(folder: string) {
    this.folder = folder;
  }

  /** A disk of so many bytes and files, its own folder among them, or why there can be none here. */
  static make(bytes: number, files?: number): SmallDisk | string {
    const folder = mkdtempSync(join(tmpdir(), 'shoal-disk-'));
    const options = `size=${bytes},mode=700${files === undefined ? '' : `,nr_inodes=${files}`}`;
    const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', options, 'tmpfs', folder], {
      encoding: 'utf8',
    });
    if (mounted.status === 0) return new SmallDisk(folder);
    rmSync(folder, { recursive: true });
    return `no file system of its own can be mounted here (${mounted.error?.message ?? mounted.stderr.trim()})`;
  }

  /** Writes until nothing more goes in; a file named `filler` holds it. */
  fill(): void {
    const filler = join(this.folder, 'filler');
    for (const bytes of [65_536, 4_096, 1]) {
      for (;;) {
        try {
          writeFileSync(filler, Buffer.alloc(bytes), { flag: 'a' });
        } catch {
          break;
        }
      }
    }
  }

  empty(): void {
    rmSync(join(this.folder, 'filler'), { force: true });
  }

  /** Of the whole file system; nothing on it may be open for writing when it becomes read-only. */
  setReadOnly(isReadOnly: boolean): void {
    mount('-o', `remount,${isReadOnly ? 'ro' : 'rw'}`, this.folder);
  }

  /** Another folder that shows the same files and takes no writes, as a disk does that was mounted read-only. */
  readOnlyView(): string {
    this.#view ??= mkdtempSync(join(tmpdir(), 'shoal-view-'));
    mount('--bind', this.folder, this.#view);
    mount('-o', 'remount,bind,ro', this.#view);
    return this.#view;
  }

  remove(): void {
    for (const folder of [this.#view, this.folder]) {
      if (folder === undefined) continue;
      spawnSync('umount', ['-l', folder]);
      rmdirSync(folder); // empty by now; were it not, nothing below it may go
    }
  }
}

function mount(...args: readonly string[]): void {
  const { status, stderr } = spawnSync('mount', args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`mount ${args.join(' ')}: ${stderr}`);
}
