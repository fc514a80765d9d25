// The list of cells: which queue servers are used as one queue. As text or in a file, read at start and again while a
// process runs. Nothing here connects; what is wrong with a list is said at once, and no message has a password.

import { readFileSync, statSync, type Stats } from 'node:fs';
import { resolve } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { redactUrl } from './redact-url.ts';
import type { Settings } from './schema.ts';

export interface Cell {
  /** 1 to 32 of a-z 0-9 and -; part of public ids. */
  readonly name: string;
  /** As the setting `redisUrl`. */
  readonly address: string;
  /** Whether it takes new work. What it has is read either way. Default true. */
  readonly write?: boolean | undefined;
}

const NAME = /^[a-z0-9][a-z0-9-]{0,31}$/;
const ADDRESS = /^(rediss?(\+(sentinel|cluster))?|unix):\/\//;
const MOST_CELLS = 64;
/** 64 cells with long addresses are a tenth of it. */
const MOST_BYTES = 1 << 20;
const KEYS = ['name', 'address', 'write'];
const EXAMPLE = '[{"name":"a","address":"redis://10.0.0.5:6379"},{"name":"b","address":"redis://10.0.0.6:6379"}]';

/** The cells that the setting lists, or the file that it names. Throws CONFIG_INVALID with every problem. */
export function readCells(setting: string): readonly Cell[] {
  const path = cellsFile(setting);
  if (path === undefined) return cellsIn(setting, 'cells');
  const where = `the cells of ${path}`;
  let text: string;
  try {
    const problem = unreadable(statSync(path));
    if (problem !== undefined) throw new Error(problem);
    text = readFileSync(path, 'utf8');
  } catch (error) {
    throw invalid(where, [`the file cannot be read: ${error instanceof Error ? error.message : String(error)}`]);
  }
  return cellsIn(text, where);
}

/** What keeps a file from being a list of cells before it is read; one that is read every second is to be small. */
export function unreadable(stats: Pick<Stats, 'isFile' | 'size'>): string | undefined {
  if (!stats.isFile()) return 'it is no file';
  if (stats.size > MOST_BYTES)
    return `it has ${stats.size.toLocaleString('en')} bytes, and a list of cells has at most ${MOST_BYTES.toLocaleString('en')}`;
  return undefined;
}

/** The path that the setting names; undefined where it is the list itself. */
export function cellsFile(setting: string): string | undefined {
  return /^\s*\[/.test(setting) ? undefined : resolve(setting);
}

/** A list as JSON. `where` begins the message of CONFIG_INVALID. */
export function cellsIn(text: string, where: string): readonly Cell[] {
  let list: unknown;
  try {
    list = JSON.parse(text.replace(/^\uFEFF/, ''));
  } catch {
    // what JSON.parse says quotes what it found there, which may be a password
    throw invalid(where, [`it is not valid JSON; it must be a list of cells, such as ${EXAMPLE}`]);
  }
  return checkCells(list, where);
}

/** A list from anywhere, checked. `where` begins the message of CONFIG_INVALID. */
export function checkCells(list: unknown, where: string): readonly Cell[] {
  if (!Array.isArray(list) || list.length === 0 || list.length > MOST_CELLS)
    throw invalid(where, [`it must be a list of 1 to ${MOST_CELLS} cells, such as ${EXAMPLE}`]);
  const problems = list.flatMap((cell: unknown, at) => problemsOf(cell).map((problem) => `cell ${at + 1} ${problem}`));
  if (problems.length > 0) throw invalid(where, problems);
  const cells = list as readonly Cell[];
  const twice = cells.flatMap(({ name, address }, at) => {
    const before = cells.slice(0, at);
    const same = before.find((other) => isSamePlace(other.address, address));
    return [
      ...(before.some((other) => other.name === name) ? [`two cells are called "${name}"`] : []),
      ...(same === undefined ? [] : [`"${same.name}" and "${name}" are the same ${serverIn(address)}`]),
    ];
  });
  if (twice.length > 0) throw invalid(where, twice);
  if (cells.every(({ write }) => write === false))
    throw invalid(where, ['no cell takes new work: at least one must have "write": true, or say nothing of it']);
  return cells;
}

function problemsOf(cell: unknown): string[] {
  if (typeof cell !== 'object' || cell === null || Array.isArray(cell))
    return ['is no object of name, address and, where it takes no new work, "write": false'];
  const { name, address, write }: { readonly [Key in keyof Cell]?: unknown } = cell;
  const unknown = Object.keys(cell).filter((key) => !KEYS.includes(key));
  return [
    ...(typeof name === 'string' && NAME.test(name)
      ? []
      : ['has no name of 1 to 32 of a-z, 0-9 and "-", which does not begin with "-"']),
    ...(typeof address === 'string' && ADDRESS.test(address)
      ? []
      : ['has no address that begins with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://']),
    ...(write === undefined || typeof write === 'boolean' ? [] : ['has a "write" that is neither true nor false']),
    ...(unknown.length > 0 ? [`has ${unknown.map((key) => `"${key}"`).join(', ')}, which no cell has`] : []),
  ];
}

/** The cell at `redisUrl`, or the first. Throws CONFIG_INVALID where that is none of them. */
export function homeCell(cells: readonly Cell[], redisUrl: string | undefined): Cell {
  const home = redisUrl === undefined ? cells[0] : cells.find(({ address }) => isSamePlace(address, redisUrl));
  if (home !== undefined) return home;
  throw new ShoalError(
    'CONFIG_INVALID',
    `redisUrl is ${redactUrl(redisUrl ?? '')}, which is none of the cells ` +
      `(${cells.map(({ name, address }) => `${name} at ${redactUrl(address)}`).join(', ')}): it says which of them is ` +
      'home; leave it out for the first',
  );
}

/**
 * The settings with `redisUrl`, where cells are listed: the home cell's address. With none they are returned as they
 * are.
 */
export function withHome<Some extends Pick<Settings, 'cells' | 'redisUrl'>>(settings: Some): Some {
  const { cells, redisUrl } = settings;
  if (cells === undefined) return settings;
  const home = homeCell(readCells(cells), redisUrl);
  return { ...settings, cells: cellsFile(cells) ?? cells, redisUrl: redisUrl ?? home.address };
}

/** The list as it may be shown. A path is shown as it is. */
export function redactCells(setting: string): string {
  if (cellsFile(setting) !== undefined) return setting;
  try {
    const list = cellsIn(setting, 'cells');
    return JSON.stringify(list.map((cell) => ({ ...cell, address: redactUrl(cell.address) })));
  } catch {
    return '***';
  }
}

/** All cells have one prefix, so that all of a cluster's keys of Shoal lie on one of its nodes: it is one cell. */
function serverIn(address: string): string {
  if (!/^rediss?\+cluster:/.test(address)) return `server, ${redactUrl(address)}`;
  return `cluster, ${redactUrl(address)}: a cluster is one cell, whichever of its nodes are named`;
}

/** A cluster, or a master that Sentinels watch, may be named by some of its nodes, in any order. */
function isSamePlace(one: string, other: string): boolean {
  const [, kind, nodes = '', rest = ''] = MANY.exec(placeOf(one)) ?? [];
  const [, otherKind, otherNodes = '', otherRest = ''] = MANY.exec(placeOf(other)) ?? [];
  if (kind === undefined || otherKind === undefined) return placeOf(one) === placeOf(other);
  const some = new Set(nodes.split(','));
  return kind === otherKind && rest === otherRest && otherNodes.split(',').some((node) => some.has(node));
}

const MANY = /^rediss?\+(sentinel|cluster):\/\/([^/]*)(.*)$/;

/** Which server an address means, whoever asks it. */
function placeOf(address: string): string {
  const [, scheme = '', rest = ''] = /^([a-z+]+:\/\/)(?:[^/?]*@)?([^?]*)/s.exec(address) ?? [];
  const place = rest.replace(/\/0?$/, '');
  const hasPort = !/^rediss?:\/\/$/.test(scheme) || /:\d+(\/|$)/.test(place);
  return `${scheme}${hasPort ? place : place.replace(/(?=\/|$)/, ':6379')}`.toLowerCase();
}

function invalid(where: string, problems: readonly string[]): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError('CONFIG_INVALID', `${where}: ${problems.join('; ')}`, { problems });
}
