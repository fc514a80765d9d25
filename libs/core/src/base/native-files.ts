// Where native code lies: built in the checkout, or in packages of their own beside an installed one, which have it for
// one kind of machine each. Neither is needed; what is absent is named, and how it is had here.

import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { arch, platform } from 'node:process';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../../../../', import.meta.url));
/** `addons`: what Node loads, and the kernels for CPUs; `cuda`: the libraries that they open. */
const PACKAGES = {
  addons: `@shoal/native-${platform}-${arch}${platform === 'linux' ? '-gnu' : ''}`,
  cuda: `@shoal/cuda-${platform}-${arch}`,
} as const;

export type NativeKind = keyof typeof PACKAGES;

/**
 * The path of `file` of a part of native/: of the checkout's build where it is there or nowhere else, else of the
 * package that has it.
 */
export function nativeFile(kind: NativeKind, part: 'encoder' | 'similarity', file: string): string {
  const built = join(ROOT, 'dist', 'native', part, file);
  if (existsSync(built)) return built;
  try {
    return createRequire(import.meta.url).resolve(`${PACKAGES[kind]}/${part}/${file}`);
  } catch {
    return built;
  }
}

/** What brings native code here, as the end of a sentence: `build` in a checkout, else its package. */
export function nativeCure(kind: NativeKind, build: string): string {
  if (existsSync(join(ROOT, 'native'))) return build;
  if (platform !== 'linux' || arch !== 'x64') return `there is none for ${platform}-${arch} but from a checkout`;
  return `the package ${PACKAGES[kind]} has it: install it beside shoal, in the same version`;
}
