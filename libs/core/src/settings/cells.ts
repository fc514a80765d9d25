// The list of cells: which queue servers are used as one queue. As text or in a file, read at start and again while a
// process runs. Nothing here connects; what is wrong with a list is said at once, and no message has a password.

import { readFileSync, statSync, type Stats } from 'node:fs';
import { resolve } from 'node:path';
import { DEFAULT_PREFIX, ShoalError } from '@shoal/contract';
import { redactUrl } from './redact-url.ts';
import type { Settings } from './schema.ts';

export interface Cell {
  /** 1 to 32 of a-z 0-9 and -; part of public ids. */
  readonly name: string;
  /** As the setting `redisUrl`. */
  readonly address: string;
  /** As the setting `prefix`, whose cells without one have that. Either all cells of a list name theirs, or none. */
  readonly prefix?: string | undefined;
  /** Whether it takes new work. What it has is read either way. Default true. */
  readonly write?: boolean | undefined;
}

/** As it stands in a list. */
export interface ListedCell extends Cell {
  /** Of a cluster: it stands for so many cells, 1 to 64, on the cluster's nodes. */
  readonly cells?: number | undefined;
}

const NAME = /^[a-z0-9][a-z0-9-]{0,31}$/;
const ADDRESS = /^(rediss?(\+(sentinel|cluster))?|unix):\/\//;
const CLUSTER = /^rediss?\+cluster:\/\//;
const PREFIX = /^\{[^{}]{1,64}\}$/;
/** Of the cells that one entry stands for, a cluster's, where it does not say another. */
const CELL_OF_CLUSTER = 'shoal';
const MOST_CELLS = 64;
/** 64 cells with long addresses are a tenth of it. */
const MOST_BYTES = 1 << 20;
const KEYS = ['name', 'address', 'prefix', 'write', 'cells'];
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

/** The path that the setting names; undefined where it is the list itself, or a cluster. */
export function cellsFile(setting: string): string | undefined {
  return /^\s*(\[|rediss?\+cluster:)/.test(setting) ? undefined : resolve(setting);
}

/** A list as JSON, or a cluster with the number of its cells: redis+cluster://host:port,host:port?cells=8. `where` begins the message of CONFIG_INVALID. */
export function cellsIn(text: string, where: string): readonly Cell[] {
  if (CLUSTER.test(text.trim())) return checkCells([cellsOfCluster(text.trim(), where)], where);
  let list: unknown;
  try {
    list = JSON.parse(text.replace(/^\uFEFF/, ''));
  } catch {
    // what JSON.parse says quotes what it found there, which may be a password
    throw invalid(where, [`it is not valid JSON; it must be a list of cells, such as ${EXAMPLE}`]);
  }
  return checkCells(list, where);
}

function cellsOfCluster(address: string, where: string): object {
  const [place = '', query = ''] = address.split(/\?(.*)/s);
  const parameters = query.split('&');
  const count = parameters.flatMap((one) => /^cells=(\d+)$/.exec(one)?.[1] ?? []);
  if (count.length !== 1)
    throw invalid(where, [
      `a cluster needs the number of its cells, 1 to ${MOST_CELLS}, once: ${redactUrl(place)}?cells=8`,
    ]);
  const others = parameters.filter((one) => !one.startsWith('cells=')).join('&');
  return { name: CELL_OF_CLUSTER, address: others === '' ? place : `${place}?${others}`, cells: Number(count[0]) };
}

/**
 * A list from anywhere, checked; an entry with `cells` stands for so many, on the nodes of its cluster. `where` begins the
 * message of CONFIG_INVALID.
 */
export function checkCells(given: unknown, where: string): readonly Cell[] {
  const list = Array.isArray(given) ? given.flatMap(entriesOf) : given;
  if (!Array.isArray(list) || list.length === 0 || list.length > MOST_CELLS)
    throw invalid(where, [`it must be a list of 1 to ${MOST_CELLS} cells, such as ${EXAMPLE}`]);
  const problems = list.flatMap((cell: unknown, at) => problemsOf(cell).map((problem) => `cell ${at + 1} ${problem}`));
  if (problems.length > 0) throw invalid(where, problems);
  const cells = list as readonly Cell[];
  const unnamed = cells.flatMap(({ name, prefix }) => (prefix === undefined ? [`"${name}"`] : []));
  const isMixed = unnamed.length > 0 && unnamed.length < cells.length;
  if (isMixed)
    throw invalid(where, [
      `${unnamed.join(', ')} ${unnamed.length === 1 ? 'names' : 'name'} no prefix and others do: name one of each, ` +
        `"prefix": "${DEFAULT_PREFIX}" where that is meant`,
    ]);
  const twice = cells.flatMap(({ name, address, prefix }, at) => {
    const before = cells.slice(0, at);
    const same = before.find((other) => other.prefix === prefix && isSamePlace(other.address, address));
    return [
      ...(before.some((other) => other.name === name) ? [`two cells are called "${name}"`] : []),
      ...(same === undefined ? [] : [`"${same.name}" and "${name}" are the same ${serverIn(address, prefix)}`]),
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
  const { name, address, prefix, write, cells }: { readonly [Key in keyof Cell | 'cells']?: unknown } = cell;
  const unknown = Object.keys(cell).filter((key) => !KEYS.includes(key));
  return [
    ...(typeof name === 'string' && NAME.test(name)
      ? []
      : ['has no name of 1 to 32 of a-z, 0-9 and "-", which does not begin with "-"']),
    ...(typeof address === 'string' && ADDRESS.test(address)
      ? []
      : ['has no address that begins with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://']),
    ...(prefix === undefined || (typeof prefix === 'string' && PREFIX.test(prefix))
      ? []
      : ['has a "prefix" that is no hash tag such as {shoal.1}']),
    ...(cells === undefined
      ? []
      : [
          `has "cells" of ${wordsOf(cells)}; it is the number, 1 to ${MOST_CELLS}, of the cells of a cluster, whose ` +
            'address names its nodes, such as redis+cluster://10.0.0.5:6379',
        ]),
    ...(write === undefined || typeof write === 'boolean' ? [] : ['has a "write" that is neither true nor false']),
    ...(unknown.length > 0 ? [`has ${unknown.map((key) => `"${key}"`).join(', ')}, which no cell has`] : []),
  ];
}

function wordsOf(cells: unknown): string {
  return typeof cells === 'number' ? String(cells) : `a ${typeof cells}`;
}

/** The cells that an entry stands for: itself, or those of a cluster, NAME-0 with the prefix {shoal.0} and so on. */
function entriesOf(entry: unknown): readonly unknown[] {
  if (typeof entry !== 'object' || entry === null || !('cells' in entry)) return [entry];
  const { cells: count, ...cell }: { readonly cells: unknown; readonly [Key: string]: unknown } = entry;
  const { name, address, prefix = DEFAULT_PREFIX } = cell;
  const isCluster = typeof address === 'string' && CLUSTER.test(address);
  const isCount = typeof count === 'number' && Number.isInteger(count) && count >= 1 && count <= MOST_CELLS;
  if (!isCluster || !isCount || typeof prefix !== 'string') return [entry];
  return Array.from({ length: count }, (_, at) => ({
    ...cell,
    name: `${String(name)}-${at}`,
    prefix: prefix.replace(/\}$/, `.${at}}`),
  }));
}

/**
 * The cell at `redisUrl`, of several there the one with `prefix`, or the first. Throws CONFIG_INVALID where that is none
 * of them.
 */
export function homeCell(cells: readonly Cell[], redisUrl: string | undefined, prefix = DEFAULT_PREFIX): Cell {
  const there = redisUrl === undefined ? cells : cells.filter(({ address }) => isSamePlace(address, redisUrl));
  const isSaid = redisUrl !== undefined || prefix !== DEFAULT_PREFIX;
  const named = isSaid ? there.find((cell) => (cell.prefix ?? prefix) === prefix) : undefined;
  const home = named ?? (prefix === DEFAULT_PREFIX ? there[0] : undefined);
  if (home !== undefined) return home;
  if (there.length > 0)
    throw new ShoalError(
      'CONFIG_INVALID',
      `prefix is ${prefix}, which is that of none of the cells there ` +
        `(${there.map((cell) => `${cell.name} has ${cell.prefix}`).join(', ')}): with redisUrl it says which of them is ` +
        'home; leave it out for the first',
    );
  throw new ShoalError(
    'CONFIG_INVALID',
    `redisUrl is ${redactUrl(redisUrl ?? '')}, which is none of the cells ` +
      `(${cells.map(({ name, address }) => `${name} at ${redactUrl(address)}`).join(', ')}): it says which of them is ` +
      'home; leave it out for the first',
  );
}

/**
 * The settings with `redisUrl` and `prefix`, where cells are listed, of the home cell. With none they are returned as they
 * are.
 */
export function withHome<Some extends Pick<Settings, 'cells' | 'redisUrl' | 'prefix'>>(settings: Some): Some {
  const { cells, redisUrl, prefix } = settings;
  if (cells === undefined) return settings;
  const home = homeCell(readCells(cells), redisUrl, prefix);
  return {
    ...settings,
    cells: cellsFile(cells) ?? cells,
    redisUrl: redisUrl ?? home.address,
    prefix: home.prefix ?? prefix,
  };
}

/** The list as it may be shown. A path is shown as it is. */
export function redactCells(setting: string): string {
  if (cellsFile(setting) !== undefined) return setting;
  if (CLUSTER.test(setting.trim())) return redactUrl(setting.trim());
  try {
    const list = cellsIn(setting, 'cells');
    return JSON.stringify(list.map((cell) => ({ ...cell, address: redactUrl(cell.address) })));
  } catch {
    return '***';
  }
}

/** Whose cells are told apart by their prefixes alone. */
function serverIn(address: string, prefix: string | undefined): string {
  const same = prefix === undefined ? 'where cells name no prefix' : `under the prefix ${prefix}`;
  if (!CLUSTER.test(address)) return `server, ${redactUrl(address)}, ${same}`;
  return `cluster, ${redactUrl(address)}, ${same}, whichever of its nodes are named ("cells": 8 makes several of it)`;
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

/** Two cells of a list that are the same have the same: what is open towards one serves the other. */
export function placeOfCell({ name, address, prefix = '' }: Pick<Cell, 'name' | 'address' | 'prefix'>): string {
  return `${name} ${prefix} ${address}`;
}

/** Which database of which server an address means, whoever asks it. */
function placeOf(address: string): string {
  const [, scheme = '', rest = '', parameters = ''] = /^([a-z+]+:\/\/)(?:[^/?]*@)?([^?]*)(.*)$/s.exec(address) ?? [];
  const database = /[?&]db=0*([1-9]\d*)(&|$)/.exec(parameters)?.[1];
  const place = rest.replace(/\/0?$/, '') + (database === undefined ? '' : `/${database}`);
  const hasPort = !/^rediss?:\/\/$/.test(scheme) || /:\d+(\/|$)/.test(place);
  return `${scheme}${hasPort ? place : place.replace(/(?=\/|$)/, ':6379')}`.toLowerCase();
}

function invalid(where: string, problems: readonly string[]): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError('CONFIG_INVALID', `${where}: ${problems.join('; ')}`, { problems });
}
