// Who imports whom: circles between files, and arrows between the rooms (folders) of a package.

import { dirname, join } from 'node:path/posix';
import type { FileFigures } from './typescript-figures.ts';

export type Graph = ReadonlyMap<string, readonly string[]>;

/** Each file with the files of this list that it imports by a relative path. */
export function importGraph(files: readonly Pick<FileFigures, 'path' | 'imports'>[]): Graph {
  const known = new Set(files.map(({ path }) => path));
  return new Map(
    files.map(({ path, imports }) => [
      path,
      imports.map((specifier) => join(dirname(path), specifier)).filter((target) => known.has(target)),
    ]),
  );
}

/** Groups of files of which each imports each other, by whatever detour (Tarjan's strongly connected components). */
export function circles(graph: Graph): string[][] {
  const numbers = new Map<string, number>();
  const lowest = new Map<string, number>();
  const path: string[] = [];
  const found: string[][] = [];
  const visit = (file: string): number => {
    let low = numbers.size;
    numbers.set(file, low);
    lowest.set(file, low);
    path.push(file);
    for (const target of graph.get(file) ?? []) {
      const reached = numbers.has(target) ? (path.includes(target) ? numbers.get(target)! : low) : visit(target);
      low = Math.min(low, reached);
    }
    lowest.set(file, low);
    if (low === numbers.get(file)) {
      const group = path.splice(path.indexOf(file));
      if (group.length > 1) found.push(group.toSorted());
    }
    return low;
  };
  for (const file of graph.keys()) if (!numbers.has(file)) visit(file);
  return found;
}

export interface RoomFigures {
  readonly rooms: number;
  readonly arrows: number;
  readonly arrowsBetweenFiles: number;
}

/** Of the files below this folder. A room is a folder in it, or a file that lies there by itself; index.ts is none. */
export function roomsOf(graph: Graph, folder: string): RoomFigures {
  const roomOf = (path: string): string | undefined =>
    path.startsWith(folder) && path !== `${folder}index.ts` ? path.slice(folder.length).split('/')[0] : undefined;
  const rooms = new Set<string>();
  const arrows = new Set<string>();
  let arrowsBetweenFiles = 0;
  for (const [from, targets] of graph) {
    const room = roomOf(from);
    if (room === undefined) continue;
    rooms.add(room);
    for (const target of targets) {
      const other = roomOf(target);
      if (other === undefined) continue;
      arrowsBetweenFiles++;
      if (other !== room) arrows.add(`${room} → ${other}`);
    }
  }
  return { rooms: rooms.size, arrows: arrows.size, arrowsBetweenFiles };
}
