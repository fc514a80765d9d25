// Markdown into records: a document is cut into passages by heading and paragraph, and a passage is called
// FILE#HEADING-PATH/N. Nothing that a reader sees is left out: `shoal try` skips what answers no question, this file may
// not. The only reader that holds a whole document, and therefore the only one that refuses a long one.

import { allPassages, embeddedText } from '../markdown/passages.ts';
import { ReadingNotes } from '@shoal/worker/files/reading-notes';
import type { Found, RecordOptions } from '@shoal/worker/files/record';
import { decodeLine } from '@shoal/worker/files/utf8';

/** Far above any document that a person wrote; what is longer is data with a wrong name. */
const MAX_DOCUMENT_BYTES = 16 * 1024 * 1024;

export async function* markdownRecords(
  chunks: AsyncIterable<Buffer>,
  { name, notes = new ReadingNotes() }: RecordOptions,
): AsyncGenerator<Found> {
  const document = await readDocument(chunks);
  if ('problem' in document) yield { line: undefined, problem: document.problem };
  else yield* passages(document.text, name, notes);
}

function* passages(document: string, name: string, notes: ReadingNotes): Generator<Found> {
  const counts = new Map<string, number>();
  for (const passage of allPassages(document, notes)) {
    const path = passage.headings.map(slug).join('/');
    const count = (counts.get(path) ?? 0) + 1;
    counts.set(path, count);
    yield { line: undefined, id: `${name}#${path}/${count}`, text: embeddedText(passage) };
  }
}

async function readDocument(
  chunks: AsyncIterable<Buffer>,
): Promise<{ readonly text: string } | { readonly problem: string }> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of chunks) {
    bytes += chunk.length;
    if (bytes > MAX_DOCUMENT_BYTES)
      return {
        problem:
          `the document is longer than ${MAX_DOCUMENT_BYTES / 1024 / 1024} MiB; split it, or have its lines read ` +
          'as texts with --format text',
      };
    pieces.push(chunk);
  }
  const { text, problem } = decodeLine({ number: 1, byteOffset: 0, bytes: Buffer.concat(pieces) });
  return problem === undefined ? { text } : { problem };
}

/** As links into a rendered page name a heading: lower case, words joined by hyphens, no punctuation. */
function slug(heading: string): string {
  return heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
    .trim()
    .replaceAll(/\s+/g, '-');
}
