// The places in a stack by the sources, for a person who reports it: programs are bundles, whose lines say nothing.

import { readFileSync } from 'node:fs';
import { SourceMap } from 'node:module';
import { fileURLToPath } from 'node:url';

/** Places in files that have a source map beside them; all others stay as they are. */
export function stackBySources(stack: string): string {
  const maps = new Map<string, SourceMap | undefined>();
  return stack.replaceAll(/(file:\/\/[^\s()]+\.js):(\d+):(\d+)/g, (place: string, file: string, line, column) => {
    if (!maps.has(file)) maps.set(file, mapOf(file));
    const found = maps.get(file)?.findEntry(Number(line) - 1, Number(column) - 1);
    if (found === undefined || !('originalSource' in found)) return place;
    const source = fileURLToPath(new URL(found.originalSource, file));
    return `${source}:${found.originalLine + 1}:${found.originalColumn + 1}`;
  });
}

function mapOf(file: string): SourceMap | undefined {
  try {
    return new SourceMap(JSON.parse(readFileSync(fileURLToPath(`${file}.map`), 'utf8')));
  } catch {
    return undefined; // there is none, or it is none
  }
}
