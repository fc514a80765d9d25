// The Lua scripts of the product, by name: all that tools/build-lua.ts wrote.

import { readdirSync } from 'node:fs';
import { extname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const ROOMS = fileURLToPath(
  new URL(import.meta.url.endsWith('.ts') ? '../../../queue/src/' : '../../../../queue/dist/src/', import.meta.url),
);
const FILE = `scripts.generated${extname(import.meta.url)}`;

export interface OwnScript {
  /** "upkeep/sweep-step" */
  readonly name: string;
  readonly lua: string;
}

export async function ownScripts(): Promise<OwnScript[]> {
  const found: OwnScript[] = [];
  for (const room of readdirSync(ROOMS, { withFileTypes: true })) {
    if (!room.isDirectory() || room.name === 'testing') continue;
    const folder = join(ROOMS, room.name, 'lua');
    if (!filesOf(folder).includes(FILE)) continue;
    const module = (await import(pathToFileURL(join(folder, FILE)).href)) as Record<string, OwnScript>;
    found.push(...Object.values(module));
  }
  return found;
}

function filesOf(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
