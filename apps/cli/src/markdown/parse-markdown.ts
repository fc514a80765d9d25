// Markdown into a tree, by the parser of CommonMark and GitHub's tables, footnotes, task lists and strike-through.
// A long document is parsed in pieces that end with whole blocks, and what would take a parser time by the square of
// its length is read with its marks as text: what comes out depends on the document alone and never on the clock.

import { fromMarkdown } from 'mdast-util-from-markdown';
import { gfmFromMarkdown } from 'mdast-util-gfm';
import { gfm } from 'micromark-extension-gfm';
import type { Nodes, RootContent } from 'mdast';
import { quickBareAddresses } from './bare-addresses.ts';

/**
 * A piece that is parsed at once; memory and time for one are bounded by it. Lines count because the parser moves all
 * that it has found at each heading with a line under it and at each item: 25,000 headings of `a` over `=` in one piece
 * took 38 s, in pieces of 1,000 lines 2 s (2026-11-26).
 */
const PIECE = { characters: 128 * 1024, lines: 1_000 } as const;
/** A block that is longer than this is no text that somebody wrote. */
const MOST_CHARACTERS = 256 * 1024;
/** The same of a paragraph or a quotation: 7,000 lines of one that lack their `>` took 10 s (2026-11-26). */
const MOST_LINES = 4_000;
/** Lists and quotes in one another; 1,000 levels take 7 s (2026-11-26). */
const MOST_LEVELS = 40;
/** A quotation of a list of emphasis is as many levels of a tree. */
const MOST_TREE_LEVELS = 400;
/** Marks of one paragraph, heading or cell; 9,000 of `*a_ ` take 3 s (2026-11-26). */
const MOST_MARKS = 2_000;
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

const SYNTAX = quickBareAddresses(gfm());
/** Links that GitHub makes of bare addresses have the same text with and without it. */
const TREE = gfmFromMarkdown().map((extension) => ({ ...extension, transforms: [] }));

export type MarkdownPiece =
  | { readonly kind: 'tree'; readonly nodes: readonly RootContent[]; readonly hasAllMarks: boolean }
  /** Too deep or too long to be parsed. */
  | { readonly kind: 'plain'; readonly text: string };

/** The blocks of a document, in pieces. */
export function* parseMarkdown(document: string): Generator<MarkdownPiece> {
  const isWhole = pieceEnd(document, 0, 1) === document.length;
  const labels = isWhole ? new Map<string, string>() : labelsOf(document);
  let from = 0;
  let size = 1;
  let item: number | undefined;
  const goOn = (to: number, number?: number): void => {
    from = to;
    size = 1;
    item = number;
  };
  while (from < document.length) {
    const to = pieceEnd(document, from, size);
    const isLast = to === document.length;
    const text = document.slice(from, to);
    if (isTooDeep(text)) {
      yield { kind: 'plain', text };
      goOn(to);
      continue;
    }
    const definitions = definitionsFor(text, labels);
    const hasAllMarks = !isTooDense(text);
    const nodes = numbered(blocksOf(`${definitions}${text}`, definitions.length, hasAllMarks), item);
    if (isDeep(nodes)) {
      yield { kind: 'plain', text };
      goOn(to);
      continue;
    }
    if (isLast) {
      yield { kind: 'tree', nodes, hasAllMarks };
      return;
    }
    const beginOf = (node: Nodes): number => from + node.position!.start.offset! - definitions.length;
    const last = nodes.at(-1); // it may go on behind the piece
    if (last !== undefined && nodes.length > 1) {
      yield { kind: 'tree', nodes: nodes.slice(0, -1), hasAllMarks };
      goOn(beginOf(last));
    } else if (last?.type === 'list' && last.children.length > 1) {
      const children = last.children.slice(0, -1);
      yield { kind: 'tree', nodes: [{ ...last, children }], hasAllMarks };
      const line = document.lastIndexOf('\n', beginOf(last.children.at(-1)!)) + 1;
      goOn(line, last.ordered === true ? (last.start ?? 1) + children.length : undefined);
    } else if (last === undefined) goOn(to); // blank lines
    else if (isTooLong(text, last.type)) {
      const end = paragraphEnd(document, to);
      yield { kind: 'plain', text: document.slice(from, end) };
      goOn(end);
    } else size *= 2;
  }
}

/** The piece goes on with a list; its items are numbered from the first of it. */
function numbered(nodes: readonly RootContent[], item: number | undefined): readonly RootContent[] {
  const [list, ...others] = nodes;
  return item !== undefined && list?.type === 'list' ? [{ ...list, start: item }, ...others] : nodes;
}

/** Code, HTML and tables may have as many lines as they like. */
function isTooLong(text: string, type: RootContent['type']): boolean {
  if (text.length >= MOST_CHARACTERS) return true;
  return !['code', 'html', 'table'].includes(type) && text.split('\n').length > MOST_LINES;
}

function blocksOf(text: string, from: number, hasAllMarks: boolean): readonly RootContent[] {
  const { children } = fromMarkdown(text, {
    extensions: [SYNTAX, ...(hasAllMarks ? [] : [{ disable: { null: INLINE } }])],
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

/** A piece, or `size` times one, ends with a line, where there is one. */
function pieceEnd(document: string, from: number, size: number): number {
  const most = Math.min(document.length, from + size * PIECE.characters);
  let end = from;
  for (let lines = 0; lines < size * PIECE.lines; lines++) {
    const next = document.indexOf('\n', end) + 1;
    if (next === 0 || next > most) break;
    end = next;
    if (lines === size * PIECE.lines - 1) return end;
  }
  if (most === document.length) return most;
  if (end > from) return end;
  const high = document.charCodeAt(most - 1);
  return most - (high >= 0xd8_00 && high <= 0xdb_ff ? 1 : 0);
}

function paragraphEnd(document: string, from: number): number {
  const blank = /\n[ \t\r]*\n/g;
  blank.lastIndex = from;
  return blank.exec(document) === null ? document.length : blank.lastIndex;
}

/** What links and footnotes anywhere in a document may refer to, by how it is compared; the first of a name counts. */
function labelsOf(document: string): ReadonlyMap<string, string> {
  const labels = new Map<string, string>();
  for (const [, label] of document.matchAll(/^ {0,3}\[((?:[^\][\\\n]|\\.){1,200})\]:/gm)) {
    const name = comparable(label!);
    if (!labels.has(name)) labels.set(name, label!);
  }
  return labels;
}

/** As CommonMark compares labels: in capitals, and all white space is one space. */
function comparable(label: string): string {
  return label
    .replaceAll(/[\t\n\r ]+/g, ' ')
    .replaceAll(/^ | $/g, '')
    .toLowerCase()
    .toUpperCase();
}

/** Definitions for those that a piece may refer to. */
function definitionsFor(text: string, labels: ReadonlyMap<string, string>): string {
  if (labels.size === 0) return '';
  const needed = new Set<string>();
  for (const [, label] of text.matchAll(/\[((?:[^\][\\]|\\[^]){1,200})\]/g)) {
    const known = labels.get(comparable(label!));
    if (known !== undefined) needed.add(known);
    if (needed.size === MOST_DEFINITIONS) break;
  }
  if (needed.size === 0) return '';
  // the comment ends a footnote, which would take what is indented behind it
  return `${[...needed].map((label) => `[${label}]: x\n\n`).join('')}<!-- -->\n\n`;
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

/** Whether one paragraph, heading or cell has more marks than the parser can pair in time. */
function isTooDense(text: string): boolean {
  if (marksIn(text) <= MOST_MARKS) return false;
  let level: readonly Nodes[] = blocksOf(text, 0, false);
  while (level.length > 0) {
    for (const { type, position } of level)
      if (type === 'paragraph' || type === 'heading' || type === 'tableCell')
        if (marksIn(text.slice(position!.start.offset, position!.end.offset)) > MOST_MARKS) return true;
    level = level.flatMap((node) => ('children' in node ? node.children : []));
  }
  return false;
}

function marksIn(text: string): number {
  return text.length - text.replaceAll(/[*_~[\]<`!&]/g, '').length;
}
