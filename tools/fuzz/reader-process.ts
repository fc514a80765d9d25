// The process in which our readers meet what was made to break them (kept-process.ts starts it). For each message with a
// file it answers with what came of it; an error is told by its code alone, because every other error is a bug. Never
// decides whether an answer is right.

import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ERROR_CODES } from '@shoal/contract';
import { digestOf, type FuzzedReader } from './fuzzed-reader.ts';
import { readerNamed } from './readers.ts';

export interface ReadOrder {
  readonly reader: string;
  readonly bytes: Uint8Array;
  readonly variant: number;
}

export type ReadAnswer = (
  | { readonly kind: 'read'; readonly digest: string }
  | { readonly kind: 'refused'; readonly code: string; readonly message: string }
  | { readonly kind: 'broken'; readonly error: string }
) & {
  /** The most that this process ever held. */
  readonly peakBytes: number;
};

const folder = await mkdtemp(join(tmpdir(), 'shoal-fuzz-'));
process.once('disconnect', () => void rm(folder, { recursive: true, force: true }).finally(() => process.exit()));
process.on('message', ({ reader, bytes, variant }: ReadOrder) => void answer(readerNamed(reader), bytes, variant));
process.send!('ready');

async function answer(reader: FuzzedReader, bytes: Uint8Array, variant: number): Promise<void> {
  const path = join(folder, `file${reader.extension ?? ''}`);
  await writeFile(path, bytes);
  // At an odd beginning every second time: a view may need to be aligned.
  const room = Buffer.alloc(bytes.length + 8);
  const own = room.subarray(1 + (variant % 2) * 3, 1 + (variant % 2) * 3 + bytes.length);
  own.set(bytes);
  const came = await reader.read(own, path, variant).then(
    (values) => ({ kind: 'read' as const, digest: digestOf(values) }),
    (error: unknown) => tell(error),
  );
  process.send!({ ...came, peakBytes: process.resourceUsage().maxRSS * 1024 } satisfies ReadAnswer);
}

function tell(error: unknown) {
  const { code, message, name } = error as {
    readonly code?: unknown;
    readonly message?: string;
    readonly name?: string;
  };
  if (name === 'ShoalError' && typeof code === 'string' && Object.hasOwn(ERROR_CODES, code))
    return { kind: 'refused' as const, code, message: message ?? '' };
  return { kind: 'broken' as const, error: String((error as Error | undefined)?.stack ?? error).slice(0, 2_000) };
}
