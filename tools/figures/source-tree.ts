// The files that the figures are taken of: what git knows or would add, sorted into product and all the rest. Reads
// nothing but lists and texts; counts nothing.

import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** Folders whose entries are counted; of results and fixtures nobody reads the list. */
const SHELVES = /^(libs|apps|native|bench|tools|docs)\//;
const NO_SHELF = /(^|\/)(fixtures|results)(\/|$)/;
/** Texts that a fixture is made of are data. */
const DATA = /(^|\/)fixtures\//;
const WRITTEN_BY_HAND = /(\.(ts|mjs|cc|cu|h|cuh|inl|lua|sh|py)|^shoal)$/;

export interface SourceFile {
  readonly path: string;
  readonly text: string;
}

export interface SourceTree {
  /** Every path of the tree. */
  readonly paths: readonly string[];
  /** Paths whose folders are counted as shelves. */
  readonly shelved: readonly string[];
  /** Everything that is written line by line. */
  readonly written: readonly SourceFile[];
  /** The TypeScript that runs at a user's: no tests, no stand-ins, no benches. */
  readonly product: readonly SourceFile[];
  /** The C++ and CUDA that runs at a user's. */
  readonly native: readonly SourceFile[];
}

export function readSourceTree(root: string): SourceTree {
  const paths = listed(root);
  const read = (path: string): SourceFile => ({ path, text: readFileSync(join(root, path), 'utf8') });
  const written = paths.filter((path) => WRITTEN_BY_HAND.test(path) && !DATA.test(path)).map(read);
  return {
    paths,
    shelved: paths.filter((path) => SHELVES.test(path) && !NO_SHELF.test(path)),
    written,
    product: written.filter(({ path }) => isProduct(path)),
    native: written.filter(({ path }) => /^native\/(?!.*\/test\/).*\.(cc|cu|h|cuh|inl)$/.test(path)),
  };
}

export function isProduct(path: string): boolean {
  return (
    /^(libs|apps)\/[^/]+\/src\/.*\.ts$/.test(path) &&
    !/\.(test|d)\.ts$/.test(path) &&
    !/(^|\/)(testing|sim|fixtures)(\/|\.ts$)/.test(path)
  );
}

function listed(root: string): string[] {
  const out = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], {
    cwd: root,
    encoding: 'utf8',
    maxBuffer: 2 ** 26,
  });
  return [...new Set(out.split('\0'))].filter((path) => path !== '' && existsSync(join(root, path))).toSorted();
}
