// One part for each cell of the list, as it is now: opened when its cell comes, closed when that leaves.

import { placeOfCell, type Cell } from '@shoal/core';
import { CellList, type CellListOptions } from './cell-list.ts';

interface Closing {
  close(): Promise<unknown>;
}

export class PerCell<Part extends Closing> {
  private readonly list: CellList;
  private readonly open: (cell: Cell) => Part;
  /** By name and place. */
  private readonly parts = new Map<string, Part>();

  /** Throws CONFIG_INVALID. */
  constructor(options: CellListOptions, open: (cell: Cell) => Part) {
    this.open = open;
    this.list = new CellList(options);
    this.list.onChange(() => this.changed());
    this.changed();
  }

  /** In the order of the list. */
  get all(): readonly { readonly cell: Cell; readonly part: Part }[] {
    return this.list.cells.map((cell) => ({ cell, part: this.parts.get(placeOfCell(cell))! }));
  }

  async close(): Promise<void> {
    this.list.close();
    await Promise.all([...this.parts.values()].map((part) => part.close()));
  }

  private changed(): void {
    const { cells } = this.list;
    for (const cell of cells)
      if (!this.parts.has(placeOfCell(cell))) this.parts.set(placeOfCell(cell), this.open(cell));
    const listed = new Set(cells.map(placeOfCell));
    for (const [key, part] of this.parts) {
      if (listed.has(key)) continue;
      this.parts.delete(key);
      void part.close();
    }
  }
}
