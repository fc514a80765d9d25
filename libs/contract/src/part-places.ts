// Where a part reads and writes, by name: a path as its workers see it, or an address s3://bucket/key. A worker takes parts
// in the folders of its setting `partFolders` alone, and tells these among its facts; here is what lies in one of them
// as far as names say it. Links are the worker's business, and that of whoever asks.

import type { Part, PartSource } from './part.ts';

/** Of the file that is read, and of the folder or prefix that the object goes into. */
export function placesOf({ source, output }: Pick<Part, 'source' | 'output'>): {
  readonly source: string;
  readonly output: string;
} {
  return {
    source: nameOfSource(source),
    output: output.kind === 'folder' ? output.folder : `s3://${output.bucket}/${output.prefix}`,
  };
}

/** Its path, or its address. */
export function nameOfSource(source: PartSource): string {
  return source.kind === 'file' ? source.path : `s3://${source.bucket}/${source.key}`;
}

/** Whether a place is one of these folders, or below one. Folders and places may end with "/". */
export function isWithin(place: string, folders: readonly string[]): boolean {
  const path = withSlash(place);
  return folders.some((folder) => path.startsWith(withSlash(folder)));
}

function withSlash(place: string): string {
  return place.endsWith('/') ? place : `${place}/`;
}
