// HTML inside Markdown into what a browser would show of it: the text between tags, with alternative texts of images.
// What CommonMark does not take for a tag is text, and so is a tag of no language: List<Integer>, <your name>. A comment or a script that is never closed is text as well, because
// what stands behind it may be the document.

import { decodeNamedCharacterReference } from 'decode-named-character-reference';
import type { ReadingNotes } from '@shoal/worker/files/reading-notes';

export type HtmlPart =
  | { readonly kind: 'text'; readonly text: string }
  /** `h1` to `h6`, where it begins and where it ends. */
  | { readonly kind: 'heading'; readonly level: number; readonly isEnd: boolean }
  /** A script or a style sheet; inside a paragraph its text is Markdown's business. */
  | { readonly kind: 'hidden'; readonly isEnd: boolean };

export interface HtmlOptions {
  readonly notes: ReadingNotes;
  readonly hasImages: boolean;
}

/** The tag, closing or opening, of CommonMark: https://spec.commonmark.org/0.31.2/#raw-html */
const TAG =
  /<(\/?)([A-Za-z][A-Za-z0-9-]*)((?:\s+[A-Za-z_:][\w.:-]*(?:\s*=\s*(?:[^\s"'=<>`]+|'[^']*'|"[^"]*"))?)*)\s*\/?>/y;
/** Where a browser begins a line or a cell; other tags stand inside words: H<sub>2</sub>O. */
const BREAKS =
  /^(address|article|aside|blockquote|br|body|caption|center|dd|details|dialog|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]|head|header|hr|html|legend|li|main|menu|nav|ol|optgroup|option|p|pre|section|summary|table|tbody|tfoot|thead|title|tr|ul)$/i;
const CELLS = /^t[dh]$/i;

/** Elements of HTML, with what is obsolete, and of pictures and formulas inside it. */
const ELEMENTS = new Set(
  `a abbr acronym address applet area article aside audio b base basefont bdi bdo bgsound big blink blockquote body br
  button canvas caption center cite code col colgroup data datalist dd del details dfn dialog dir div dl dt em embed
  fieldset figcaption figure font footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html i iframe img
  input ins kbd label legend li link main map mark marquee menu meta meter nav nobr noframes noscript object ol optgroup
  option output p param picture plaintext pre progress q rb rp rt rtc ruby s samp script search section select slot
  small source span strike strong style sub summary sup table tbody td template textarea tfoot th thead time title tr
  track tt u ul var video wbr xmp svg circle clippath defs desc ellipse filter foreignobject g line lineargradient marker
  mask path pattern polygon polyline radialgradient rect stop symbol text tspan use math mfrac mi mn mo mrow mroot msqrt
  msub msubsup msup mtable mtd mtext mtr munder mover munderover mspace mstyle semantics annotation`.split(/\s+/),
);

/** `<Object>` and `<T>` are types of somebody's program, and `<BR>` is old HTML. */
function isElement(name: string, attributes: string): boolean {
  if (!ELEMENTS.has(name.toLowerCase())) return false;
  if (name === name.toLowerCase() || /^(clipPath|foreignObject|(linear|radial)Gradient)$/.test(name)) return true;
  return name === name.toUpperCase() && (name.length > 1 || attributes.trim() !== '');
}

/** What stands between an opening and its closing, and is not shown. */
const HIDDEN = [
  { open: /^<!--/, close: '-->', least: 4 },
  { open: /^<\?/, close: '?>', least: 2 },
  { open: /^<!\[CDATA\[/, close: ']]>', least: 9 },
  { open: /^<![A-Za-z]/, close: '>', least: 2 },
] as const;

/** The parts of a piece of HTML that Markdown takes as it is: a block, or one tag of a paragraph. */
export function* htmlParts(html: string, options: HtmlOptions): Generator<HtmlPart> {
  const unclosed = new Set<string>();
  const find = (close: string, from: number): number => {
    if (unclosed.has(close)) return -1;
    const at = html.indexOf(close, from);
    if (at === -1) unclosed.add(close); // nothing further on will find it either
    return at;
  };
  let textFrom = 0;
  for (let at = html.indexOf('<'); at !== -1; at = html.indexOf('<', at)) {
    const found = hiddenAt(html, at, find) ?? tagAt(html, at, find, options);
    if (found === undefined) {
      at++;
      continue;
    }
    if (at > textFrom) yield { kind: 'text', text: decodeReferences(html.slice(textFrom, at)) };
    if (found.isComment) options.notes.add('htmlComments');
    yield* found.parts;
    at = textFrom = found.end;
  }
  if (textFrom < html.length) yield { kind: 'text', text: decodeReferences(html.slice(textFrom)) };
}

interface FoundHtml {
  readonly end: number;
  readonly parts: readonly HtmlPart[];
  readonly isComment: boolean;
}

type Find = (close: string, from: number) => number;

function hiddenAt(html: string, at: number, find: Find): FoundHtml | undefined {
  const kind = HIDDEN.find(({ open }) => open.test(html.slice(at, at + 9)));
  if (kind === undefined) return undefined;
  const short = kind.close === '-->' ? /^<!--(>|->)/.exec(html.slice(at, at + 6)) : null;
  if (short !== null) return { end: at + short[0].length, parts: [], isComment: true };
  const close = find(kind.close, at + kind.least);
  return close === -1 ? undefined : { end: close + kind.close.length, parts: [], isComment: true };
}

function tagAt(html: string, at: number, find: Find, { notes, hasImages }: HtmlOptions): FoundHtml | undefined {
  TAG.lastIndex = at;
  const tag = TAG.exec(html);
  if (tag === null) return undefined;
  const [whole, slash, name, attributes = ''] = tag as unknown as [string, string, string, string | undefined];
  if (!isElement(name, attributes)) return undefined;
  const end = at + whole.length;
  const found = (...parts: readonly HtmlPart[]): FoundHtml => ({ end, parts, isComment: false });
  const isEnd = slash === '/';
  if (/^(script|style)$/i.test(name)) return hiddenElement(html, { name, end, isEnd }, find, notes);
  if (/^img$/i.test(name)) {
    if (!hasImages) return found();
    const alt = altOf(attributes);
    if (alt.trim() === '') notes.add('imagesWithoutText');
    return found({ kind: 'text', text: alt });
  }
  const level = /^h([1-6])$/i.exec(name)?.[1];
  if (level !== undefined) return found({ kind: 'heading', level: Number(level), isEnd });
  if (BREAKS.test(name)) return found({ kind: 'text', text: '\n' });
  return CELLS.test(name) ? found({ kind: 'text', text: isEnd ? ' ' : '' }) : found();
}

function hiddenElement(
  html: string,
  { name, end, isEnd }: { name: string; end: number; isEnd: boolean },
  find: Find,
  notes: ReadingNotes,
): FoundHtml {
  // a tag of a paragraph stands alone, and what follows it is told by the one that closes
  if (isEnd || end === html.length) return { end, parts: [{ kind: 'hidden', isEnd }], isComment: false };
  const close = find(`</${name}`, end);
  const closeEnd = close === -1 ? -1 : html.indexOf('>', close);
  if (closeEnd === -1) return { end, parts: [], isComment: false };
  notes.add('scripts');
  return { end: closeEnd + 1, parts: [], isComment: false };
}

function altOf(attributes: string): string {
  const [, plain, single, double] = /\salt\s*=\s*(?:([^\s"'=<>`]+)|'([^']*)'|"([^"]*)")/i.exec(attributes) ?? [];
  return decodeReferences(plain ?? single ?? double ?? '');
}

/** `&amp;`, `&#233;`, `&#xE9;`; what is no reference stays as it is. */
function decodeReferences(text: string): string {
  return text.replaceAll(
    /&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z][a-z0-9]{1,31}));/gi,
    (whole, ...groups: unknown[]) => {
      const [decimal, hexadecimal, name] = groups as (string | undefined)[];
      if (name !== undefined) return decodeNamedCharacterReference(name) || whole;
      const code = decimal === undefined ? Number.parseInt(hexadecimal!, 16) : Number(decimal);
      return code === 0 || code > 0x10_ffff || (code >= 0xd8_00 && code <= 0xdf_ff)
        ? '\uFFFD'
        : String.fromCodePoint(code);
    },
  );
}
