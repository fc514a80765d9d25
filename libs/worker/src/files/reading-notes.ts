// What reading left out, or took in a way that its author may not expect: counted while files are read, said once at
// the end. Decides nothing; each reader counts what it did.

/** What is counted, and how a person is told of it; the order is that of the sentence. */
const KINDS = {
  emptyTexts: ['text is empty', 'texts are empty', '; all empty texts have one and the same vector'],
  clippedTexts: ['text was cut', 'texts were cut', ' after 1 MiB of characters'],
  blankLines: ['blank line holds no record', 'blank lines hold no record', ''],
  loneCarriageReturns: [
    'line ends with a carriage return alone (CR)',
    'lines end with a carriage return alone (CR)',
    ', others do not; each is a line end',
  ],
  frontMatter: ['front matter left out', 'front matters left out', ''],
  htmlComments: ['HTML comment left out', 'HTML comments left out', ''],
  scripts: ['script or style sheet left out', 'scripts or style sheets left out', ''],
  imagesWithoutText: ['image without alternative text', 'images without alternative text', ''],
  definitions: ['link definition left out', 'link definitions left out', ''],
  linkTitles: ['title of a link or image left out', 'titles of links or images left out', ''],
  footnoteLabels: ['footnote label left out', 'footnote labels left out', ''],
  plainParts: [
    'part of a document is nested too deeply or too dense in marks for Markdown, and was read with its marks as text',
    'parts of documents are nested too deeply or too dense in marks for Markdown, and were read with their marks as text',
    '',
  ],
} as const;

export type NoteKind = keyof typeof KINDS;

export class ReadingNotes {
  readonly #counts = new Map<NoteKind, number>();

  add(kind: NoteKind, count = 1): void {
    if (count > 0) this.#counts.set(kind, (this.#counts.get(kind) ?? 0) + count);
  }

  /** Takes over what another reader counted. */
  addAll(other: ReadingNotes): void {
    for (const [kind, count] of other.#counts) this.add(kind, count);
  }

  /** One line for each kind that there was. */
  get lines(): readonly string[] {
    return kindsOf(this.#counts).map(([kind, count]) => {
      const [one, many, rest] = KINDS[kind];
      return `${count.toLocaleString('en')} ${count === 1 ? one : many}${rest}`;
    });
  }

  /** The counts of a report in JSON; kinds that there were none of are not in it. */
  get counts(): Readonly<Partial<Record<NoteKind, number>>> {
    return Object.fromEntries(kindsOf(this.#counts));
  }
}

function kindsOf(counts: ReadonlyMap<NoteKind, number>): readonly (readonly [NoteKind, number])[] {
  return (Object.keys(KINDS) as NoteKind[]).flatMap((kind) => {
    const count = counts.get(kind);
    return count === undefined ? [] : [[kind, count] as const];
  });
}

/** Nothing that a person or a model sees: white space, control and format characters. */
export function isEmptyText(text: string): boolean {
  return !/[^\s\p{Cc}\p{Cf}\p{Z}]/u.test(text);
}
