// Markdown into passages: pieces of one document between two headings, short enough for one row. Reads the text as a
// person sees it: links lose their addresses, badges and comments go, code stays but is bounded. No renderer, no
// plugins.

/** Words of a passage: short blocks are joined up to `aim`, longer ones are cut at sentence ends before `most`. */
const WORDS = { aim: 60, most: 90 } as const;
/** Lines of a code block that are kept: the beginning says what it is. */
const CODE_LINES = 8;
/** Below so many letters a passage says nothing that could answer a question. */
const LEAST_LETTERS = 24;
/**
 * A paragraph or line is cut above this: what finds links and tables in it takes time by the square of its length (17 s
 * for 160 kB of spaces, 2026-11-21).
 */
const BLOCK_CHARACTERS = 8_000;
/** Sections that answer no question about the subject. */
const NO_ANSWERS =
  /^(licen[sc]e|copyright|contribut|sponsor|backers|authors?\b|credits|changelog|table of contents|contents\b|badges)/i;

export interface Passage {
  /** Headings above it, outermost first. */
  readonly headings: readonly string[];
  readonly text: string;
}

/** The passages of one document, in order: those that could answer a question, or `all`, with whole code blocks. */
export function splitPassages(markdown: string, kept: 'answers' | 'all' = 'answers'): readonly Passage[] {
  const passages: Passage[] = [];
  for (const section of sectionsOf(blocksOf(markdown, kept === 'all' ? Infinity : CODE_LINES))) {
    if (kept === 'answers' && section.headings.some((heading) => NO_ANSWERS.test(heading))) continue;
    for (const text of joinBlocks(section.blocks)) {
      if (kept === 'all' ? /[\p{L}\p{N}]/u.test(text) : lettersOf(text) >= LEAST_LETTERS)
        passages.push({ headings: section.headings, text });
    }
  }
  return passages;
}

/** What is embedded: the headings give a passage the context that its own words often lack. */
export function embeddedText(passage: Passage): string {
  return passage.headings.length === 0 ? passage.text : `${passage.headings.join(' › ')}: ${passage.text}`;
}

type Block =
  | { readonly kind: 'heading'; readonly level: number; readonly text: string }
  | { readonly kind: 'prose' | 'code'; readonly text: string };

interface Section {
  readonly headings: readonly string[];
  readonly blocks: readonly string[];
}

function sectionsOf(blocks: readonly Block[]): readonly Section[] {
  const sections: { headings: readonly string[]; blocks: string[] }[] = [{ headings: [], blocks: [] }];
  const path: { readonly level: number; readonly text: string }[] = [];
  for (const block of blocks) {
    if (block.kind !== 'heading') {
      sections.at(-1)!.blocks.push(block.text);
      continue;
    }
    while (path.length > 0 && path.at(-1)!.level >= block.level) path.pop();
    path.push(block);
    sections.push({ headings: path.map((heading) => heading.text), blocks: [] });
  }
  return sections;
}

/** Reads line by line: fences first, because nothing inside them is Markdown. */
function blocksOf(markdown: string, codeLines: number): readonly Block[] {
  const blocks: Block[] = [];
  let prose: string[] = [];
  let characters = 0;
  const endProse = (): void => {
    const text = plainText(joinSoftBreaks(prose));
    if (text !== '') blocks.push({ kind: 'prose', text });
    prose = [];
    characters = 0;
  };
  const lines = withoutComments(markdown).split(/\r?\n/).flatMap(cutLine);
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at]!;
    const fence = /^\s*(`{3,}|~{3,})/.exec(line)?.[1]; // any indentation: fences stand inside lists
    if (fence !== undefined) {
      endProse();
      const end = fenceEnd(lines, at + 1, fence);
      const code = lines
        .slice(at + 1, end)
        .map((codeLine) => codeLine.trimEnd())
        .filter((codeLine) => codeLine !== '');
      if (code.length > 0) blocks.push({ kind: 'code', text: code.slice(0, codeLines).join('\n') });
      at = end;
      continue;
    }
    const heading = headingOf(line, lines[at + 1], prose.length === 0);
    if (heading !== undefined) {
      endProse();
      if (heading.text !== '') blocks.push({ kind: 'heading', level: heading.level, text: heading.text });
      if (heading.isUnderlined) at++;
    } else if (line.trim() === '') endProse();
    else {
      if (characters + line.length > BLOCK_CHARACTERS) endProse();
      prose.push(line);
      characters += line.length;
    }
  }
  endProse();
  return blocks;
}

function fenceEnd(lines: readonly string[], from: number, fence: string): number {
  const end = lines.findIndex((line, at) => at >= from && line.trim().startsWith(fence) && /^[`~]+$/.test(line.trim()));
  return end === -1 ? lines.length : end;
}

function headingOf(
  line: string,
  next: string | undefined,
  isFirst: boolean,
): { level: number; text: string; isUnderlined: boolean } | undefined {
  const atx = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/.exec(line);
  if (atx !== null) return { level: atx[1]!.length, text: plainText(atx[2] ?? ''), isUnderlined: false };
  const html = /^\s*<h([1-6])[^>]*>(.*?)<\/h\1>\s*$/i.exec(line);
  if (html !== null) return { level: Number(html[1]), text: plainText(html[2]!), isUnderlined: false };
  if (isFirst && line.trim() !== '' && next !== undefined && /^ {0,3}(=+|-{2,})\s*$/.test(next)) {
    return { level: next.trim().startsWith('=') ? 1 : 2, text: plainText(line), isUnderlined: true };
  }
  return undefined;
}

function withoutComments(markdown: string): string {
  const text = markdown.replace(/^---\r?\n[\s\S]*?\r?\n---\r?\n/, '');
  const kept: string[] = [];
  let at = 0;
  for (let start = text.indexOf('<!--'); start !== -1; start = text.indexOf('<!--', at)) {
    const end = text.indexOf('-->', start);
    if (end === -1) break;
    kept.push(text.slice(at, start));
    at = end + 3;
  }
  return kept.join('') + text.slice(at);
}

function cutLine(line: string): readonly string[] {
  if (line.length <= BLOCK_CHARACTERS) return [line];
  const pieces: string[] = [];
  for (let at = 0; at < line.length;) {
    const space = line.lastIndexOf(' ', at + BLOCK_CHARACTERS);
    const end = space > at ? space : at + BLOCK_CHARACTERS;
    pieces.push(line.slice(at, end));
    at = end;
  }
  return pieces;
}

/** Lines that an author broke at some column become one again; items, quotes and rows of tables keep theirs. */
function joinSoftBreaks(lines: readonly string[]): string {
  return lines.reduce((text, line) => {
    const isOwnLine = /^\s*([-*+]\s|\d+[.)]\s|\||>|\[[^\]]+\]:)/.test(line) || / {2}$|\\$/.test(text);
    return text === '' || isOwnLine ? `${text}\n${line}` : `${text.trimEnd()} ${line.trimStart()}`;
  }, '');
}

/** What a reader sees of inline Markdown. */
function plainText(markdown: string): string {
  return markdown
    .replaceAll(/!\[[^\]]*\](\([^)]*\)|\[[^\]]*\])/g, '') // images, badges above all
    .replaceAll(/\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])/g, '$1') // links
    .replaceAll(/^ {0,3}\[[^\]]+\]:\s+\S+.*$/gm, '') // link definitions
    .replaceAll(/<((?:https?|mailto):[^>]+)>/g, '$1')
    .replaceAll(/<\/?[a-zA-Z][^>]*>/g, ' ') // HTML
    .replaceAll(/^[ \t]*\|?[ \t:|-]+\|[ \t:|-]*$/gm, '') // the rule under a table's head
    .replaceAll(/^[ \t]*\|(.*)\|[ \t]*$/gm, (_, cells: string) =>
      cells
        .split('|')
        .map((cell) => cell.trim())
        .filter((cell) => cell !== '')
        .join(' | '),
    )
    .replaceAll(/^[ \t]*([-*_])([ \t]*\1){2,}[ \t]*$/gm, '') // horizontal rules
    .replaceAll(/(\*\*|__)(?=\S)(.*?\S)\1/g, '$2')
    .replaceAll(/^[ \t]*>[ \t]?/gm, '')
    .replaceAll(/[ \t]+/g, ' ')
    .replaceAll(/ ?\n[\n ]*/g, '\n')
    .trim();
}

/** Blocks of one section, joined while they are short and cut where they are long. */
function joinBlocks(blocks: readonly string[]): readonly string[] {
  const joined: string[] = [];
  let open: string[] = [];
  let openWords = 0;
  const end = (): void => {
    if (open.length > 0) joined.push(open.join('\n'));
    open = [];
    openWords = 0;
  };
  for (const piece of blocks.flatMap(cutLong)) {
    const words = wordsOf(piece);
    if (openWords + words > WORDS.most) end();
    open.push(piece);
    openWords += words;
    if (openWords >= WORDS.aim) end();
  }
  end();
  return joined;
}

/** Pieces of at most `most` words: at line or sentence ends where there are any, between words where not. */
function cutLong(text: string): readonly string[] {
  if (wordsOf(text) <= WORDS.most) return [text];
  const pieces: string[] = [];
  let open = '';
  for (const { glue, part } of text.split('\n').flatMap(partsOf)) {
    if (open !== '' && wordsOf(open) + wordsOf(part) > WORDS.aim + 15) {
      pieces.push(open);
      open = '';
    }
    open = open === '' ? part : `${open}${glue}${part}`;
  }
  return open === '' ? pieces : [...pieces, open];
}

/** The sentences of a line, each with what stands before it when it is not the first of a piece. */
function partsOf(line: string): readonly { readonly glue: string; readonly part: string }[] {
  return line
    .split(/(?<=[.!?:;])\s+/)
    .flatMap(cutWords)
    .map((part, at) => ({ glue: at === 0 ? '\n' : ' ', part }));
}

/** A sentence without end, such as a line of a table of data, is cut between words. */
function cutWords(sentence: string): readonly string[] {
  if (wordsOf(sentence) <= WORDS.most) return [sentence];
  const pieces: string[] = [];
  let open = '';
  for (const word of sentence.split(/\s+/)) {
    if (open !== '' && wordsOf(open) + wordsOf(word) > WORDS.aim) {
      pieces.push(open);
      open = '';
    }
    open = open === '' ? word.slice(0, 200) : `${open} ${word.slice(0, 200)}`;
  }
  return [...pieces, open];
}

/** Words, or what a text without spaces would have: a model pays by the character there. */
function wordsOf(text: string): number {
  return Math.max(text.split(/\s+/).length, Math.ceil(text.length / 8));
}

function lettersOf(text: string): number {
  return text.match(/\p{L}/gu)?.length ?? 0;
}
