// Front matter: data about a document that stands before it and is no text of it. It is one only where it cannot be
// anything else: a rule and a paragraph at the top of a document look alike, and are text.

import { isMap, parseDocument } from 'yaml';

/** Longer ones are documents between two rules. */
const MOST_CHARACTERS = 64 * 1024;

/** Where the document begins behind its front matter; 0: there is none. */
export function frontMatterEnd(document: string): number {
  const fence = /^(---|\+\+\+)[ \t]*\r?\n(?![ \t]*\r?\n)/.exec(document);
  if (fence === null) return 0;
  const isYaml = fence[1] === '---';
  const closing = isYaml ? /^(?:---|\.\.\.)[ \t]*(?:\r?\n|$)/gm : /^\+\+\+[ \t]*(?:\r?\n|$)/gm;
  closing.lastIndex = fence[0].length;
  const end = closing.exec(document.slice(0, MOST_CHARACTERS));
  if (end === null) return 0;
  const data = document.slice(fence[0].length, end.index);
  return (isYaml ? isYamlMapping(data) : isToml(data)) ? end.index + end[0].length : 0;
}

function isYamlMapping(data: string): boolean {
  const { errors, contents } = parseDocument(data, { logLevel: 'silent', uniqueKeys: false });
  return errors.length === 0 && isMap(contents) && contents.items.length > 0;
}

/** Lines of `key = value` and `[table]`, with comments, and values in brackets or three quotes over several lines. */
function isToml(data: string): boolean {
  let open: RegExp | undefined;
  let keys = 0;
  for (const line of data.split(/\r?\n/).map((one) => one.trim())) {
    if (open !== undefined) {
      if (open.test(line)) open = undefined;
      continue;
    }
    if (line === '' || line.startsWith('#') || /^\[{1,2}[^\]]+\]{1,2}$/.test(line)) continue;
    const value = /^[\w."'-]+\s*=\s*(\S.*)$/.exec(line)?.[1];
    if (value === undefined) return false;
    keys++;
    const quotes = /^("""|''')/.exec(value)?.[1];
    if (quotes !== undefined) open = value.indexOf(quotes, 3) === -1 ? new RegExp(`${quotes}$`) : undefined;
    else if (value.startsWith('[') && !value.endsWith(']')) open = /\]$/;
  }
  return keys > 0 && open === undefined;
}
