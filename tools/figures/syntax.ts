// A TypeScript file as a syntax tree, and how to walk it. The parser is Rolldown's, which the test runner brings
// anyway, so that nothing more is installed; the compiler of the workspace (TypeScript 7) has no parser for others.

import { parseSync } from 'rolldown/utils';

/** A node in the notation of ESTree with types. */
export interface Node {
  readonly type: string;
  readonly start: number;
  readonly end: number;
  readonly [key: string]: unknown;
}

export interface Syntax {
  readonly program: Node;
  readonly text: string;
  /** The text with every comment replaced by spaces. */
  readonly code: string;
}

/** Throws when the file cannot be parsed. */
export function parse(path: string, text: string): Syntax {
  const { program, comments, errors } = parseSync(path, text, { lang: 'ts', astType: 'ts' });
  if (errors.length > 0) throw new Error(`${path} cannot be parsed: ${errors[0]!.message}`);
  let code = '';
  let at = 0;
  for (const { start, end } of comments) {
    code += text.slice(at, start) + text.slice(start, end).replaceAll(/[^\n]/g, ' ');
    at = end;
  }
  return { program: program as unknown as Node, text, code: code + text.slice(at) };
}

/** Visits a node and what is below it, parents first. Nothing below a node is visited where `enter` returns false. */
export function walk(node: Node, enter: (node: Node, parent: Node | undefined) => boolean | void): void {
  visit(node, undefined, enter);
}

function visit(node: Node, parent: Node | undefined, enter: Parameters<typeof walk>[1]): void {
  if (enter(node, parent) === false) return;
  for (const value of Object.values(node))
    for (const child of Array.isArray(value) ? value : [value]) if (isNode(child)) visit(child, node, enter);
}

export function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && typeof (value as { type?: unknown }).type === 'string';
}

/** Lines from the first to the last of a node. */
export function linesOf({ text }: Syntax, { start, end }: Node): number {
  return text.slice(start, end).split('\n').length;
}

/** Lines of a node that hold more than blanks and comments. */
export function codeLinesOf({ code }: Syntax, { start, end }: Node): number {
  return code
    .slice(start, end)
    .split('\n')
    .filter((line) => line.trim() !== '').length;
}

/** The name of an identifier, a private name or a key of an object; undefined for what is computed. */
export function nameOf(key: unknown): string | undefined {
  if (!isNode(key)) return undefined;
  if (typeof key['name'] === 'string') return key['name'];
  return typeof key['value'] === 'string' ? key['value'] : undefined;
}
