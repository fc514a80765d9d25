// Collections: named folders of versions, each a file that is written once (collection-file.ts). Building or appending
// makes the next version and never touches one that is there, so readers go on undisturbed with what they have open;
// the newest is the one with the highest number. Writers take turns by a lock; a version appears whole, by one rename,
// or not at all.

import { randomUUID } from 'node:crypto';
import { mkdir, open, readdir, rename, rm, rmdir, stat, type FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { cacheFolder } from '@shoal/core';
import { codeOf } from '@shoal/core/base';
import { withLock, writeAt } from '@shoal/fetch';
import { crc32 } from 'node:zlib';
import {
  aligned,
  encodeHeader,
  HEADER_BYTES,
  strideOf,
  type CollectionHeader,
  type Section,
} from './collection-file.ts';
import type { CollectionAbout } from './collection-file.ts';
import { COLLECTION_NAME_RULE, isCollectionName } from './collection-name.ts';
import { encodeRows, refuseLost } from './encode-rows.ts';
import { RowsModel } from './rows-model.ts';
import { readCollection, readHeader, type Collection, type OpenOptions } from './open-collection.ts';
import { matrixOf, ROW_TYPES, type RowType } from '../engines/vectors.ts';

/** Some rows on their way into a collection. */
export interface RowBatch {
  readonly dims: number;
  /** Whole rows. */
  readonly vectors: Float32Array;
  /** What people call the rows; an empty string is none. */
  readonly names?: readonly string[];
  /** Rising over the whole collection; absent: on from the last. */
  readonly ids?: BigUint64Array;
  /** The model that made the vectors, name@revision or a name alone; absent: not known. */
  readonly model?: string;
}

export type RowSource = AsyncIterable<RowBatch> | Iterable<RowBatch>;

export interface WriteOptions {
  readonly signal?: AbortSignal;
  readonly onRows?: (rows: number) => void;
  /**
   * Versions that stay, the new one included; default 2, so that what was queued against the last one still finds it.
   */
  readonly keepVersions?: number;
  /**
   * `model`: what made all rows of the source. Without it, what comes with the rows; a collection keeps a model only
   * while all of its rows are known to come from it (DIMENSIONS_MISMATCH when they do not).
   */
  readonly about?: CollectionAbout;
}

export interface CreateOptions extends WriteOptions {
  readonly dtype?: RowType;
  /** Needed where the source may be empty. */
  readonly dims?: number;
}

export interface CollectionInfo {
  readonly name: string;
  readonly version: number;
  /** All that are there, newest first. */
  readonly versions: readonly number[];
  readonly rows: number;
  readonly dims: number;
  readonly dtype: RowType;
  readonly bytes: number;
  readonly createdMs: number;
  readonly path: string;
}

export interface DamagedCollection {
  readonly name: string;
  readonly error: ShoalError;
}

/** Where collections are, given the settings `collectionsDir` and `cacheDir`. */
export function collectionsFolder(
  settings: { readonly collectionsDir?: string | undefined; readonly cacheDir?: string | undefined },
  environment?: Readonly<Record<string, string | undefined>>,
): string {
  return settings.collectionsDir ?? join(cacheFolder(settings.cacheDir, environment), 'collections');
}

/** A new version with the rows of `source` and nothing else; the first one when there is no such collection. */
export async function createCollection(
  folder: string,
  name: string,
  source: RowSource,
  options: CreateOptions = {},
): Promise<CollectionInfo> {
  checkName(name);
  const { dtype = 'f32' } = options;
  if (!ROW_TYPES.includes(dtype))
    throw new ShoalError('SEARCH_INVALID', `"${String(dtype)}" is no type of rows: there are ${ROW_TYPES.join(', ')}`, {
      dtype,
    });
  return withDraft(folder, name, async (file) => {
    const model = new RowsModel(name, undefined, options.about?.model);
    const writer = new RowsWriter(file, dtype, { dims: options.dims, model });
    await writer.addAll(source, options);
    return withLock(lockPath(folder, name), () => publish(folder, name, writer, options));
  });
}

/** A new version with the rows of the newest one and those of `source` behind them. Another writer waits meanwhile. */
export async function appendToCollection(
  folder: string,
  name: string,
  source: RowSource,
  options: WriteOptions = {},
): Promise<CollectionInfo> {
  checkName(name);
  return withLock(lockPath(folder, name), async () => {
    const base = await openCollection(folder, name);
    return withDraft(folder, name, async (file) => {
      const before = { rows: base.rows, model: base.about.model };
      const model = new RowsModel(name, before, options.about?.model);
      const writer = new RowsWriter(file, base.dtype, { dims: base.dims, model });
      await writer.addCollection(base);
      base.checkIntact();
      await writer.addAll(source, options);
      return publish(folder, name, writer, { ...options, about: { ...base.about, ...options.about } });
    });
  });
}

/**
 * Opens "docs" (the newest version) or "docs@3". COLLECTION_UNKNOWN, COLLECTION_GONE or COLLECTION_CORRUPT when it
 * cannot.
 */
export async function openCollection(
  folder: string,
  nameAndVersion: string,
  options: OpenOptions = {},
): Promise<Collection> {
  const { name, version } = parseName(nameAndVersion);
  for (let attempt = 0; ; attempt++) {
    const versions = await versionsOf(folder, name);
    const wanted = version ?? versions[0];
    if (wanted === undefined) throw await unknownCollection(folder, name);
    if (!versions.includes(wanted)) throw gone(name, wanted, versions);
    try {
      return await readCollection(pathOf(folder, name, wanted), name, options);
    } catch (error) {
      // A writer may have taken the version away between the look and the opening: the newest one is another by now.
      if (!isMissing(error)) throw error;
      if (version !== undefined || attempt === 2) throw gone(name, wanted, await versionsOf(folder, name));
    }
  }
}

/** Every collection by name, its newest version; a damaged one with its error. */
export async function listCollections(folder: string): Promise<readonly (CollectionInfo | DamagedCollection)[]> {
  const names = (await entriesOf(folder)).filter(isCollectionName).sort();
  const found = await Promise.all(
    names.map(async (name) => {
      try {
        return [await collectionInfo(folder, name)];
      } catch (error) {
        if (!(error instanceof ShoalError)) throw error;
        return error.code === 'COLLECTION_UNKNOWN' ? [] : [{ name, error }];
      }
    }),
  );
  return found.flat();
}

/** What the header says, without reading the rows. */
export async function collectionInfo(folder: string, nameAndVersion: string): Promise<CollectionInfo> {
  const { name, version } = parseName(nameAndVersion);
  const versions = await versionsOf(folder, name);
  const wanted = version ?? versions[0];
  if (wanted === undefined) throw await unknownCollection(folder, name);
  if (!versions.includes(wanted)) throw gone(name, wanted, versions);
  const path = pathOf(folder, name, wanted);
  const header = await readHeader(path).catch((error: unknown) => {
    throw isMissing(error) ? gone(name, wanted, versions) : error;
  });
  return infoOf(name, versions, path, header);
}

/** Takes away one version ("docs@3") or all of them; who has one open keeps it. Returns the versions that went. */
export async function removeCollection(folder: string, nameAndVersion: string): Promise<readonly number[]> {
  const { name, version } = parseName(nameAndVersion);
  return withLock(lockPath(folder, name), async () => {
    const versions = await versionsOf(folder, name);
    if (versions.length === 0) throw await unknownCollection(folder, name);
    if (version !== undefined && !versions.includes(version)) throw gone(name, version, versions);
    const leaving = version === undefined ? versions : [version];
    for (const each of leaving) await removeVersion(folder, name, each);
    if (leaving.length === versions.length) await rm(join(folder, name), { recursive: true, force: true });
    return leaving;
  });
}

/** Reads every byte of a version and compares it with its checksum. */
export async function checkCollection(folder: string, nameAndVersion: string): Promise<CollectionInfo> {
  const collection = await openCollection(folder, nameAndVersion, { verify: true, map: false });
  return collectionInfo(folder, `${collection.name}@${collection.version}`);
}

/** The path beside a version for what is derived from it; it goes with the version. */
export function besideVersion(folder: string, name: string, version: number, extension: string): string {
  return join(folder, name, `${version}.${extension}`);
}

function checkName(name: string): void {
  if (!isCollectionName(name))
    throw new ShoalError(
      'COLLECTION_UNKNOWN',
      `"${name}" cannot be the name of a collection: ${COLLECTION_NAME_RULE}`,
      { name },
    );
}

function parseName(nameAndVersion: string): { name: string; version: number | undefined } {
  const [name = '', version, ...rest] = nameAndVersion.split('@');
  checkName(name);
  if (version === undefined) return { name, version: undefined };
  if (rest.length > 0 || !/^[1-9]\d{0,14}$/.test(version))
    throw new ShoalError('COLLECTION_UNKNOWN', `"${nameAndVersion}" has no version: name@1, name@2 …`, { name });
  return { name, version: Number(version) };
}

function pathOf(folder: string, name: string, version: number): string {
  return besideVersion(folder, name, version, 'shc');
}

function lockPath(folder: string, name: string): string {
  return join(folder, `.${name}.lock`);
}

async function versionsOf(folder: string, name: string): Promise<number[]> {
  const versions = (await entriesOf(join(folder, name))).flatMap((file) => {
    const version = /^([1-9]\d{0,14})\.shc$/.exec(file)?.[1];
    return version === undefined ? [] : [Number(version)];
  });
  return versions.sort((a, b) => b - a);
}

async function entriesOf(folder: string): Promise<string[]> {
  return readdir(folder).catch((error: unknown) => {
    if (isMissing(error) || codeOf(error) === 'ENOTDIR') return [];
    throw error;
  });
}

async function removeVersion(folder: string, name: string, version: number): Promise<void> {
  for (const file of await entriesOf(join(folder, name)))
    if (file.startsWith(`${version}.`)) await rm(join(folder, name, file), { force: true });
}

async function unknownCollection(folder: string, name: string): Promise<ShoalError> {
  const names = (await entriesOf(folder)).filter(isCollectionName).sort();
  const there =
    names.length === 0
      ? 'there is none yet'
      : `there ${names.length === 1 ? 'is' : 'are'} ${names.slice(0, 10).join(', ')}${names.length > 10 ? ' …' : ''}`;
  return new ShoalError(
    'COLLECTION_UNKNOWN',
    `no collection is called ${name}: ${there} (shoal index build ${name} FILE… makes one)`,
    { name },
  );
}

function gone(name: string, version: number, versions: readonly number[]): ShoalError {
  const there =
    versions.length === 0
      ? 'the collection was removed'
      : `there ${versions.length === 1 ? 'is' : 'are'} ${versions.map((each) => `${name}@${each}`).join(', ')}`;
  return new ShoalError('COLLECTION_GONE', `${name}@${version} is not there (any more): ${there}`, { name, version });
}

function isMissing(error: unknown): boolean {
  return codeOf(error) === 'ENOENT';
}

function infoOf(
  name: string,
  versions: readonly number[],
  path: string,
  { version, rows, dims, dtype, fileBytes, createdMs }: CollectionHeader,
): CollectionInfo {
  return { name, version, versions, rows, dims, dtype, bytes: fileBytes, createdMs, path };
}

/** A file beside the versions that goes away unless it becomes one. */
async function withDraft<T>(folder: string, name: string, write: (file: Draft) => Promise<T>): Promise<T> {
  await mkdir(join(folder, name), { recursive: true, mode: 0o700 });
  await sweepDrafts(join(folder, name));
  const path = join(folder, name, `.${randomUUID().slice(0, 8)}.part`);
  const handle = await open(path, 'wx+');
  try {
    return await write({ path, handle });
  } finally {
    await handle.close();
    await rm(path, { force: true });
    await rmdir(join(folder, name)).catch(() => undefined); // a first build that failed leaves no empty folder
  }
}

interface Draft {
  readonly path: string;
  readonly handle: FileHandle;
}

/** What killed builds left a day ago or earlier. */
async function sweepDrafts(folder: string): Promise<void> {
  for (const file of await entriesOf(folder)) {
    if (!file.endsWith('.part')) continue;
    const found = await stat(join(folder, file)).catch(() => undefined);
    if (found !== undefined && Date.now() - found.mtimeMs > 86_400_000) await rm(join(folder, file), { force: true });
  }
}

/** Gives a finished draft the next number. Called under the lock. */
async function publish(
  folder: string,
  name: string,
  writer: RowsWriter,
  { keepVersions = 2, about = {} }: WriteOptions,
): Promise<CollectionInfo> {
  const before = await versionsOf(folder, name);
  const { model: _, ...others } = about;
  const known = writer.model === undefined ? others : { model: writer.model, ...others };
  const header = await writer.finish((before[0] ?? 0) + 1, known);
  const path = pathOf(folder, name, header.version);
  await rename(writer.path, path);
  await syncFolder(join(folder, name));
  const versions = [header.version, ...before];
  for (const old of versions.slice(keepVersions)) await removeVersion(folder, name, old);
  return infoOf(name, versions.slice(0, keepVersions), path, header);
}

async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r').catch(() => undefined);
  await handle?.sync().catch(() => undefined);
  await handle?.close();
}

/** Rows go to the disk as they come; what is small beside them (scales, lengths, ids, names) waits for the end. */
class RowsWriter {
  readonly #file: Draft;
  readonly #dtype: RowType;
  #dims: number | undefined;
  #rows = 0;
  #at = HEADER_BYTES;
  #crc = 0;
  readonly #scales: Float32Array[] = [];
  readonly #lengths: Float32Array[] = [];
  readonly #ids: BigUint64Array[] = [];
  #lastId = -1n;
  #hasIds = false;
  readonly #names: string[] = [];
  readonly #model: RowsModel;
  #hasNames = false;

  constructor(
    file: Draft,
    dtype: RowType,
    { dims, model }: { readonly dims: number | undefined; readonly model: RowsModel },
  ) {
    this.#file = file;
    this.#dtype = dtype;
    this.#dims = dims;
    this.#model = model;
  }

  /** Of all rows; undefined when it is not known. */
  get model(): string | undefined {
    return this.#model.model;
  }

  get path(): string {
    return this.#file.path;
  }

  async addAll(source: RowSource, { signal, onRows }: WriteOptions): Promise<void> {
    for await (const batch of source) {
      signal?.throwIfAborted();
      await this.#add(batch);
      onRows?.(this.#rows);
    }
    signal?.throwIfAborted();
  }

  async #add({ dims, vectors, names, ids, model }: RowBatch): Promise<void> {
    this.#dims ??= dims;
    if (dims !== this.#dims)
      throw new ShoalError(
        'DIMENSIONS_MISMATCH',
        `row ${this.#rows} has ${dims} dimensions and the rows before it ${this.#dims}: all must come from one model`,
        { found: dims, expected: this.#dims },
      );
    const matrix = matrixOf(vectors, dims);
    if (matrix.rows > 0) this.#model.add(model);
    const encoded = encodeRows(matrix, this.#dtype, this.#rows);
    refuseLost(encoded, this.#dtype, this.#rows);
    const { data, scales, lengths } = encoded;
    this.#addIds(matrix.rows, ids);
    for (let row = 0; row < matrix.rows; row++) this.#names.push(names?.[row] ?? '');
    this.#hasNames ||= names !== undefined;
    this.#scales.push(scales);
    this.#lengths.push(lengths);
    this.#rows += matrix.rows;
    await this.#write(data);
  }

  /** All rows of another version, as they are stored. */
  async addCollection({ block, names, rows }: Collection): Promise<void> {
    this.#addIds(rows, block.ids);
    for (let row = 0; row < rows; row++) this.#names.push(names?.(row) ?? '');
    this.#hasNames = names !== undefined;
    if (block.scales !== undefined) this.#scales.push(block.scales.slice());
    this.#lengths.push(block.lengths!.slice());
    this.#rows = rows;
    for (let at = 0; at < block.data.length; at += 1 << 24) await this.#write(block.data.subarray(at, at + (1 << 24)));
  }

  #addIds(rows: number, given: BigUint64Array | undefined): void {
    if (given !== undefined && given.length !== rows)
      throw new ShoalError('INPUT_INVALID', `${rows} rows came with ${given.length} ids`, {});
    const ids = given ?? BigUint64Array.from({ length: rows }, (_, i) => this.#lastId + 1n + BigInt(i));
    for (const [i, id] of ids.entries()) {
      if (id <= this.#lastId)
        throw new ShoalError(
          'INPUT_INVALID',
          `the id ${id} of row ${this.#rows + i} is not above ${this.#lastId}, the one before it: ids rise, so ` +
            'that ties have an order',
          {},
        );
      this.#lastId = id;
      this.#hasIds ||= id !== BigInt(this.#rows + i);
    }
    this.#ids.push(ids.slice());
  }

  /** Sections, header and all of it on the disk. */
  async finish(version: number, about: CollectionAbout): Promise<CollectionHeader> {
    if (this.#dims === undefined)
      throw new ShoalError(
        'COLLECTION_EMPTY',
        'there are no rows, so nobody knows how many dimensions the collection has',
        {},
      );
    const at: Partial<Record<Section, number>> = { rows: HEADER_BYTES };
    const sections: readonly (readonly [Section, readonly Uint8Array[]])[] = [
      ['scales', this.#dtype === 'i8' ? this.#scales.map(bytesOf) : []],
      ['lengths', this.#lengths.map(bytesOf)],
      ['ids', this.#hasIds ? this.#ids.map(bytesOf) : []],
      ['names', this.#hasNames ? encodeNames(this.#names) : []],
      ['about', [Buffer.from(JSON.stringify(about))]],
    ];
    for (const [section, parts] of sections) {
      await this.#write(Buffer.alloc(aligned(this.#at) - this.#at));
      at[section] = this.#at;
      for (const part of parts) await this.#write(part);
    }
    const header: CollectionHeader = {
      dtype: this.#dtype,
      dims: this.#dims,
      rows: this.#rows,
      strideBytes: strideOf(this.#dtype, this.#dims),
      version,
      createdMs: Date.now(),
      hasIds: this.#hasIds,
      hasNames: this.#hasNames,
      at: at as Record<Section, number>,
      fileBytes: this.#at,
      crc: this.#crc,
    };
    await writeAt(this.#file.handle, encodeHeader(header), 0);
    await this.#file.handle.sync();
    return header;
  }

  async #write(bytes: Uint8Array): Promise<void> {
    this.#crc = crc32(bytes, this.#crc);
    await writeAt(this.#file.handle, bytes, this.#at);
    this.#at += bytes.length;
  }
}

function bytesOf(values: Float32Array | BigUint64Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

function encodeNames(names: readonly string[]): Uint8Array[] {
  const encoded = names.map((name) => Buffer.from(name));
  const offsets = new BigUint64Array(names.length + 1);
  encoded.forEach((name, i) => (offsets[i + 1] = offsets[i]! + BigInt(name.length)));
  return [bytesOf(offsets), Buffer.concat(encoded)];
}
