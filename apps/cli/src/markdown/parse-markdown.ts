// Markdown into a tree, by the parser of CommonMark and GitHub's tables, footnotes, task lists and strike-through.
// A long document is parsed in pieces that end with whole blocks, and what would take a parser time by the square of
// its length is read with its marks as text: what comes out depends on the document alone and never on the clock.

import { fromMarkdown } from 'mdast-util-from-markdown';
import { gfmFromMarkdown } from 'mdast-util-gfm';
import { gfm } from 'micromark-extension-gfm';
import type { Nodes, RootContent } from 'mdast';

/** A piece that is parsed at once; memory and time for one are bounded by it. */
const PIECE_CHARACTERS = 128 * 1024;
/** A block that is longer than this is no text that somebody wrote. */
const MOST_CHARACTERS = 256 * 1024;
/** Lists and quotes in one another; 1,000 levels take 7 s (2026-11-26). */
const MOST_LEVELS = 40;
/** A quotation of a list of emphasis is as many levels of a tree. */
const MOST_TREE_LEVELS = 400;
/** Marks in lines without a blank one between them; 9,000 of `*a_ ` take 3 s (2026-11-26). */
const MOST_MARKS = 2_000;
/** The same where lines look like code or a table, which they need not be. */
const MOST_MARKS_OF_LINES = 20_000;
/** Definitions that are carried from one piece of a document to the others. */
const MOST_DEFINITIONS = 1_000;

/** What takes marks inside a paragraph for more than text. */
const INLINE = [
  'attention',
  'autolink',
  'codeText',
  'emailAutolink',
  'gfmFootnoteCall',
  'gfmPotentialFootnoteCall',
  'htmlText',
  'labelEnd',
  'labelStartImage',
  'labelStartLink',
  'protocolAutolink',
  'strikethrough',
  'wwwAutolink',
];

/** Links that GitHub makes of bare addresses have the same text with and without it. */
const TREE = gfmFromMarkdown().map((extension) => ({ ...extension, transforms: [] }));

export type MarkdownPiece =
  | { readonly kind: 'tree'; readonly nodes: readonly RootContent[]; readonly hasAllMarks: boolean }
  /** Too deep or too long to be parsed. */
  | { readonly kind: 'plain'; readonly text: string };

/** The blocks of a document, in pieces. */
export function* parseMarkdown(document: string): Generator<MarkdownPiece> {
  const definitions = document.length > PIECE_CHARACTERS ? definitionsOf(document) : '';
  let from = 0;
  let length = PIECE_CHARACTERS;
  while (from < document.length) {
    const isTooLong = length > MOST_CHARACTERS;
    const to = isTooLong ? paragraphEnd(document, from + MOST_CHARACTERS) : pieceEnd(document, from, length);
    const isLast = to === document.length;
    const text = document.slice(from, to);
    if (isTooLong || isTooDeep(text)) {
      yield { kind: 'plain', text };
      from = to;
      length = PIECE_CHARACTERS;
      continue;
    }
    const hasAllMarks = !isTooDense(text);
    const nodes = blocksOf(`${definitions}${text}`, definitions.length, hasAllMarks);
    if (isDeep(nodes)) {
      yield { kind: 'plain', text };
      from = to;
      continue;
    }
    const whole = isLast ? nodes : nodes.slice(0, -1); // the last one may go on behind the piece
    if (!isLast && whole.length === 0) {
      length *= 2;
      continue;
    }
    yield { kind: 'tree', nodes: whole, hasAllMarks };
    from = isLast ? to : from + nodes.at(-1)!.position!.start.offset! - definitions.length;
    length = PIECE_CHARACTERS;
  }
}

function blocksOf(text: string, from: number, hasAllMarks: boolean): readonly RootContent[] {
  const { children } = fromMarkdown(text, {
    extensions: [gfm(), ...(hasAllMarks ? [] : [{ disable: { null: INLINE } }])],
    mdastExtensions: TREE,
  });
  return from === 0 ? children : children.filter(({ position }) => position!.start.offset! >= from);
}

/** What the look at the beginnings of lines missed: readers of a tree call themselves once a level. */
function isDeep(nodes: readonly Nodes[]): boolean {
  let level: readonly Nodes[] = nodes;
  for (let levels = 0; level.length > 0; levels++) {
    if (levels > MOST_TREE_LEVELS) return true;
    level = level.flatMap((node) => ('children' in node ? node.children : []));
  }
  return false;
}

/** A piece ends with a line, where there is one. */
function pieceEnd(document: string, from: number, length: number): number {
  if (from + length >= document.length) return document.length;
  const end = document.lastIndexOf('\n', from + length - 1) + 1;
  if (end > from) return end;
  const high = document.charCodeAt(from + length - 1);
  return from + length - (high >= 0xd8_00 && high <= 0xdb_ff ? 1 : 0);
}

function paragraphEnd(document: string, from: number): number {
  const blank = /\n[ \t\r]*\n/g;
  blank.lastIndex = from;
  return blank.exec(document) === null ? document.length : blank.lastIndex;
}

/** What links and footnotes anywhere in a document may refer to; the first of a name counts. */
function definitionsOf(document: string): string {
  const labels = new Set<string>();
  for (const [, label] of document.matchAll(/^ {0,3}\[((?:[^\][\\\n]|\\.){1,200})\]:/gm)) {
    labels.add(label!);
    if (labels.size === MOST_DEFINITIONS) break;
  }
  // the comment ends a footnote, which would take what is indented behind it
  return `${[...labels].map((label) => `[${label}]: x\n\n`).join('')}<!-- -->\n\n`;
}

/** By the markers at the beginnings of lines, each further in than the one before it. */
function isTooDeep(text: string): boolean {
  const open: number[] = [];
  for (const [line, indent, markers] of text.matchAll(
    /^([ \t]*)((?:>[ \t]*|\[\^[^\]\n]+\]:[ \t]*|(?:[-+*]|\d{1,9}[.)])(?:[ \t]+|$))+).*$/gm,
  )) {
    const column = indent!.replaceAll('\t', '    ').length;
    const levels = markers!.match(/>|\]:|[-+*](?=\s|$)|\d[.)]/g)?.length ?? 1;
    while (open.length > 0 && open.at(-1)! >= column) open.pop();
    for (let level = 0; level < levels; level++) open.push(column + level);
    // rules are rows of the same mark and open nothing, which takes the parser long to see
    const isRule = line.length < 1_000 && /^[ \t]*([-*])(?:[ \t]*\1){2,}[ \t]*$/.test(line);
    if (isRule) open.length -= levels;
    else if (open.length > MOST_LEVELS) return true;
  }
  return false;
}

/** Marks of a paragraph. Rows of a table, items of a list and fenced code are as many paragraphs as they have lines. */
function isTooDense(text: string): boolean {
  let ofParagraph = 0;
  let ofLines = 0;
  let isFenced = false;
  let isTable = false;
  for (const line of text.split(/\r?\n|\r/)) {
    const isBlank = line.trim() === '';
    if (/^[ \t>]*(`{3,}|~{3,})/.test(line)) isFenced = !isFenced;
    if (isBlank) isTable = false;
    else isTable ||= /^[ \t>|:-]*-[ \t|:-]*$/.test(line);
    if (isBlank && !isFenced) ofLines = 0;
    if (isBlank || isFenced || isTable || /^[ \t>]*([-+*]|\d{1,9}[.)])[ \t]|^ {0,3}\[[^\]]+\]:/.test(line))
      ofParagraph = 0;
    const marks = line.length - line.replaceAll(/[*_~[\]<`!&]/g, '').length;
    ofParagraph += marks;
    ofLines += marks;
    if (ofParagraph > MOST_MARKS || ofLines > MOST_MARKS_OF_LINES) return true;
  }
  return false;
}
