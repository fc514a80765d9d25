// What one TypeScript file says about itself: its functions with their length and branches, its classes with their
// fields, what it imports, what it exports, and how much Lua it holds in strings.

import { codeLinesOf, isNode, linesOf, nameOf, parse, walk, type Node, type Syntax } from './syntax.ts';
import type { SourceFile } from './source-tree.ts';

export interface FunctionFigures {
  readonly name: string;
  readonly lines: number;
  readonly cyclomatic: number;
}

export interface ClassFigures {
  readonly name: string;
  /** Without blank lines and comments. */
  readonly lines: number;
  /** Instance properties that are not readonly, private ones included. */
  readonly changeable: number;
}

export interface FileFigures {
  readonly path: string;
  readonly lines: number;
  readonly functions: readonly FunctionFigures[];
  readonly classes: readonly ClassFigures[];
  /** Relative specifiers, those of types included. */
  readonly imports: readonly string[];
  readonly exports: readonly string[];
  /** Template literals that call the server from Lua. */
  readonly luaStrings: number;
}

const FUNCTIONS = new Set(['FunctionDeclaration', 'FunctionExpression', 'ArrowFunctionExpression']);
const BRANCHES = new Set([
  'IfStatement',
  'ConditionalExpression',
  'ForStatement',
  'ForInStatement',
  'ForOfStatement',
  'WhileStatement',
  'DoWhileStatement',
  'CatchClause',
  'LogicalExpression',
]);
const LOGICAL_ASSIGNMENTS = new Set(['&&=', '||=', '??=']);

export function figuresOf({ path, text }: SourceFile): FileFigures {
  const syntax = parse(path, text);
  const found = {
    functions: [] as FunctionFigures[],
    classes: [] as ClassFigures[],
    imports: new Set<string>(),
    exports: new Set<string>(),
    luaStrings: 0,
  };
  const classNames = new Map<Node, string>(); // by the body of the class
  walk(syntax.program, (node, parent) => {
    const specifier = specifierOf(node);
    if (specifier?.startsWith('.') === true) found.imports.add(specifier);
    if (node.type === 'TemplateLiteral' && text.slice(node.start, node.end).includes('redis.call')) found.luaStrings++;
    for (const name of exportedBy(node)) found.exports.add(name);
    const figures = classFigures(syntax, node);
    if (figures !== undefined) {
      found.classes.push(figures);
      classNames.set(node['body'] as Node, figures.name);
    }
    const owner = classOwner(node, parent, classNames);
    const made = functionOf(node);
    if (made === undefined) return;
    const name = owner === undefined ? made.name : `${owner}.${made.name}`;
    found.functions.push({ name, lines: linesOf(syntax, made.body), cyclomatic: cyclomatic(made.body) });
  });
  return {
    path,
    lines: text.split('\n').length - 1,
    ...found,
    imports: [...found.imports],
    exports: [...found.exports],
  };
}

/** One more than the places where a function can go two ways, those of unnamed functions inside it included. */
function cyclomatic(body: Node): number {
  let count = 1;
  walk(body, (node) => {
    if (node !== body && functionOf(node) !== undefined) return false; // it is counted by itself
    if (BRANCHES.has(node.type)) count++;
    else if (node.type === 'SwitchCase' && node['test'] !== null) count++;
    else if (node.type === 'AssignmentExpression' && LOGICAL_ASSIGNMENTS.has(node['operator'] as string)) count++;
    return true;
  });
  return count;
}

/** A function that has a name: declared, a method, or the value of a variable or of a property. */
function functionOf(node: Node): { readonly name: string; readonly body: Node } | undefined {
  if (node.type === 'FunctionDeclaration') return isNode(node['body']) ? named(node['id'], node) : undefined;
  if (node.type === 'VariableDeclarator') return ofValue(node['id'], node['init'], node);
  if (['MethodDefinition', 'PropertyDefinition', 'Property'].includes(node.type))
    return ofValue(node['key'], node['value'], node);
  return undefined;
}

function ofValue(key: unknown, value: unknown, whole: Node): ReturnType<typeof functionOf> {
  return isNode(value) && FUNCTIONS.has(value.type) && isNode(value['body']) ? named(key, whole) : undefined;
}

function named(key: unknown, body: Node): ReturnType<typeof functionOf> {
  return { name: nameOf(key) ?? '(computed)', body };
}

function classOwner(node: Node, parent: Node | undefined, names: ReadonlyMap<Node, string>): string | undefined {
  const isMember = node.type === 'MethodDefinition' || node.type === 'PropertyDefinition';
  return isMember && parent !== undefined ? names.get(parent) : undefined;
}

function classFigures(syntax: Syntax, node: Node): ClassFigures | undefined {
  if (node.type !== 'ClassDeclaration' && node.type !== 'ClassExpression') return undefined;
  const members = (node['body'] as Node)['body'] as Node[];
  const changeable = members.filter(
    (member) =>
      member.type === 'PropertyDefinition' &&
      member['static'] !== true &&
      member['readonly'] !== true &&
      member['declare'] !== true,
  );
  return { name: nameOf(node['id']) ?? '(unnamed)', lines: codeLinesOf(syntax, node), changeable: changeable.length };
}

/** What a node imports: by a declaration, of types alone too, as a type in its place, or while it runs. */
function specifierOf(node: Node): string | undefined {
  switch (node.type) {
    case 'ImportDeclaration':
    case 'ExportNamedDeclaration':
    case 'ExportAllDeclaration':
    case 'ImportExpression':
    case 'TSImportType':
      return nameOf(node['source']) ?? nameOf(node['argument']);
    default:
      return undefined;
  }
}

function exportedBy(node: Node): string[] {
  if (node.type !== 'ExportNamedDeclaration') return [];
  const specifiers = (node['specifiers'] as Node[]).map((specifier) => nameOf(specifier['exported']));
  const { declaration } = node;
  const declared = isNode(declaration)
    ? [declaration['id'], ...((declaration['declarations'] as Node[] | undefined) ?? []).map((one) => one['id'])]
    : [];
  return [...specifiers, ...declared.map(nameOf)].filter((name) => name !== undefined);
}
