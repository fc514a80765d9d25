// The functions of a C++ or CUDA file with their length, found by counting braces: whatever has parameters and a body
// in a namespace, a class or at the top. Good enough for code that clang-format has laid out; not a parser.

export interface NativeFunction {
  readonly name: string;
  readonly lines: number;
}

/** What an open brace belongs to. Functions are looked for only where all around is `room`. */
type Brace = 'room' | 'function' | 'value';

const ROOM =
  /^(inline\s+)?namespace\b|^extern\s+"[^"]*"$|^(template\s*<.*>\s*)?(typedef\s+)?(class|struct|union|enum)\b/s;

export function nativeFunctions(text: string): NativeFunction[] {
  const code = blanked(text);
  const found: NativeFunction[] = [];
  const open: { readonly brace: Brace; readonly head: string; readonly line: number }[] = [];
  let head = '';
  let headLine = 1;
  let line = 1;
  for (const character of code) {
    if (character === '\n') line++;
    const inRoom = open.every(({ brace }) => brace === 'room');
    if (character === '{') {
      const brace = inRoom ? braceAfter(head.trim()) : 'value';
      open.push({ brace, head: head.trim(), line: headLine });
      if (brace !== 'value') head = '';
    } else if (character === '}') {
      const closed = open.pop();
      if (closed?.brace === 'function') found.push({ name: functionName(closed.head), lines: line - closed.line + 1 });
      if (closed?.brace !== 'value') head = '';
    } else if (character === ';' && inRoom) head = '';
    else if (inRoom) {
      if (head.trim() === '') headLine = line;
      head += character;
    }
  }
  return found;
}

function braceAfter(head: string): Brace {
  if (ROOM.test(head) && !/\)\s*(const|noexcept|override)?$/.test(head)) return 'room';
  const afterParameters = head.lastIndexOf(')');
  if (!head.includes('(') || afterParameters < 0) return 'value';
  const isMemberInitializer = /[^:]:[^:]/.test(head.slice(head.indexOf(')'))) && /[\w>]$/.test(head);
  return isMemberInitializer || /[=,(]$/.test(head) ? 'value' : 'function';
}

function functionName(head: string): string {
  const beforeParameters = head.replace(/^template\s*<[^>]*>\s*/, '').replaceAll(/__\w+__\s*(\([^)]*\))?/g, '');
  return /([~\w:]+|operator\S+)\s*\(/.exec(beforeParameters)?.[1] ?? '(unnamed)';
}

/** The text with comments, strings, characters and lines of the preprocessor replaced by blanks. */
function blanked(text: string): string {
  const comments = /\/\/[^\n]*|\/\*[\s\S]*?\*\//;
  const strings = /R"(\w*)\([\s\S]*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'/;
  const directives = /^[ \t]*#(?:\\\n|[^\n])*/m;
  const hidden = new RegExp([comments, strings, directives].map(({ source }) => source).join('|'), 'gm');
  return text.replaceAll(hidden, (match) =>
    match.startsWith('"C') ? match : match.replaceAll(/[^\n]/g, match.startsWith("'") ? '0' : ' '),
  );
}
