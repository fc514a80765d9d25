// The page that tests follow: docs/deployment.md and its commands.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export const PAGE = readFileSync(join(import.meta.dirname, '../../docs/deployment.md'), 'utf8');

/** The block whose fence says `sh <name>`. */
export function block(name: string): string {
  const found = new RegExp(`^\`\`\`sh ${name}\\n([^]*?)^\`\`\`$`, 'm').exec(PAGE)?.[1];
  if (found === undefined) throw new Error(`docs/deployment.md has no block ${name}`);
  return found;
}
