// Which of the two forms of an int8 graph this processor runs. Both hold the same whole numbers and give the same
// vectors, where products are exact. Without VNNI, x86 multiplies bytes with signed bytes in pairs and keeps 16 bits of
// the sum, so two large products saturate (ONNX Runtime's documentation of quantization, "when and why do I need to try
// U8U8"); bytes with bytes it multiplies exactly, but with VNNI that is the slower form.

import { readFile } from 'node:fs/promises';
import type { GraphKind } from './graph-kind.ts';

/** `flags`: of the processor, as the system lists them. */
export function int8KindFor(architecture: string, flags: string): GraphKind {
  if (architecture !== 'x64') return 'int8';
  return /\b(?:avx512_vnni|avx_vnni)\b/.test(flags) ? 'int8' : 'int8-unsigned';
}

/** Where a system lists no flags, the form that is right everywhere. */
export async function int8KindHere(): Promise<GraphKind> {
  const path = '/proc/cpuinfo';
  return int8KindFor(process.arch, await readFile(path, 'utf8').catch(() => ''));
}
