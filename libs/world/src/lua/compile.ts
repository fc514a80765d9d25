// Compiles a script to JavaScript, once: a schedule of the simulation runs thousands of scripts, and an interpreter would
// be most of its time. What the compiler does not know is refused by name, before anything runs.
//
// Each local of Lua is a `let` with a number behind its name, each function an arrow function, each block a block.
// Globals are known here: a script cannot make any, so a name is a library's function, KEYS, ARGV, or a mistake.
// The line of a statement with a call is kept in the host, for what errors say.

import luaparse, { type Expression, type Identifier, type Statement } from 'luaparse';
import { CONSTANTS, FUNCTIONS } from './base-library.ts';
import { RUNTIME } from './runtime.ts';
import { LuaTable, NotModelled, type LuaFunction, type LuaResult } from './values.ts';

/** Who runs a script: what `redis.…` is in it. */
export interface ScriptHost {
  /** Of the statement with a call that began last. */
  line: number;
  /** Of loops that nothing but the script bounds, so far. */
  turns: number;
  readonly call: LuaFunction;
  readonly pcall: LuaFunction;
  readonly others: Readonly<Record<string, LuaFunction>>;
}

export type CompiledScript = (host: ScriptHost, keys: LuaTable, args: LuaTable) => LuaResult;

/** What `redis.` and `server.` have beside call and pcall. */
export const HOST_FUNCTIONS = ['error_reply', 'status_reply', 'sha1hex', 'log', 'math_random'];
const HOST_CONSTANTS: Readonly<Record<string, number>> = {
  LOG_DEBUG: 0,
  LOG_VERBOSE: 1,
  LOG_NOTICE: 2,
  LOG_WARNING: 3,
};

/** Throws NotModelled for what is not known, SyntaxError with luaparse's words for what is no Lua. */
export function compileScript(text: string): CompiledScript {
  const source = text.startsWith('#!') ? `--${text.slice(2)}` : text;
  const chunk = luaparse.parse(source, {
    luaVersion: '5.1',
    comments: false,
    locations: true,
    ranges: true,
    encodingMode: 'pseudo-latin1',
  });
  const compiler = new Compiler(source);
  const body = compiler.chunk(chunk.body);
  // oxlint-disable-next-line typescript/no-implied-eval, no-new-func -- this is the compiler
  const make = new Function('R', body) as (runtime: typeof RUNTIME) => CompiledScript;
  return make(RUNTIME);
}

/** At the head of a loop that nothing but the script bounds. */
const TURN = 'if (++H.turns > MOST_TURNS) endless();\n';

/** What a piece of JavaScript is known to give. `many`: what a call answers, one value or an array of them. */
type Kind = 'any' | 'number' | 'string' | 'boolean' | 'many';

interface Piece {
  readonly js: string;
  readonly kind: Kind;
}

class Compiler {
  readonly #source: string;
  readonly #scopes: Map<string, string>[] = [];
  readonly #constants = new Map<string, string>();
  #names = 0;
  /** Temporaries of the function that is being compiled. */
  #temporaries: string[] = [];
  #varargs: string | undefined;

  constructor(source: string) {
    this.#source = source;
  }

  chunk(body: readonly Statement[]): string {
    const inner = this.#body(body);
    const names = Object.keys(RUNTIME).join(', ');
    const constants = [...this.#constants].map(([name, js]) => `const ${js} = FUNCTIONS[${JSON.stringify(name)}];`);
    return `'use strict'; const { ${names} } = R; ${constants.join('\n')}\nreturn (H, KEYS, ARGV) => {\n${inner}\n};`;
  }

  /** Of a function: its temporaries, its statements, and that it answers with nothing at its end. */
  #body(statements: readonly Statement[]): string {
    const outer = this.#temporaries;
    this.#temporaries = [];
    const inner = this.#block(statements);
    const declared = this.#temporaries.length > 0 ? `let ${this.#temporaries.join(', ')};\n` : '';
    this.#temporaries = outer;
    return `${declared}${inner}\nreturn NONE;`;
  }

  #block(statements: readonly Statement[], names: ReadonlyMap<string, string> = new Map()): string {
    this.#scopes.push(new Map(names));
    const lines = statements.map((statement) => this.#statement(statement));
    this.#scopes.pop();
    return lines.join('\n');
  }

  #statement(node: Statement): string {
    switch (node.type) {
      case 'LocalStatement':
        return this.#lined(node, this.#local(node.variables, node.init));
      case 'AssignmentStatement':
        return this.#lined(node, this.#assignment(node.variables, node.init));
      case 'CallStatement':
        return this.#lined(node, `${this.#expression(node.expression).js};`);
      case 'ReturnStatement':
        return this.#lined(node, `return ${this.#returned(node.arguments)};`);
      case 'DoStatement':
        return `{\n${this.#block(node.body)}\n}`;
      case 'WhileStatement':
        return `while (${this.#linedCondition(node.condition)}) {\n${TURN}${this.#block(node.body)}\n}`;
      case 'RepeatStatement': {
        this.#scopes.push(new Map());
        const lines = node.body.map((statement) => this.#statement(statement));
        const until = this.#condition(node.condition);
        this.#scopes.pop();
        return `for (;;) {\n${TURN}${lines.join('\n')}\nif (${until}) break;\n}`;
      }
      case 'IfStatement':
        return node.clauses
          .map((clause) => {
            const block = `{\n${this.#block(clause.body)}\n}`;
            if (clause.type === 'ElseClause') return block;
            return `if (${this.#linedCondition(clause.condition)}) ${block}`;
          })
          .join(' else ');
      case 'ForNumericStatement':
        return this.#lined(node, this.#forNumeric(node));
      case 'ForGenericStatement':
        return this.#lined(node, this.#forGeneric(node));
      case 'BreakStatement':
        return 'break;';
      case 'FunctionDeclaration': {
        const name = node.identifier;
        if (name === null || name.type !== 'Identifier') throw this.#unknown(node, 'a function that is a field');
        if (!node.isLocal) {
          const known = this.#find(name.name);
          if (known === undefined) return 'readOnly();';
          return `${known} = ${this.#function(node.parameters, node.body)};`;
        }
        const js = this.#declare(name.name);
        return `let ${js};\n${js} = ${this.#function(node.parameters, node.body)};`;
      }
      default:
        throw this.#unknown(node, node.type);
    }
  }

  /** A statement that calls something notes its line. */
  #lined(node: Statement, js: string): string {
    return /\(/.test(js) ? `H.line = ${node.loc?.start.line ?? 0}; ${js}` : js;
  }

  #linedCondition(node: Expression): string {
    const js = this.#condition(node);
    return /\(/.test(js) ? `H.line = ${node.loc?.start.line ?? 0}, ${js}` : js;
  }

  #local(variables: readonly Identifier[], init: readonly Expression[]): string {
    const values = this.#values(init, variables.length);
    const names = variables.map(({ name }) => this.#declare(name));
    const declared = names.map((name, at) => `${name} = ${values.each[at] ?? 'undefined'}`).join(', ');
    return `${values.before}let ${declared};${values.after}`;
  }

  #assignment(variables: readonly Expression[], init: readonly Expression[]): string {
    if (variables.length === 1 && init.length === 1) return `${this.#assign(variables[0]!, this.#one(init[0]!))};`;
    const values = this.#values(init, variables.length);
    const held = variables.map((_, at) => {
      const name = this.#temporary();
      return [name, `${name} = ${values.each[at] ?? 'undefined'}`] as const;
    });
    const set = variables.map((variable, at) => this.#assign(variable, held[at]![0]));
    return `${values.before}${held.map(([, js]) => `${js};`).join(' ')}${values.after} ${set.map((js) => `${js};`).join(' ')}`;
  }

  #assign(target: Expression, value: string): string {
    if (target.type === 'Identifier') {
      const name = this.#find(target.name);
      return name === undefined ? `(${value}, readOnly())` : `${name} = ${value}`;
    }
    if (target.type !== 'IndexExpression' && target.type !== 'MemberExpression')
      throw this.#unknown(target, `an assignment to ${target.type}`);
    const key = target.type === 'IndexExpression' ? this.#one(target.index) : JSON.stringify(target.identifier.name);
    return `setIndex(${this.#one(target.base)}, ${key}, ${value}, ${this.#described(target.base)})`;
  }

  /** JavaScript for `count` values of a list of expressions; what must be computed before and after them beside. */
  #values(init: readonly Expression[], count: number): { before: string; each: string[]; after: string } {
    const last = init.at(-1);
    if (last !== undefined && init.length < count && this.#isMany(last, false)) {
      const list = this.#temporary();
      const each = init.slice(0, -1).map((node) => this.#one(node));
      // In order: what stands before the call is computed before it.
      const held = each.map((js) => {
        const name = this.#temporary();
        return [name, `${name} = ${js}; `] as const;
      });
      const before = `${held.map(([, js]) => js).join('')}${list} = all(${this.#expression(last).js}); `;
      return {
        before,
        each: [
          ...held.map(([name]) => name),
          ...Array.from({ length: count - held.length }, (_, at) => `${list}[${at}]`),
        ],
        after: '',
      };
    }
    const each = init.slice(0, count).map((node) => this.#one(node));
    const after = init
      .slice(count)
      .map((node) => ` ${this.#one(node)};`)
      .join('');
    return { before: '', each, after };
  }

  #returned(nodes: readonly Expression[]): string {
    if (nodes.length === 0) return 'NONE';
    const [only] = nodes;
    if (nodes.length === 1) return this.#isMany(only!, false) ? this.#expression(only!).js : this.#one(only!);
    return `[${this.#list(nodes, false)}]`;
  }

  /** Expressions as a list of JavaScript's, the last with all that it answers. */
  #list(nodes: readonly Expression[], areArguments: boolean): string {
    return nodes
      .map((node, at) => {
        const isLast = at === nodes.length - 1;
        if (!isLast || !this.#isMany(node, areArguments && at === 0)) return this.#one(node);
        if (node.type === 'VarargLiteral') return `...${this.#varargName(node)}`;
        return `...all(${this.#expression(node).js})`;
      })
      .join(', ');
  }

  /**
   * Whether a node at the end of a list gives all its values: a call or `...`, and not in parentheses, which luaparse
   * forgets. The parenthesis of the call whose first argument this is does not count.
   */
  #isMany(node: Expression, isFirstArgument: boolean): boolean {
    const isCall = /^(Call|StringCall|TableCall)Expression$/.test(node.type);
    if (!isCall && node.type !== 'VarargLiteral') return false;
    const before = this.#source.slice(0, (node as unknown as { range: [number, number] }).range[0]).trimEnd();
    const isEnclosed = isFirstArgument ? /\(\s*\($/.test(before) : before.endsWith('(');
    if (!isEnclosed) return true;
    const base = 'base' in node ? node.base.type : '';
    if (isCall && base !== 'Identifier' && base !== 'MemberExpression')
      throw this.#unknown(node, 'a call at the end of a list whose function stands in parentheses');
    return false;
  }

  #forNumeric(node: Extract<Statement, { type: 'ForNumericStatement' }>): string {
    const [start, end] = [this.#one(node.start), this.#one(node.end)];
    const by = node.step === null ? '1' : this.#one(node.step);
    const [at, to, step, name] = [
      this.#fresh('i'),
      this.#fresh('to'),
      this.#fresh('by'),
      this.#fresh(node.variable.name),
    ];
    const test = node.step === null ? `${at} <= ${to}` : `${step} > 0 ? ${at} <= ${to} : ${at} >= ${to}`;
    const block = this.#block(node.body, new Map([[node.variable.name, name]]));
    return (
      `for (let ${at} = bound(${start}, 'initial value'), ${to} = bound(${end}, 'limit'), ${step} = bound(${by}, 'step'); ` +
      `${test}; ${at} += ${step}) {\n${TURN}let ${name} = ${at};\n${block}\n}`
    );
  }

  #forGeneric(node: Extract<Statement, { type: 'ForGenericStatement' }>): string {
    const [only] = node.iterators;
    const names = node.variables.map(({ name }) => [name, this.#fresh(name)] as const);
    const [first = 'k', second = this.#fresh('v')] = names.map(([, js]) => js);
    const call = node.iterators.length === 1 ? this.#libraryCall(only!) : undefined;
    if (call !== undefined && names.length <= 2 && (call.name === 'ipairs' || call.name === 'pairs')) {
      const [table, at] = [this.#fresh('t'), this.#fresh('i')];
      const begun = `const ${table} = pairsOf(${call.args.length === 0 ? 'undefined' : this.#one(call.args[0]!)}, '${call.name}');`;
      const block = this.#block(node.body, new Map(names));
      if (call.name === 'ipairs')
        return `{ ${begun} for (let ${at} = 1; ; ${at}++) {\nlet ${first} = ${at}, ${second} = ${table}.get(${at});\nif (${second} === undefined) break;\n${block}\n} }`;
      const key = this.#fresh('key');
      return `{ ${begun} for (const ${key} of ${table}.keys()) {\nlet ${first} = ${key}, ${second} = ${table}.get(${key});\nif (${second} === undefined) continue;\n${block}\n} }`;
    }
    const values = this.#values(node.iterators, 3);
    const [step, state, control, found] = ['f', 's', 'c', 'r'].map((name) => this.#fresh(name));
    const block = this.#block(node.body, new Map(names));
    const set = names.map(([, js], at) => `${js} = ${found}[${at}]`).join(', ');
    return (
      `{ ${values.before}let ${step} = callable(${values.each[0]}, 'a value'), ${state} = ${values.each[1] ?? 'undefined'}, ` +
      `${control} = ${values.each[2] ?? 'undefined'};\nfor (;;) {\n${TURN}const ${found} = all(${step}(${state}, ${control}));\n` +
      `let ${set};\nif (${first} === undefined) break;\n${control} = ${first};\n${block}\n} }`
    );
  }

  #function(parameters: readonly (Identifier | { type: 'VarargLiteral' })[], body: readonly Statement[]): string {
    const outer = this.#varargs;
    this.#varargs = undefined;
    const names = parameters.flatMap((parameter) =>
      parameter.type === 'Identifier' ? [[parameter.name, this.#fresh(parameter.name)] as const] : [],
    );
    const hasVarargs = parameters.some(({ type }) => type === 'VarargLiteral');
    if (hasVarargs) this.#varargs = this.#fresh('rest');
    const list = [...names.map(([, js]) => js), ...(hasVarargs ? [`...${this.#varargs}`] : [])].join(', ');
    this.#scopes.push(new Map(names));
    const inner = this.#body(body);
    this.#scopes.pop();
    this.#varargs = outer;
    return `(${list}) => {\n${inner}\n}`;
  }

  /** One value. */
  #one(node: Expression): string {
    const piece = this.#expression(node);
    return piece.kind === 'many' ? `first(${piece.js})` : piece.js;
  }

  #typed(node: Expression): Piece {
    const piece = this.#expression(node);
    return piece.kind === 'many' ? { js: `first(${piece.js})`, kind: 'any' } : piece;
  }

  #condition(node: Expression): string {
    if (node.type === 'LogicalExpression')
      return `(${this.#condition(node.left)} ${node.operator === 'and' ? '&&' : '||'} ${this.#condition(node.right)})`;
    if (node.type === 'UnaryExpression' && node.operator === 'not') return `!${this.#condition(node.argument)}`;
    const piece = this.#typed(node);
    if (piece.kind === 'boolean') return piece.js;
    return piece.kind === 'any' ? `isTrue(${piece.js})` : `(${piece.js}, true)`;
  }

  #number(node: Expression): string {
    const piece = this.#typed(node);
    return piece.kind === 'number' ? piece.js : `operand(${piece.js})`;
  }

  #text(node: Expression): string {
    const piece = this.#typed(node);
    return piece.kind === 'string' ? piece.js : `piece(${piece.js})`;
  }

  #expression(node: Expression): Piece {
    switch (node.type) {
      case 'NilLiteral':
        return { js: 'undefined', kind: 'any' };
      case 'BooleanLiteral':
        return { js: String(node.value), kind: 'boolean' };
      case 'NumericLiteral':
        return { js: String(node.value), kind: 'number' };
      case 'StringLiteral':
        return { js: JSON.stringify(node.value), kind: 'string' };
      case 'VarargLiteral':
        return { js: `${this.#varargName(node)}[0]`, kind: 'any' };
      case 'Identifier':
        return this.#name(node);
      case 'FunctionDeclaration':
        return { js: this.#function(node.parameters, node.body), kind: 'any' };
      case 'TableConstructorExpression':
        return { js: this.#table(node.fields), kind: 'any' };
      case 'LogicalExpression': {
        const held = this.#temporary();
        const [left, right] = [this.#one(node.left), this.#one(node.right)];
        const test = `isTrue(${held} = ${left})`;
        return {
          js: node.operator === 'and' ? `(${test} ? ${right} : ${held})` : `(${test} ? ${held} : ${right})`,
          kind: 'any',
        };
      }
      case 'BinaryExpression':
        return this.#binary(node);
      case 'UnaryExpression':
        if (node.operator === 'not') return { js: `!${this.#condition(node.argument)}`, kind: 'boolean' };
        if (node.operator === '-') return { js: `(-${this.#number(node.argument)})`, kind: 'number' };
        if (node.operator === '#') return { js: `lengthOf(${this.#one(node.argument)})`, kind: 'number' };
        throw this.#unknown(node, `the operator ${node.operator}`);
      case 'MemberExpression':
        return this.#member(node);
      case 'IndexExpression':
        return {
          js: `index(${this.#one(node.base)}, ${this.#one(node.index)}, ${this.#described(node.base)})`,
          kind: 'any',
        };
      case 'CallExpression':
        return this.#call(node.base, node.arguments, node);
      case 'StringCallExpression':
        return this.#call(node.base, [node.argument], node);
      case 'TableCallExpression':
        return this.#call(node.base, [node.arguments], node);
      default:
        throw this.#unknown(node, (node as { type: string }).type);
    }
  }

  #binary(node: Extract<Expression, { type: 'BinaryExpression' }>): Piece {
    const { operator } = node;
    switch (operator) {
      case '==':
      case '~=':
        return {
          js: `(${this.#one(node.left)} ${operator === '==' ? '===' : '!=='} ${this.#one(node.right)})`,
          kind: 'boolean',
        };
      case '<':
      case '>':
      case '<=':
      case '>=':
        return this.#comparison(node.left, node.right, operator);
      case '..':
        return { js: `(${this.#text(node.left)} + ${this.#text(node.right)})`, kind: 'string' };
      case '+':
      case '-':
      case '*':
      case '/':
        return { js: `(${this.#number(node.left)} ${operator} ${this.#number(node.right)})`, kind: 'number' };
      case '%':
        return { js: `modulo(${this.#number(node.left)}, ${this.#number(node.right)})`, kind: 'number' };
      case '^':
        return { js: `Math.pow(${this.#number(node.left)}, ${this.#number(node.right)})`, kind: 'number' };
      default:
        throw this.#unknown(node, `the operator ${operator}`);
    }
  }

  /** `a > b` is `b < a`, and `a <= b` is not `b < a` but for NaN, which is why numbers are compared as they stand. */
  #comparison(left: Expression, right: Expression, operator: '<' | '>' | '<=' | '>='): Piece {
    const [a, b] = [this.#typed(left), this.#typed(right)];
    if (a.kind === b.kind && (a.kind === 'number' || a.kind === 'string'))
      return { js: `(${a.js} ${operator} ${b.js})`, kind: 'boolean' };
    const [one, other] = [this.#temporary(), this.#temporary()];
    return {
      js: `(${one} = ${a.js}, ${other} = ${b.js}, typeof ${one} === 'number' && typeof ${other} === 'number' || isBelow(${one}, ${other}) !== undefined ? ${one} ${operator} ${other} : false)`,
      kind: 'boolean',
    };
  }

  #name(node: Identifier): Piece {
    const local = this.#find(node.name);
    if (local !== undefined) return { js: local, kind: 'any' };
    if (node.name === 'KEYS' || node.name === 'ARGV') return { js: node.name, kind: 'any' };
    if (Object.hasOwn(FUNCTIONS, node.name)) return { js: this.#library(node.name), kind: 'any' };
    if (
      /^(_G|string|table|math|redis|server|cjson|cmsgpack|bit|struct|os|loadstring|load|setmetatable|getmetatable|xpcall|collectgarbage|print|coroutine|newproxy|dofile|gcinfo|rawlen|require)$/.test(
        node.name,
      )
    )
      throw this.#unknown(node, `the global ${node.name} as it is used here`);
    return { js: `missing(${JSON.stringify(node.name)})`, kind: 'any' };
  }

  #member(node: Extract<Expression, { type: 'MemberExpression' }>): Piece {
    if (node.indexer === ':') throw this.#unknown(node, 'a method that is not called');
    const { base, identifier } = node;
    if (base.type === 'Identifier' && this.#find(base.name) === undefined && !/^(KEYS|ARGV)$/.test(base.name))
      return this.#libraryMember(base, identifier.name);
    return {
      js: `index(${this.#one(base)}, ${JSON.stringify(identifier.name)}, ${this.#described(base)})`,
      kind: 'any',
    };
  }

  #libraryMember(base: Identifier, name: string): Piece {
    const path = `${base.name}.${name}`;
    if (Object.hasOwn(FUNCTIONS, path)) return { js: this.#library(path), kind: 'any' };
    if (path === 'cjson.null') return { js: this.#constant(path), kind: 'any' };
    if (path === 'math.huge') return { js: 'Infinity', kind: 'number' };
    if (Object.hasOwn(CONSTANTS, path)) return { js: String(CONSTANTS[path]), kind: 'number' };
    if (path === 'math.random') return { js: 'H.others.math_random', kind: 'any' };
    if (base.name === 'redis' || base.name === 'server') {
      if (name === 'call' || name === 'pcall') return { js: `H.${name}`, kind: 'any' };
      if (HOST_FUNCTIONS.includes(name)) return { js: `H.others.${name}`, kind: 'any' };
      if (Object.hasOwn(HOST_CONSTANTS, name)) return { js: String(HOST_CONSTANTS[name]), kind: 'number' };
    }
    throw this.#unknown(base, path);
  }

  /** A call of a library's function by its name, with its arguments. */
  #libraryCall(node: Expression): { readonly name: string; readonly args: readonly Expression[] } | undefined {
    if (node.type !== 'CallExpression' || node.base.type !== 'Identifier') return undefined;
    const { name } = node.base;
    return this.#find(name) === undefined && Object.hasOwn(FUNCTIONS, name)
      ? { name, args: node.arguments }
      : undefined;
  }

  #call(base: Expression, args: readonly Expression[], node: Expression): Piece {
    if (base.type === 'MemberExpression' && base.indexer === ':') {
      const held = this.#temporary();
      const name = JSON.stringify(base.identifier.name);
      const found = `callable(index(${held} = ${this.#one(base.base)}, ${name}, ${this.#described(base.base)}), ${JSON.stringify(`method '${base.identifier.name}'`)})`;
      return {
        js: `${found}(${[held, ...(args.length > 0 ? [this.#list(args, true)] : [])].join(', ')})`,
        kind: 'many',
      };
    }
    const list = this.#list(args, true);
    if (base.type === 'Identifier' && base.name === 'error' && this.#find('error') === undefined)
      return { js: `raise(${node.loc?.start.line ?? 0}, ...[${list}])`, kind: 'any' };
    const callee = this.#one(base);
    if (/^(H\.(call|pcall|others\.\w+)|\$\w+)$/.test(callee)) return { js: `${callee}(${list})`, kind: 'many' };
    return { js: `callable(${callee}, ${this.#described(base)})(${list})`, kind: 'many' };
  }

  #table(fields: readonly { type: string; value: Expression; key?: Expression | Identifier }[]): string {
    const items = fields.filter(({ type }) => type === 'TableValue').map(({ value }) => value);
    const isLastItem = fields.at(-1)?.type === 'TableValue';
    const list = isLastItem ? this.#list(items, false) : items.map((item) => this.#one(item)).join(', ');
    const pairs = fields.flatMap((field) => {
      if (field.type === 'TableKeyString')
        return [JSON.stringify((field.key as Identifier).name), this.#one(field.value)];
      return field.type === 'TableKey' ? [this.#one(field.key as Expression), this.#one(field.value)] : [];
    });
    if (pairs.length === 0) return list === '' ? 'new LuaTable()' : `new LuaTable([${list}])`;
    return `tableOf([${list}], [${pairs.join(', ')}])`;
  }

  #library(name: string): string {
    const js = `$${name.replace('.', '_')}`;
    this.#constants.set(name, js);
    return js;
  }

  #constant(path: string): string {
    return `R.CONSTANTS[${JSON.stringify(path)}]`;
  }

  #described(node: Expression): string {
    if (node.type === 'Identifier')
      return JSON.stringify(`${this.#find(node.name) === undefined ? 'global' : 'local'} '${node.name}'`);
    if (node.type === 'MemberExpression') return JSON.stringify(`field '${node.identifier.name}'`);
    return node.type === 'IndexExpression' ? `"field '?'"` : `'a value'`;
  }

  #varargName(node: Expression): string {
    if (this.#varargs === undefined) throw this.#unknown(node, "'...' outside a function that has it");
    return this.#varargs;
  }

  #find(name: string): string | undefined {
    for (let at = this.#scopes.length - 1; at >= 0; at--) {
      const found = this.#scopes[at]!.get(name);
      if (found !== undefined) return found;
    }
    return undefined;
  }

  #declare(name: string): string {
    const js = this.#fresh(name);
    this.#scopes.at(-1)!.set(name, js);
    return js;
  }

  #fresh(name: string): string {
    return `${name.replaceAll(/\W/g, '_')}_${++this.#names}`;
  }

  #temporary(name = 't'): string {
    const js = this.#fresh(name);
    this.#temporaries.push(js);
    return js;
  }

  #unknown(node: { loc?: { start: { line: number } } | undefined }, what: string): NotModelled {
    return new NotModelled(`the model does not compile ${what} (line ${node.loc?.start.line ?? '?'})`);
  }
}
