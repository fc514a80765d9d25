// What of the build goes into a package: the modules that its entries reach, and nothing else. An import of @shoal/…
// becomes a relative one of the module that defines the name, so that a package holds no other part of Shoal than what
// it runs, is whole by itself, and cannot meet another version of one of its parts. Modules stay what the compiler
// wrote, line by line; declarations are followed in the same way.

import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { join, posix, relative, sep } from 'node:path';
import { parseSync } from 'rolldown/utils';

/** `js`: modules that run; `types`: declarations. */
export type Kind = 'js' | 'types';

interface Entry {
  readonly moduleRequest: { readonly value: string } | null;
  readonly importName: { readonly kind: string; readonly name: string | null };
  readonly exportName: { readonly kind: string; readonly name: string | null };
  readonly localName: { readonly value?: string; readonly name?: string | null };
  readonly isType: boolean;
}

interface Statement {
  readonly start: number;
  readonly end: number;
  readonly moduleRequest?: { readonly value: string; readonly start: number; readonly end: number };
  readonly entries: readonly Entry[];
}

interface Module {
  readonly text: string;
  readonly imports: readonly Statement[];
  readonly exports: readonly Statement[];
}

interface Edit {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

interface Definition {
  readonly file: string;
  readonly name: string;
}

type Manifest = Readonly<{
  exports?: Readonly<Record<string, { readonly types: string; readonly default: string }>>;
}>;

/** Paths are from the project's root, with "/". */
export class PackedTree {
  /** What goes in, by path. */
  readonly files = new Map<string, string | Buffer>();
  /** Packages of others that the modules import. */
  readonly dependencies = new Set<string>();
  readonly #project: string;
  readonly #modules = new Map<string, Module>();

  constructor(project: string) {
    this.#project = project;
  }

  /**
   * Adds a module of the build and all it reaches. Throws an Error that names file and import where one leads nowhere,
   * and where a test or what only tests use would come in.
   */
  add(file: string, kind: Kind): void {
    if (this.files.has(file)) return;
    if (/\.test\.|\/testing[./]|\/fixtures\//.test(file))
      throw new Error(`${file} is for tests alone, and was reached`);
    const module = this.#module(file);
    this.files.set(file, ''); // met again while its imports are followed
    const edits = [...module.imports, ...module.exports].flatMap((statement) => this.#follow(file, statement, kind));
    edits.push(...this.#inlineImports(file, module, kind));
    for (const [, , request = ''] of module.text.matchAll(/\brequire\((['"])([^'".][^'"]*)\1\)/g))
      if (!request.startsWith('node:')) this.dependencies.add(packageOf(request));
    if (kind === 'js') this.#reachByName(file, module);
    this.files.set(file, withoutMap(edited(module.text, edits)));
  }

  /** A module of our own words, which hands on what others define. */
  addText(file: string, text: string, kind: Kind): void {
    this.#modules.set(file, parsed(file, text));
    this.add(file, kind);
  }

  #follow(file: string, statement: Statement, kind: Kind): readonly Edit[] {
    const request =
      statement.moduleRequest?.value ??
      statement.entries.find((entry) => entry.moduleRequest !== null)?.moduleRequest?.value;
    if (request === undefined || request.startsWith('node:')) return [];
    if (request.startsWith('.')) {
      this.add(this.#relative(file, request, kind), kind);
      return kind === 'types' ? [endedByJs(this.#module(file).text, statement, request)] : [];
    }
    if (!request.startsWith('@shoal/')) {
      this.dependencies.add(packageOf(request));
      return [];
    }
    return [{ ...statement, text: this.#statements(file, statement, request, kind) }];
  }

  /** The statements that import from where the names are defined, in one line. */
  #statements(file: string, { entries, moduleRequest }: Statement, request: string, kind: Kind): string {
    const verb = moduleRequest === undefined ? 'export' : 'import';
    const barrel = this.#entryOf(request, kind);
    const names = new Map<string, string[]>();
    for (const entry of entries) {
      if (entry.importName.kind !== 'Name' || entry.importName.name === null)
        throw new Error(`${file} takes all of ${request}: name what it takes`);
      const found = this.#definition(barrel, entry.importName.name, kind);
      this.add(found.file, kind);
      const own = (verb === 'import' ? entry.localName.value : entry.exportName.name) ?? found.name;
      const words = `${entry.isType ? 'type ' : ''}${found.name === own ? own : `${found.name} as ${own}`}`;
      const path = specifier(file, found.file);
      names.set(path, [...(names.get(path) ?? []), words]);
    }
    if (names.size === 0) throw new Error(`${file} imports ${request} for its effects alone, which is not followed`);
    return [...names].map(([path, words]) => `${verb} { ${words.join(', ')} } from '${path}';`).join(' ');
  }

  /** Where a name that a module exports is declared, through any number of files that hand it on. */
  #definition(file: string, name: string, kind: Kind): Definition {
    const entries = this.#module(file).exports.flatMap((statement) => statement.entries);
    const entry = entries.find(({ exportName }) => exportName.name === name);
    if (entry === undefined) throw new Error(`${file} exports no ${name}`);
    if (entry.moduleRequest === null) return { file, name };
    const { value } = entry.moduleRequest;
    if (!value.startsWith('.') && !value.startsWith('@shoal/')) return { file, name };
    const next = value.startsWith('.') ? this.#relative(file, value, kind) : this.#entryOf(value, kind);
    return this.#definition(next, entry.importName.name ?? name, kind);
  }

  /** `import('…')`, of a type and of what is loaded late: all that the entry has. */
  #inlineImports(file: string, { text }: Module, kind: Kind): readonly Edit[] {
    return [...text.matchAll(/\bimport\((["'])([^"']+)\1\)/g)].flatMap(({ index, 0: all, 2: request = '' }) => {
      if (request.startsWith('node:')) return [];
      if (!request.startsWith('.') && !request.startsWith('@shoal/')) {
        this.dependencies.add(packageOf(request));
        return [];
      }
      const target = request.startsWith('.') ? this.#relative(file, request, kind) : this.#entryOf(request, kind);
      this.add(target, kind);
      return [{ start: index, end: index + all.length, text: `import('${specifier(file, target)}')` }];
    });
  }

  /**
   * What a module names without importing it: programs that it forks, threads, `import()`, and data of its package. Any
   * text that is the path of such a file counts, whole or as the beginning of a template.
   */
  #reachByName(file: string, { text }: Module): void {
    for (const [, , words = ''] of text.matchAll(/(['"`])((?:\.{1,2}\/)+[\w@./-]+)/g)) {
      const path = posix.normalize(posix.join(posix.dirname(file), words));
      const home = /^(?:libs|apps)\/[\w-]+\//.exec(file)![0];
      if (!path.startsWith(home)) continue;
      const module = [path, `${path}.js`, `${path}js`].find((name) => name.endsWith('.js') && this.#isFile(name));
      if (module !== undefined) this.add(module, 'js');
      else if (!path.startsWith(`${home}dist/`) && path !== home) this.#addData(path, home);
    }
  }

  #addData(path: string, home: string): void {
    const whole = join(this.#project, path);
    if (!existsSync(whole)) return;
    if (path === `${home}package.json`) {
      const { name, version } = JSON.parse(readFileSync(whole, 'utf8')) as { name: string; version: string };
      this.files.set(path, `${JSON.stringify({ name, version, type: 'module' }, undefined, 2)}\n`);
    } else if (statSync(whole).isFile()) this.files.set(path, readFileSync(whole));
    else
      for (const entry of readdirSync(whole, { withFileTypes: true }))
        if (entry.isFile()) this.#addData(posix.join(path, entry.name), home);
  }

  #isFile(path: string): boolean {
    return statSync(join(this.#project, path), { throwIfNoEntry: false })?.isFile() ?? false;
  }

  #relative(file: string, request: string, kind: Kind): string {
    const path = posix.join(posix.dirname(file), request);
    return kind === 'js' ? path : path.replace(/\.(?:js|ts)$/, '.d.ts');
  }

  #entryOf(request: string, kind: Kind): string {
    const [, name, entry = ''] = /^@shoal\/([^/]+)(\/.+)?$/.exec(request) ?? [];
    for (const home of [`libs/${name}`, `apps/${name}`]) {
      const path = join(this.#project, home, 'package.json');
      if (!existsSync(path)) continue;
      const found = exported(JSON.parse(readFileSync(path, 'utf8')) as Manifest, `.${entry}`);
      if (found !== undefined) return posix.join(home, kind === 'js' ? found.default : found.types);
    }
    throw new Error(`${request} is no entry of the workspace`);
  }

  #module(file: string): Module {
    const known = this.#modules.get(file);
    if (known !== undefined) return known;
    if (!this.#isFile(file)) throw new Error(`${file} is not there: build first (npm run build)`);
    const read = parsed(file, readFileSync(join(this.#project, file), 'utf8'));
    this.#modules.set(file, read);
    return read;
  }
}

/** Where an entry lies: one of its own, or a module of a folder whose modules all are some (`./files/*`). */
function exported(
  { exports = {} }: Manifest,
  entry: string,
): { readonly types: string; readonly default: string } | undefined {
  const own = exports[entry];
  if (own !== undefined) return own;
  for (const [pattern, { types, default: module }] of Object.entries(exports)) {
    const [before = '', after] = pattern.split('*');
    if (after === undefined || !entry.startsWith(before) || !entry.endsWith(after)) continue;
    const star = entry.slice(before.length, entry.length - after.length);
    return { types: types.replace('*', star), default: module.replace('*', star) };
  }
  return undefined;
}

function parsed(file: string, text: string): Module {
  const { module, errors } = parseSync(file, text, { lang: file.endsWith('.d.ts') ? 'dts' : 'js' });
  if (errors.length > 0) throw new Error(`${file} cannot be parsed: ${errors[0]!.message}`);
  return {
    text,
    imports: module.staticImports as unknown as readonly Statement[],
    exports: module.staticExports as unknown as readonly Statement[],
  };
}

/** Files of a folder, from there, with "/", sorted. */
export function filesBelow(folder: string): readonly string[] {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(folder, join(entry.parentPath, entry.name)).split(sep).join('/'))
    .toSorted();
}

function packageOf(request: string): string {
  return request.split('/', request.startsWith('@') ? 2 : 1).join('/');
}

function specifier(from: string, to: string): string {
  const path = posix.relative(posix.dirname(from), to).replace(/\.d\.ts$/, '.js');
  return path.startsWith('.') ? path : `./${path}`;
}

/** Declarations name sources (`./x.ts`), which are not there. */
function endedByJs(text: string, { start, end }: Statement, request: string): Edit {
  const at = text.lastIndexOf(request, end);
  if (at < start) throw new Error(`"${request}" is not in its own statement`);
  return { start: at, end: at + request.length, text: request.replace(/\.ts$/, '.js') };
}

function edited(text: string, edits: readonly Edit[]): string {
  let result = '';
  let at = 0;
  for (const edit of edits.toSorted((a, b) => a.start - b.start)) {
    result += text.slice(at, edit.start) + edit.text;
    at = edit.end;
  }
  return result + text.slice(at);
}

function withoutMap(text: string): string {
  return text.replace(/\n\/\/# sourceMappingURL=.*\n?$/, '\n');
}
