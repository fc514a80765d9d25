// The list of cells as a process goes on: a file is read again every second, because a watch misses how ConfigMaps are
// swapped. What cannot be used leaves the list before in force, and is said once for each thing that is wrong.
// Connects to nothing.

import { readFile, stat } from 'node:fs/promises';
import {
  cellsFile,
  cellsIn,
  checkCells,
  placeOfCell,
  readCells,
  redactMessage,
  unreadable,
  type Cell,
  type ListedCell,
  type Logger,
} from '@shoal/core';
import { addressOf } from '../redis/server-address.ts';

export interface CellListOptions {
  /** As the setting `cells`: a list as text, or the path of a file; or a list. */
  readonly cells: string | readonly ListedCell[];
  readonly log?: Logger | undefined;
  /** How often the file is read. Milliseconds, default 1,000. */
  readonly everyMs?: number | undefined;
}

export class CellList {
  private readonly log: Logger | undefined;
  private readonly path: string | undefined;
  private readonly listeners: ((cells: readonly Cell[]) => void)[] = [];
  private readonly timer: NodeJS.Timeout | undefined;
  private known: readonly Cell[];
  private reading: Promise<void> | undefined;
  private told: string | undefined;

  /** Throws CONFIG_INVALID. */
  constructor({ cells, log, everyMs = 1_000 }: CellListOptions) {
    this.log = log;
    this.known = usable(typeof cells === 'string' ? readCells(cells) : checkCells(cells, 'cells'));
    this.path = typeof cells === 'string' ? cellsFile(cells) : undefined;
    if (this.path !== undefined) this.timer = setInterval(() => void this.readAgain(), everyMs).unref();
  }

  /** As they are listed now. */
  get cells(): readonly Cell[] {
    return this.known;
  }

  /** Called with the list after it has changed. */
  onChange(listener: (cells: readonly Cell[]) => void): void {
    this.listeners.push(listener);
  }

  /** Reads the file at once; resolves when what it says is in force. Never rejects. */
  readAgain(): Promise<void> {
    return (this.reading ??= this.read().finally(() => (this.reading = undefined)));
  }

  close(): void {
    clearInterval(this.timer);
    this.listeners.length = 0;
  }

  private async read(): Promise<void> {
    if (this.path === undefined) return;
    let cells: readonly Cell[];
    try {
      const problem = unreadable(await stat(this.path));
      if (problem !== undefined) return this.tell(problem);
      const text = await readFile(this.path, 'utf8');
      cells = usable(cellsIn(text, `the cells of ${this.path}`));
    } catch (error) {
      return this.tell(redactMessage(error));
    }
    if (this.told !== undefined) this.log?.info({ file: this.path }, 'the list of cells can be used again');
    this.told = undefined;
    if (isSame(cells, this.known)) return;
    this.known = cells;
    this.log?.info({ cells: cells.map(inWords) }, 'the list of cells has changed');
    for (const listener of this.listeners) listener(cells);
  }

  private tell(problem: string): void {
    if (this.told === problem) return;
    this.told = problem;
    this.log?.warn(
      { file: this.path, problem, cells: this.known.map(inWords) },
      'the file of cells cannot be used; the list before stays in force',
    );
  }
}

/** Throws CONFIG_INVALID for an address that means no server. */
function usable(cells: readonly Cell[]): readonly Cell[] {
  for (const { address, prefix } of cells) addressOf(address, prefix);
  return cells;
}

function isSame(some: readonly Cell[], others: readonly Cell[]): boolean {
  return textOf(some) === textOf(others);
}

function textOf(cells: readonly Cell[]): string {
  return JSON.stringify(cells.map((cell) => [placeOfCell(cell), cell.write ?? true]));
}

function inWords({ name, write }: Cell): string {
  return write === false ? `${name} (takes no new work)` : name;
}
