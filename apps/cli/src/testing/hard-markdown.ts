// Markdown that parsers are known to take long for, or to run out of stack at. Each is as long as it is asked to be;
// none means anything.

type Make = (length: number) => string;

const runOf =
  (piece: string): Make =>
  (length) =>
    piece.repeat(Math.ceil(length / piece.length)).slice(0, length);

const behind =
  (begin: string, piece: string): Make =>
  (length) =>
    begin + runOf(piece)(length);

const nested =
  (open: string, close: string): Make =>
  (length) => {
    const levels = Math.floor(length / (open.length + close.length));
    return `${open.repeat(levels)}a${close.repeat(levels)}`;
  };

const numbered =
  (line: (at: number) => string): Make =>
  (length) => {
    let text = '';
    for (let at = 0; text.length < length; at++) text += line(at);
    return text;
  };

export const HARD_MARKDOWN: Readonly<Record<string, Make>> = {
  'a list that looks like rules': runOf('[i- - -'),
  'rules that are lists': runOf('- - - a\n'),
  'quotes in quotes': runOf('> '),
  'quotes, each line one deeper': numbered((at) => `${'> '.repeat(at)}a\n`),
  'quotes with lines that lack their mark': runOf('> a\nb\n'),
  'items with lines that are not indented': runOf('- a\nb\n'),
  'lists in lists': runOf('* '),
  'lists, each line one deeper': numbered((at) => `${'  '.repeat(at)}- a\n`),
  'numbered lists in lists': runOf('1. '),
  'empty items': runOf('-\n'),
  'a list in a quote': runOf('> - a\n'),
  'open brackets': runOf('['),
  'an open bracket before many words': behind('![a ', 'e\u0301 '),
  'images that never end': runOf('![['),
  'links that never end': runOf('[a]('),
  'brackets in brackets': nested('[', ']'),
  'images in images': nested('![', '](u)'),
  'brackets, each in a line of one paragraph': runOf('[a\n'),
  'definitions of links': numbered((at) => `[a${at}]: x\n`),
  'references and their definitions': numbered((at) => `[a${at}]: x\n\n[a${at}] `),
  'a title that never ends': runOf('[a]: x "\n'),
  'definitions of footnotes': numbered((at) => `[^a${at}]: x\n`),
  'footnotes in footnotes': runOf('[^a]: '),
  'calls of footnotes': runOf('[^a'),
  'one run of backticks': runOf('`'),
  'runs of backticks, each one longer': numbered((at) => `${'`'.repeat(at + 1)} `),
  'comments that never end': runOf('a <!-- '),
  'instructions that never end': runOf('a<?'),
  'tags that never end': behind('x', '<a b='),
  ampersands: runOf('&'),
  'references that never end': runOf('&#x'),
  pipes: runOf('| a '),
  'a wide table': (length) =>
    [runOf('a|'), runOf('-|'), runOf('b|')].map((row) => row(2 * Math.floor(length / 6))).join('\n'),
  'a long table': behind('| a | b |\n|---|---|\n', '| c | d |\n'),
  'tables, one after the other': runOf('a|b\n-|-\n'),
  'emphasis that opens and never closes': runOf('*a **a '),
  'emphasis of two kinds': runOf('*a_ '),
  'emphasis in lines that look like a table': behind('-\n', '*a_ \n'),
  'emphasis in lines that look like items': behind('a\n', '2. *a_ \n'),
  'emphasis inside of words': runOf('a**b'),
  'struck through, perhaps': runOf('~a '),
  'headings with a line under them': runOf('a\n=\n'),
  headings: runOf('# a\n'),
  'a heading that begins late': (length) => `${runOf('a\n')(length)}---\n`,
  'a paragraph of many lines': runOf('a\n'),
  'spaces in a word': (length) => `a${' '.repeat(length)}b`,
  'blank lines in an item': (length) => `- a\n${'\n'.repeat(length)}  b`,
  'code that never ends': behind('```\n', 'a\n'),
  fences: runOf('```a\n'),
  addresses: runOf('http://a.b '),
  'an address of brackets': behind('http://a.b', ')'),
  'mail that leads nowhere': runOf('a@b.'),
  'a word with many marks': behind('e', '\u0301'),
  'front matter of brackets': (length) => `---\na: ${'['.repeat(length)}\n---\n`,
  'front matter of maps': (length) => `---\n${runOf('{a: ')(length)}\n---\n`,
};
