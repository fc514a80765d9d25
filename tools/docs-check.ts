// Looks at the pages for what nobody notices by reading them: links and anchors that lead nowhere, paths that are gone,
// rows of tables that lose what they say, decisions that do not say all they should, pages that grew beyond what they
// promise, and measured figures that no row of bench/results backs (docs-figures.ts). It reads Markdown as GitHub shows
// it, and changes nothing. Run by tools/docs-check.test.ts, and by hand: `node tools/docs-check.ts`.

import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { readResults } from '../bench/rig/results.ts';
import { checkFigures, readTable, type FigurePage } from './docs-figures.ts';

/** A page longer than this is no map any more. */
const MOST_ARCHITECTURE_WORDS = 2_200;
const MOST_RELEASE_LINES = 90;
const MOST_RELEASE_COLUMNS = 140;

/** Closed pages keep the words, links and paths of their day. */
const CLOSED = /(^|\/)(node_modules|fixtures|dist)\/|^docs\/lab\//;

/** What begins like this in code marks is a path of this repository. */
const PATH = /^(libs|apps|native|tools|bench|docs|examples)\//;
const SOURCES = ['*.ts', '*.mjs', '*.cc', '*.cu', '*.h', '*.cuh', '*.sh', 'shoal', '.ci/run', ':!tools/docs-check*'];
/** A pattern, a placeholder or a list of names is not one path. */
const NO_SINGLE_PATH = /[*{}<>…$|]/;

/** What stands between two empty lines of a page, and the number of its first line. Fenced blocks are left out. */
interface Paragraph {
  readonly number: number;
  readonly text: string;
}

interface Finding {
  /** Where it stands in its paragraph. */
  readonly at: number;
  readonly problem: string;
}

/** The pages that the check is about, as git lists them: those that are new and not ignored count as well. */
export function pagesOf(root: string): string[] {
  return listed(root, ['*.md']).filter((page) => !CLOSED.test(page));
}

function listed(root: string, patterns: readonly string[]): string[] {
  const all = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', ...patterns], {
    cwd: root,
    encoding: 'utf8',
  });
  return [...new Set(all.split('\n'))].filter((path) => path !== '' && existsSync(join(root, path)));
}

/** Every finding as "page:line: what is wrong"; an empty list when all is well. */
export function checkPages(root: string, pages: readonly string[]): string[] {
  return pages.flatMap((page) =>
    paragraphsOf(readFileSync(join(root, page), 'utf8')).flatMap(({ number, text }) =>
      [...wrongLinks(root, page, text), ...gonePaths(root, text), ...wrongRows(text)].map(
        ({ at, problem }) => `${page}:${number + linesIn(text.slice(0, at))}: ${problem}`,
      ),
    ),
  );
}

/** What is wrong with the lengths of ARCHITECTURE.md and of the releases in CHANGELOG.md. */
export function checkLengths(architecture: string, changelog: string): string[] {
  const words = architecture.split(/\s+/).filter((word) => word !== '').length;
  const tooLong =
    words > MOST_ARCHITECTURE_WORDS ? [`ARCHITECTURE.md has ${words} words, ${MOST_ARCHITECTURE_WORDS} at most`] : [];
  return [...tooLong, ...releasesOf(changelog).flatMap(wrongRelease)];
}

const FIELDS = ['why', 'instead of', 'measured', 'replaced by'] as const;

/** Decisions that lack a field, or that the list of all decisions does not link to. */
export function checkDecisions(page: string, content: string, list: string): string[] {
  return content
    .split(/^(?=## )/m)
    .filter((part) => part.startsWith('## '))
    .flatMap((decision) => {
      const title = decision.slice(3).split('\n', 1)[0]!;
      const missing = FIELDS.filter((field) => !decision.includes(`\n- **${field}:** `));
      const [anchor] = anchorsOf(`## ${title}`);
      return [
        ...missing.map((field) => `${page}: "${title}" does not say **${field}**`),
        ...(list.includes(`(${page}#${anchor})`) ? [] : [`${page}: "${title}" is not in the list`]),
      ];
    });
}

/** How TypeScript, C++ and shell read the environment. */
const SWITCH =
  /(?:process\.env(?:\.|\[')|environment\['|getenv\("|\btold\("|\$\{?)(SHOAL_[\dA-Z_]+)|\{ (SHOAL_[\dA-Z_]+): \w+ \}/g;

/** Pages and headings that a comment of a source points to and that are not there. */
export function checkPointers(root: string, sources: readonly Source[]): string[] {
  return sources
    .filter(({ path }) => !path.endsWith('.test.ts'))
    .flatMap(({ path, content }) =>
      [...content.matchAll(/\bdocs\/[\w./-]+\.md(?:#[\w-]+)?/g)].flatMap(({ 0: target, index }) => {
        const problem = problemOf(root, '', target);
        return problem === undefined ? [] : [`${path}:${linesIn(content.slice(0, index)) + 1}: ${problem}`];
      }),
    );
}

interface Source {
  readonly path: string;
  readonly content: string;
}

/** Variables of ours that the sources read and neither page names, and those that the page has and no source. */
export function checkSwitches(sources: readonly Source[], switches: string, settings: string): string[] {
  const read = sources.flatMap(({ content }) =>
    [...content.matchAll(SWITCH)].map(([, name = '', taken]) => taken ?? name),
  );
  const unnamed = [...new Set(read)].filter((name) => !isNamed(name, switches) && !isNamed(name, settings));
  const named = [...switches.matchAll(/`(SHOAL_[A-Z0-9_]+)`/g)].map(([, name = '']) => name);
  const gone = named.filter(
    (name) => !isNamed(name, settings) && !sources.some(({ content }) => content.includes(name)),
  );
  return [
    ...unnamed.map((name) => `${name} is read, and stands neither in docs/switches.md nor in docs/settings.md`),
    ...gone.map((name) => `${name} stands in docs/switches.md, and no source knows it`),
  ];
}

function isNamed(name: string, page: string): boolean {
  return page.includes(`\`${name}\``);
}

interface Release {
  readonly name: string;
  readonly lines: readonly string[];
}

function releasesOf(changelog: string): Release[] {
  return changelog
    .split(/^(?=## )/m)
    .filter((part) => part.startsWith('## '))
    .map((part) => {
      const [heading = '', ...lines] = part.trimEnd().split('\n');
      return { name: heading.slice(3), lines };
    });
}

function wrongRelease({ name, lines }: Release): string[] {
  const found =
    lines.length > MOST_RELEASE_LINES
      ? [`CHANGELOG.md: ${name} has ${lines.length} lines, ${MOST_RELEASE_LINES} at most`]
      : [];
  const wide = lines.filter((line) => line.length > MOST_RELEASE_COLUMNS);
  return [...found, ...wide.map((line) => `CHANGELOG.md: ${name}: a line has ${line.length} columns: ${line}`)];
}

function wrongLinks(root: string, page: string, text: string): Finding[] {
  return linksOf(text).flatMap(({ at, target }) => {
    const problem = problemOf(root, page, target);
    return problem === undefined ? [] : [{ at, problem: `the link to ${target} leads nowhere: ${problem}` }];
  });
}

function linksOf(text: string): { readonly at: number; readonly target: string }[] {
  const bare = text.replaceAll(/`[^`]*`/g, (code) => code.replaceAll(/[^\n]/g, '`'));
  const inline = bare.matchAll(/\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)/g);
  const defined = bare.matchAll(/^\s*\[[^\]]+\]:\s+<?([^\s>]+)>?/gm);
  return [...inline, ...defined]
    .map(({ index, 1: target = '' }) => ({ at: index, target }))
    .filter(({ target }) => !/^[a-z][a-z0-9+.-]*:/i.test(target));
}

function problemOf(root: string, page: string, target: string): string | undefined {
  const [path = '', anchor] = decodeURIComponent(target).split('#', 2);
  const file = path === '' ? join(root, page) : resolve(root, dirname(page), path);
  if (relative(root, file).startsWith('..')) return 'it leaves the repository';
  if (!existsSync(file)) return `there is no ${relative(root, file)}`;
  if (anchor === undefined || anchor === '') return undefined;
  if (statSync(file).isDirectory()) return 'a folder has no anchors';
  const content = readFileSync(file, 'utf8');
  const isThere = file.endsWith('.md') ? anchorsOf(content).has(anchor) : hasLine(content, anchor);
  return isThere ? undefined : `${relative(root, file)} has no #${anchor}`;
}

/** "L12" and "L12-L20" are anchors of every file of text. */
function hasLine(content: string, anchor: string): boolean {
  const match = /^L(\d+)(?:-L(\d+))?$/.exec(anchor);
  if (match === null) return false;
  const last = Number(match[2] ?? match[1]);
  return last >= 1 && last <= content.split('\n').length;
}

/** GitHub's rule: lower case, spaces as hyphens, signs left out, and a number where a heading comes again. */
export function anchorsOf(markdown: string): Set<string> {
  const anchors = new Set<string>();
  const seen = new Map<string, number>();
  for (const line of withoutFences(markdown)) {
    const heading = /^#{1,6}\s+(.*?)\s*#*$/.exec(line)?.[1];
    if (heading === undefined) continue;
    const slug = heading
      .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1')
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N}\p{M}\s_-]/gu, '')
      .replaceAll(/\s/g, '-');
    const times = seen.get(slug) ?? 0;
    seen.set(slug, times + 1);
    anchors.add(times === 0 ? slug : `${slug}-${times}`);
  }
  return anchors;
}

function gonePaths(root: string, text: string): Finding[] {
  return [...text.matchAll(/`([^`]+)`/g)].flatMap(({ index, 1: code = '' }) =>
    code
      .split(/[\s,;"'()]+/)
      .filter((word) => PATH.test(word) && !NO_SINGLE_PATH.test(word))
      .map((word) => word.replace(/[.:#]\d*(?:-\d+)?$/, '').replace(/#.*$/, ''))
      .filter((path) => !existsSync(join(root, path)))
      .map((path) => ({ at: index, problem: `there is no ${path}` })),
  );
}

/** Rows of a table that have other cells than its head: a "|" ends a cell within code marks too, and more are dropped. */
function wrongRows(text: string): Finding[] {
  const rows = [...text.matchAll(/^\|.*\|$/gm)];
  const [head] = rows;
  return rows
    .filter(([row]) => cellsIn(row) !== cellsIn(head![0]))
    .map(({ index, 0: row }) => ({
      at: index,
      problem: `${cellsIn(row)} cells below a head of ${cellsIn(head![0])}: write a "|" inside of one as \\|`,
    }));
}

function cellsIn(row: string): number {
  return row.replaceAll('\\|', '').split('|').length - 2;
}

function paragraphsOf(markdown: string): Paragraph[] {
  const paragraphs: { number: number; lines: string[] }[] = [];
  let isOpen = false;
  for (const [at, line] of withoutFences(markdown).entries()) {
    if (line.trim() === '') isOpen = false;
    else if (isOpen) paragraphs.at(-1)!.lines.push(line);
    else isOpen = paragraphs.push({ number: at + 1, lines: [line] }) > 0;
  }
  return paragraphs.map(({ number, lines }) => ({ number, text: lines.join('\n') }));
}

/** Lines of fenced blocks are empty here, so that the others keep their numbers. */
function withoutFences(markdown: string): string[] {
  let fence: string | undefined;
  return markdown.split('\n').map((line) => {
    const mark = /^\s*(```|~~~)/.exec(line)?.[1];
    if (mark === undefined || (fence !== undefined && fence !== mark)) return fence === undefined ? line : '';
    fence = fence === undefined ? mark : undefined;
    return '';
  });
}

/** README.md and the pages beside docs/index.md, but for those that are made of the sources, and the table itself. */
function figurePages(root: string): FigurePage[] {
  const others = /^docs\/(?:scripts|settings|figures)\.md$/;
  return pagesOf(root)
    .filter((page) => /^(?:README|docs\/[^/]+)\.md$/.test(page) && !others.test(page))
    .map((page) => ({ page, text: withoutFences(readFileSync(join(root, page), 'utf8')).join('\n') }));
}

function linesIn(text: string): number {
  return text.split('\n').length - 1;
}

/** All that this file looks at, in the repository at `root`. */
export function checkDocs(root: string): string[] {
  const read = (page: string): string => readFileSync(join(root, page), 'utf8');
  const decisions = readdirSync(join(root, 'docs/decisions')).filter((page) => page !== 'README.md');
  const list = read('docs/decisions/README.md');
  const sources = listed(root, SOURCES).map((path) => ({ path, content: read(path) }));
  return [
    ...checkPages(root, pagesOf(root)),
    ...checkLengths(read('ARCHITECTURE.md'), read('CHANGELOG.md')),
    ...decisions.flatMap((page) => checkDecisions(page, read(`docs/decisions/${page}`), list)),
    ...checkSwitches(sources, read('docs/switches.md'), read('docs/settings.md')),
    ...checkPointers(root, sources),
    ...checkFigures(figurePages(root), readTable(read('docs/figures.md')), readResults().benches),
  ];
}

if (import.meta.main) {
  const found = checkDocs(join(import.meta.dirname, '..'));
  for (const line of found) console.log(line);
  process.exitCode = found.length === 0 ? 0 : 1;
}
