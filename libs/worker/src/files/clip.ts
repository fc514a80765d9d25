// How much of a text is kept, whoever reads it.

import type { ReadingNotes } from './reading-notes.ts';

/**
 * Characters of a text that are kept. A model reads some hundred words; without a bound, rows in flight could fill the
 * memory of this process. A text has to hold 1 MiB without 512 words in it for the cut to show.
 */
export const MAX_TEXT_CHARACTERS = 1024 * 1024;

/** A copy: a slice of a string keeps the whole of it alive. Never between the halves of a character. */
export function clip(text: string, notes?: ReadingNotes): string {
  if (text.length <= MAX_TEXT_CHARACTERS) return text;
  notes?.add('clippedTexts');
  const last = text.charCodeAt(MAX_TEXT_CHARACTERS - 1);
  const end = MAX_TEXT_CHARACTERS - (last >= 0xd8_00 && last <= 0xdb_ff ? 1 : 0);
  return Buffer.from(text.slice(0, end), 'utf16le').toString('utf16le');
}
