// The Lua scripts of the product, by name: all that tools/build-lua.ts wrote.

import { existsSync, readdirSync } from 'node:fs';
import { extname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const ROOMS = fileURLToPath(
  new URL(import.meta.url.endsWith('.ts') ? '../../../queue/src/' : '../../../../queue/dist/src/', import.meta.url),
);
const FILE = `scripts.generated${extname(import.meta.url)}`;

export interface ServerScript {
  /** "upkeep/sweep-step" */
  readonly name: string;
  readonly lua: string;
}

export async function ownScripts(): Promise<ServerScript[]> {
  const found: ServerScript[] = [];
  for (const room of readdirSync(ROOMS, { withFileTypes: true })) {
    if (!room.isDirectory() || room.name === 'testing') continue;
    const path = join(ROOMS, room.name, 'lua', FILE);
    if (!existsSync(path)) continue;
    const module = (await import(pathToFileURL(path).href)) as Record<string, ServerScript>;
    found.push(...Object.values(module));
  }
  return found;
}
