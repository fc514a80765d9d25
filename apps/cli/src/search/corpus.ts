// Which Markdown `shoal try` reads: this project's own documents first, then the READMEs of what it depends on, nearest
// first. Refuses what answers no question (changelogs, licences, policies) and the same text twice.

import { createHash } from 'node:crypto';
import { readFile, readdir } from 'node:fs/promises';
import { join, relative, sep } from 'node:path';
import { answeringPassages, embeddedText } from '../markdown/passages.ts';

export interface CorpusPassage {
  /** Path below the root, with "/". */
  readonly file: string;
  readonly headings: readonly string[];
  /** As it is shown. */
  readonly text: string;
  /** As it is embedded. */
  readonly embedded: string;
  /** sha256 of what is embedded, hex: the name under which its vector is kept. */
  readonly key: string;
}

export interface CorpusLimits {
  readonly passages: number;
  readonly words: number;
}

const OF_RELEASES = 'changelog|changes|history|releases?|upgrading|migrat\\w*';
const OF_LAW = 'licen[sc]es?|copying|notice|authors|contributors|security|governance|code[-_]of[-_]conduct';
const OF_HELPING = 'contributing|pull_request_template|issue_template';
const NO_ANSWERS = new RegExp(`^(${OF_RELEASES}|${OF_LAW}|${OF_HELPING})\\b`, 'i');
/** Folders of this project without documents: what is built, fetched, measured or made for tests. */
const NO_DOCUMENTS = new Set(['node_modules', 'dist', 'fixtures', 'results', 'lab']);
const OWN_FIRST = ['README.md', 'ARCHITECTURE.md', 'GLOSSARY.md', 'CONTRIBUTING.md'];
/** A document longer than this is a reference or a data file; its beginning is read. */
const DOCUMENT_CHARACTERS = 60_000;

/** The passages of the checkout at `root`, up to the limits. */
export async function readCorpus(root: string, limits: CorpusLimits): Promise<readonly CorpusPassage[]> {
  const passages: CorpusPassage[] = [];
  const seen = new Set<string>();
  let words = 0;
  for (const file of [...(await ownDocuments(root)), ...(await dependencyReadmes(root))]) {
    for (const passage of await passagesOf(root, file)) {
      if (seen.has(passage.key)) continue;
      words += passage.embedded.split(/\s+/).length;
      if (passages.length >= limits.passages || words > limits.words) return passages;
      seen.add(passage.key);
      passages.push(passage);
    }
  }
  return passages;
}

/** The passages of some Markdown files below `root`. */
export async function passagesOf(root: string, file: string): Promise<readonly CorpusPassage[]> {
  const markdown = (await readFile(join(root, file), 'utf8').catch(() => '')).slice(0, DOCUMENT_CHARACTERS);
  return answeringPassages(markdown).map((passage) => {
    const embedded = embeddedText(passage);
    return {
      file,
      headings: passage.headings,
      text: passage.text,
      embedded,
      key: createHash('sha256').update(embedded).digest('hex'),
    };
  });
}

async function ownDocuments(root: string): Promise<readonly string[]> {
  const found = await markdownBelow(root, root);
  return found
    .filter((file) => file === 'CONTRIBUTING.md' || !NO_ANSWERS.test(file.slice(file.lastIndexOf('/') + 1)))
    .sort((a, b) => rankOf(a) - rankOf(b) || a.localeCompare(b, 'en'));
}

function rankOf(file: string): number {
  const at = OWN_FIRST.indexOf(file);
  return at !== -1 ? at : file.startsWith('docs/') ? OWN_FIRST.length : OWN_FIRST.length + 1;
}

async function markdownBelow(root: string, folder: string): Promise<string[]> {
  const found: string[] = [];
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isFile() && entry.name.toLowerCase().endsWith('.md'))
      found.push(relative(root, path).split(sep).join('/'));
    else if (entry.isDirectory() && !entry.name.startsWith('.') && !NO_DOCUMENTS.has(entry.name))
      found.push(...(await markdownBelow(root, path)));
  }
  return found;
}

/**
 * READMEs of packages: those that a package.json of this project names, then the rest by name. Workspaces are links and
 * were read already.
 */
async function dependencyReadmes(root: string): Promise<readonly string[]> {
  const named = await namedDependencies(root);
  const packages = (await packagesBelow(join(root, 'node_modules'))).map((name) => ({
    name,
    rank: named.has(name) ? 0 : 1,
  }));
  packages.sort((a, b) => a.rank - b.rank || a.name.localeCompare(b.name, 'en'));
  const readmes = await Promise.all(packages.map(({ name }) => readmeOf(root, name)));
  return readmes.filter((readme) => readme !== undefined);
}

async function packagesBelow(folder: string): Promise<string[]> {
  const names: string[] = [];
  for (const entry of await readdir(folder, { withFileTypes: true }).catch(() => [])) {
    if (!entry.isDirectory() || entry.name.startsWith('.')) continue;
    if (!entry.name.startsWith('@')) names.push(entry.name);
    else
      for (const scoped of await readdir(join(folder, entry.name), { withFileTypes: true }))
        if (scoped.isDirectory()) names.push(`${entry.name}/${scoped.name}`);
  }
  return names;
}

async function readmeOf(root: string, name: string): Promise<string | undefined> {
  const files = await readdir(join(root, 'node_modules', name)).catch(() => []);
  const readme = files.find((file) => /^readme(\.md|\.markdown)?$/i.test(file));
  return readme === undefined ? undefined : `node_modules/${name}/${readme}`;
}

async function namedDependencies(root: string): Promise<ReadonlySet<string>> {
  const names = new Set<string>();
  for (const group of ['', ...(await foldersOf(root, 'libs')), ...(await foldersOf(root, 'apps'))]) {
    const manifest = await readFile(join(root, group, 'package.json'), 'utf8').then(
      (text): unknown => JSON.parse(text),
      () => undefined,
    );
    if (typeof manifest !== 'object' || manifest === null) continue;
    for (const field of ['dependencies', 'devDependencies']) {
      const dependencies: unknown = Reflect.get(manifest, field);
      if (typeof dependencies === 'object' && dependencies !== null)
        for (const name of Object.keys(dependencies)) names.add(name);
    }
  }
  return names;
}

async function foldersOf(root: string, group: string): Promise<readonly string[]> {
  const entries = await readdir(join(root, group), { withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => entry.isDirectory()).map((entry) => join(group, entry.name));
}
