// Markdown into passages: pieces of one document between two headings, short enough for one row. Every character that
// a reader sees is in one of them, in order; only `shoal try` asks for less.

import { ReadingNotes } from '@shoal/worker/files/reading-notes';
import { cutText, weightOf } from './cut-text.ts';
import { visibleBlocks, type Block } from './visible-blocks.ts';

/**
 * By `weightOf`: short blocks are joined up to `aim`, longer ones are cut before `most`, with the headings above them.
 * A model of 256 tokens then reads each passage whole: no text had twice as many tokens (2026-11-26). 60 to 95 words of
 * English.
 */
const LIMITS = { aim: 90, most: 130 } as const;
/** Headings above a passage take no more of it; the innermost go first. A longer heading is a paragraph as well. */
const HEADINGS = { all: 40, one: 20 } as const;
/** Lines of a code block that answers keep: the beginning says what it is. */
const CODE_LINES = 8;
/** Below so many letters a passage says nothing that could answer a question. */
const LEAST_LETTERS = 24;
/** Sections that answer no question about the subject. */
const NO_ANSWERS =
  /^(licen[sc]e|copyright|contribut|sponsor|backers|authors?\b|credits|changelog|table of contents|contents\b|badges)/i;

export interface Passage {
  /** Headings above it, outermost first. */
  readonly headings: readonly string[];
  /** Empty: the headings are all there is. */
  readonly text: string;
}

/** All passages of a document, in order. What is no text of it is counted in `notes`. */
export function allPassages(markdown: string, notes: ReadingNotes): readonly Passage[] {
  return passagesOf(visibleBlocks(markdown, { notes, hasImages: true }));
}

/** The passages that could answer a question: no badges, no licence, of code the beginning. */
export function answeringPassages(markdown: string): readonly Passage[] {
  const blocks = visibleBlocks(markdown, { notes: new ReadingNotes(), hasImages: false });
  return passagesOf(
    blocks.map((block) => (block.kind === 'code' ? { ...block, text: beginningOf(block.text) } : block)),
  )
    .filter(({ headings }) => !headings.some((heading) => NO_ANSWERS.test(heading)))
    .filter(({ text }) => (text.match(/\p{L}/gu)?.length ?? 0) >= LEAST_LETTERS);
}

/** What is embedded: the headings give a passage the context that its own words often lack. */
export function embeddedText({ headings, text }: Passage): string {
  return [headings.join(' › '), text].filter((part) => part !== '').join(': ');
}

function beginningOf(code: string): string {
  return code
    .split('\n')
    .map((line) => line.trimEnd())
    .filter((line) => line !== '')
    .slice(0, CODE_LINES)
    .join('\n');
}

interface Section {
  readonly headings: readonly string[];
  readonly blocks: string[];
}

function passagesOf(blocks: readonly Block[]): readonly Passage[] {
  const sections = sectionsOf(blocks);
  return sections.flatMap(({ headings, blocks: texts }, at): readonly Passage[] => {
    const weight = headings.length === 0 ? 0 : weightOf(headings.join(' › ')) + 1;
    const joined = joinBlocks(texts, { aim: Math.min(LIMITS.aim, LIMITS.most - weight), most: LIMITS.most - weight });
    if (joined.length > 0) return joined.map((text) => ({ headings, text }));
    const next = sections[at + 1]?.headings ?? [];
    const isSaidByNext = next.length > headings.length && headings.every((heading, level) => next[level] === heading);
    return isSaidByNext || headings.length === 0 ? [] : [{ headings, text: '' }];
  });
}

function sectionsOf(blocks: readonly Block[]): readonly Section[] {
  const sections: Section[] = [{ headings: [], blocks: [] }];
  const path: { readonly level: number; readonly text: string }[] = [];
  for (const block of blocks) {
    if (block.kind !== 'heading') {
      sections.at(-1)!.blocks.push(block.text);
      continue;
    }
    while (path.length > 0 && path.at(-1)!.level >= block.level) path.pop();
    const isLong = weightOf(block.text) > HEADINGS.one;
    path.push({ level: block.level, text: isLong ? beginningOfHeading(block.text) : block.text.replaceAll('\n', ' ') });
    sections.push({
      headings: lastThatFit(path.map((heading) => heading.text)),
      blocks: isLong ? [block.text] : [],
    });
  }
  return sections;
}

function beginningOfHeading(heading: string): string {
  return `${cutText(heading, { aim: HEADINGS.one, most: HEADINGS.one })[0]!.replaceAll('\n', ' ')}…`;
}

/** Each is in full above its own section, whatever stands around it. */
function lastThatFit(headings: readonly string[]): readonly string[] {
  let weight = 0;
  const outer = headings.findLastIndex((heading) => (weight += weightOf(heading) + 1) > HEADINGS.all);
  return headings.slice(outer + 1);
}

/** Blocks of one section, joined while they are short and cut where they are long. */
function joinBlocks(blocks: readonly string[], limits: { readonly aim: number; readonly most: number }): string[] {
  const joined: string[] = [];
  let open: string[] = [];
  let openWeight = 0;
  const end = (): void => {
    if (open.length > 0) joined.push(open.join('\n'));
    open = [];
    openWeight = 0;
  };
  for (const piece of blocks.flatMap((block) => cutText(block, limits))) {
    const weight = weightOf(piece);
    if (openWeight + weight > limits.most) end();
    open.push(piece);
    openWeight += weight;
    if (openWeight >= limits.aim) end();
  }
  end();
  return joined;
}
