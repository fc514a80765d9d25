// What a reader sees of Markdown, block by block: the text of paragraphs, items, cells, code and HTML, alternative texts
// of images, no marks, no addresses. Whatever is left out is counted.

import type { ListItem, PhrasingContent, RootContent, Table } from 'mdast';
import type { ReadingNotes } from '@shoal/worker/files/reading-notes';
import { frontMatterEnd } from './front-matter.ts';
import { htmlParts, type HtmlPart } from './html-text.ts';
import { parseMarkdown } from './parse-markdown.ts';

export type Block =
  | { readonly kind: 'heading'; readonly level: number; readonly text: string }
  | { readonly kind: 'prose' | 'code'; readonly text: string };

export interface VisibleOptions {
  readonly notes: ReadingNotes;
  /** Whether the alternative text of an image is text. */
  readonly hasImages: boolean;
}

/** Every block of a document that has a character to be seen, in order. */
export function visibleBlocks(text: string, options: VisibleOptions): readonly Block[] {
  const document = text.replaceAll(/\r\n?/g, '\n');
  const begin = frontMatterEnd(document);
  if (begin > 0) options.notes.add('frontMatter');
  const reader = new BlockReader(options);
  for (const piece of parseMarkdown(document.slice(begin))) {
    if (piece.kind === 'tree') reader.read(piece.nodes, true);
    else reader.readPlain(piece.text);
    if (piece.kind === 'plain' || !piece.hasAllMarks) options.notes.add('plainParts');
  }
  return reader.blocks;
}

class BlockReader {
  readonly blocks: Block[] = [];
  readonly #options: VisibleOptions;

  constructor(options: VisibleOptions) {
    this.#options = options;
  }

  /** `isOutline`: headings of the document itself, not of a quotation or an item, divide it. */
  read(nodes: readonly RootContent[], isOutline: boolean): void {
    for (const node of nodes) this.#readNode(node, isOutline);
  }

  /** Lines as they are. */
  readPlain(text: string): void {
    for (const paragraph of text.split(/\n[ \t\r]*\n/)) this.#add({ kind: 'code', text: paragraph });
  }

  #readNode(node: RootContent, isOutline: boolean): void {
    switch (node.type) {
      case 'heading':
        return this.#add(
          isOutline
            ? { kind: 'heading', level: node.depth, text: this.#inline(node.children) }
            : { kind: 'prose', text: this.#inline(node.children) },
        );
      case 'paragraph':
        return this.#add({ kind: 'prose', text: this.#inline(node.children) });
      case 'code':
        return this.#add({ kind: 'code', text: node.value });
      case 'html':
        return this.#readHtml(node.value, isOutline);
      case 'list':
        return node.children.forEach((item, at) =>
          this.#readItem(item, node.ordered === true ? `${(node.start ?? 1) + at}.` : '-'),
        );
      case 'table':
        return this.#readTable(node);
      case 'footnoteDefinition':
        this.#options.notes.add('footnoteLabels');
        return this.read(node.children, false);
      case 'definition':
        this.#options.notes.add('definitions');
        return this.#noteTitle(node.title);
      case 'thematicBreak':
        return undefined;
      default:
        return 'children' in node
          ? this.read(node.children, false)
          : this.#add({ kind: 'prose', text: this.#inline([node as PhrasingContent]) });
    }
  }

  #readItem(item: ListItem, marker: string): void {
    const task = item.checked === null || item.checked === undefined ? '' : item.checked ? '[x] ' : '[ ] ';
    const first = this.blocks.length;
    this.read(item.children, false);
    const block = this.blocks[first];
    if (block !== undefined) this.blocks[first] = { ...block, text: `${marker} ${task}${block.text}` };
  }

  #readTable({ children }: Table): void {
    for (const row of children) {
      const cells = row.children.map((cell) => this.#inline(cell.children)).filter((cell) => cell !== '');
      this.#add({ kind: 'prose', text: cells.join(' | ') });
    }
  }

  #inline(nodes: readonly PhrasingContent[]): string {
    const text = new InlineText(this.#options);
    text.read(nodes);
    return tidy(text.pieces.join(''));
  }

  /** A heading of HTML is one where it begins and ends in the same piece. */
  #readHtml(html: string, isOutline: boolean): void {
    let open: string[] = [];
    let level: number | undefined;
    const end = (kind: number | undefined): void => {
      const text = tidy(open.join(''));
      open = [];
      this.#add(kind === undefined || !isOutline ? { kind: 'prose', text } : { kind: 'heading', level: kind, text });
    };
    for (const part of htmlParts(html, this.#options)) {
      if (part.kind === 'text') open.push(part.text);
      else if (part.kind === 'heading') {
        end(part.isEnd && part.level === level ? level : undefined);
        level = part.isEnd ? undefined : part.level;
      }
    }
    end(undefined);
  }

  #noteTitle(title: string | null | undefined): void {
    if (title) this.#options.notes.add('linkTitles');
  }

  #add(block: Block): void {
    if (block.text.trim() !== '') this.blocks.push(block);
  }
}

/** The text of one paragraph. A script inside it is told by its tags, and is over with the paragraph. */
class InlineText {
  readonly pieces: string[] = [];
  readonly #options: VisibleOptions;
  #isHidden = false;

  constructor(options: VisibleOptions) {
    this.#options = options;
  }

  read(nodes: readonly PhrasingContent[]): void {
    const isClosed = hidesOnlyWhatItCloses(nodes);
    for (const node of nodes) {
      if (node.type === 'html') {
        for (const part of htmlParts(node.value, this.#options)) this.#addHtml(part, isClosed);
      } else if (!this.#isHidden) this.#readNode(node);
    }
    this.#isHidden = false;
  }

  #readNode(node: PhrasingContent): void {
    const { notes, hasImages } = this.#options;
    if ('title' in node && node.title) notes.add('linkTitles');
    if (node.type === 'image' || node.type === 'imageReference') {
      if (!hasImages) return;
      if ((node.alt ?? '').trim() === '') notes.add('imagesWithoutText');
      this.pieces.push(node.alt ?? '');
    } else if (node.type === 'break') this.pieces.push('\n');
    else if (node.type === 'footnoteReference') notes.add('footnoteLabels');
    // a line that its author broke at some column becomes one again
    else if ('value' in node) this.pieces.push(node.value.replaceAll('\n', ' '));
    else if ('children' in node) this.read(node.children);
  }

  #addHtml(part: HtmlPart, isClosed: boolean): void {
    if (part.kind === 'hidden') {
      this.#isHidden = !part.isEnd && isClosed;
      if (this.#isHidden) this.#options.notes.add('scripts');
    } else if (part.kind === 'text' && !this.#isHidden) this.pieces.push(part.text);
  }
}

/** Whether each script or style sheet that begins among these nodes also ends there; text behind an open one stays. */
function hidesOnlyWhatItCloses(nodes: readonly PhrasingContent[]): boolean {
  const last = nodes.findLast((node) => node.type === 'html' && /^<\/?(script|style)\b/i.test(node.value));
  return last !== undefined && 'value' in last && last.value.startsWith('</');
}

function tidy(text: string): string {
  return text
    .replaceAll(/[ \t\r]+/g, ' ')
    .replaceAll(/ ?\n[\n ]*/g, '\n')
    .trim();
}
