// Files, batches and jobs in the storage, each below its tenant, so that no id finds what is another's. What is still to
// be done has a mark in one folder, which is all that a process looks through.

import { createHash } from 'node:crypto';
import {
  endedAt,
  hasEnded,
  isId,
  madeMs,
  nowSeconds,
  type BatchRecord,
  type FileRecord,
  type JobRecord,
  type Kind,
} from './records.ts';
import type { Storage } from './storage.ts';

/** The record of each kind. */
export interface Records {
  readonly file: FileRecord;
  readonly batch: BatchRecord;
  readonly job: JobRecord;
}

/** A record and the version that whoever replaces it must have seen. */
export interface Versioned<Record> {
  readonly record: Record;
  readonly version: string;
}

export interface Page<Item> {
  readonly data: readonly Item[];
  readonly hasMore: boolean;
}

export interface PageTerms<Item> {
  readonly limit: number;
  /** Id of the last one that the caller has. */
  readonly after?: string | undefined;
  readonly order?: 'asc' | 'desc';
  readonly wanted?: (item: Item) => boolean;
}

const FOLDER: Readonly<Record<Kind, string>> = { file: 'files', batch: 'batches', job: 'jobs' };
const TO_DO = 'open';
const TENANTS = 'tenants';
/** No upload takes so long. */
const ABANDONED_MS = 24 * 3_600_000;

export interface ToDo {
  readonly kind: 'batch' | 'job';
  readonly owner: string;
  readonly id: string;
}

export class BatchStore {
  readonly storage: Storage;
  /** Tenants whose names are stored. */
  private readonly known = new Set<string>();

  constructor(storage: Storage) {
    this.storage = storage;
  }

  // ---- records ----------------------------------------------------------------------------------------------------

  /** Undefined where this tenant has none of that id, or has one that has expired. */
  async find<K extends Kind>(kind: K, tenant: string, id: string): Promise<Versioned<Records[K]> | undefined> {
    if (!isId(kind, id)) return undefined;
    const found = await this.findOf(kind, ownerOf(tenant), id);
    return found === undefined || isGone(found.record) ? undefined : found;
  }

  /** The same of a mark, which knows its owner and not the tenant. */
  async findOf<K extends Kind>(kind: K, owner: string, id: string): Promise<Versioned<Records[K]> | undefined> {
    const found = await this.storage.read(keyOf(kind, owner, id));
    if (found === undefined) return undefined;
    return { record: JSON.parse(found.bytes.toString()) as Records[K], version: found.version };
  }

  /** A new one. */
  async create<K extends Kind>(kind: K, record: Records[K]): Promise<Versioned<Records[K]>> {
    await this.know(record.tenant);
    const version = await this.save(kind, record, undefined);
    if (version === undefined) throw new Error(`there is a ${kind} ${record.id} already`);
    return { record, version };
  }

  /** The new version; undefined where somebody else was first. */
  save<K extends Kind>(kind: K, record: Records[K], version: string | undefined): Promise<string | undefined> {
    const bytes = Buffer.from(JSON.stringify(record));
    return this.storage.replace(keyOf(kind, ownerOf(record.tenant), record.id), bytes, version);
  }

  /**
   * What `change` makes of the record as it is now, tried again where somebody else was first. Undefined where there is
   * no such record; as it is where `change` gives undefined.
   */
  async update<K extends Kind>(
    kind: K,
    tenant: string,
    id: string,
    change: (record: Records[K]) => Records[K] | undefined,
  ): Promise<Versioned<Records[K]> | undefined> {
    for (;;) {
      const found = await this.find(kind, tenant, id);
      if (found === undefined) return undefined;
      const changed = change(found.record);
      if (changed === undefined) return found;
      const version = await this.save(kind, changed, found.version);
      if (version !== undefined) return { record: changed, version };
    }
  }

  /** Newest first unless asked otherwise. Undefined where the tenant has no `after`. */
  async page<K extends Kind>(
    kind: K,
    tenant: string,
    { limit, after, order = 'desc', wanted = () => true }: PageTerms<Records[K]>,
  ): Promise<Page<Records[K]> | undefined> {
    if (after !== undefined && (await this.find(kind, tenant, after)) === undefined) return undefined;
    const data: Records[K][] = [];
    for await (const id of this.ids(kind, tenant, order, after)) {
      const found = await this.find(kind, tenant, id);
      if (found === undefined || !wanted(found.record)) continue;
      if (data.length === limit) return { data, hasMore: true };
      data.push(found.record);
    }
    return { data, hasMore: false };
  }

  private async *ids(
    kind: Kind,
    tenant: string,
    order: 'asc' | 'desc',
    after: string | undefined,
  ): AsyncGenerator<string, void, undefined> {
    const folder = `t/${ownerOf(tenant)}/${FOLDER[kind]}`;
    if (order === 'desc') return yield* this.storage.names(folder, after);
    const newestFirst: string[] = [];
    for await (const id of this.storage.names(folder)) newestFirst.push(id);
    for (const id of newestFirst.toReversed()) if (after === undefined || id < after) yield id;
  }

  /** With its content, result or shards, whatever there is. */
  async remove(kind: Kind, tenant: string, id: string): Promise<void> {
    const owner = ownerOf(tenant);
    await this.storage.remove(keyOf(kind, owner, id));
    if (kind === 'file') await this.storage.remove(this.contentKey(tenant, id));
    if (kind === 'job')
      for (const key of [this.askedKey(tenant, id), this.resultKey(tenant, id)]) await this.storage.remove(key);
    if (kind === 'batch') {
      await this.removeShards(tenant, id);
      await this.storage.forWorkers?.clear(this.partsFolder(tenant, id));
    }
  }

  // ---- contents ---------------------------------------------------------------------------------------------------

  contentKey(tenant: string, id: string): string {
    return `t/${ownerOf(tenant)}/contents/${id}`;
  }

  /** What a job asks for. */
  askedKey(tenant: string, id: string): string {
    return `t/${ownerOf(tenant)}/asked/${id}`;
  }

  /** What it got: the body of an answer. */
  resultKey(tenant: string, id: string): string {
    return `t/${ownerOf(tenant)}/results/${id}`;
  }

  /** A shard of a batch's output or of its errors. */
  shardKey(tenant: string, id: string, shard: number, which: 'out' | 'err'): string {
    return `t/${ownerOf(tenant)}/shards/${id}/${String(shard).padStart(8, '0')}.${which}`;
  }

  /** Where workers write what becomes of a batch's lines. */
  partsFolder(tenant: string, id: string): string {
    return `t/${ownerOf(tenant)}/parts/${id}`;
  }

  async removeShards(tenant: string, id: string): Promise<void> {
    const folder = `t/${ownerOf(tenant)}/shards/${id}`;
    for await (const name of this.storage.names(folder)) await this.storage.remove(`${folder}/${name}`);
  }

  // ---- what is to be done -----------------------------------------------------------------------------------------

  /** To be called before the record is there: a mark without a record is taken away, a record without one is lost. */
  async mark(kind: 'batch' | 'job', tenant: string, id: string): Promise<void> {
    await this.storage.replace(markOf(kind, ownerOf(tenant), id), Buffer.from('{}'), undefined);
  }

  async unmark({ kind, owner, id }: ToDo): Promise<void> {
    await this.storage.remove(markOf(kind, owner, id));
  }

  async *toDo(): AsyncGenerator<ToDo, void, undefined> {
    for await (const name of this.storage.names(TO_DO)) {
      const [owner = '', kind, id = ''] = name.split('~');
      if (kind === 'batch' || kind === 'job') yield { kind, owner, id };
    }
  }

  /** Batches or jobs of a tenant that have not ended; those whose callers are still to be told may be among them. */
  async openOf(kind: 'batch' | 'job', tenant: string): Promise<string[]> {
    const owner = ownerOf(tenant);
    const ids: string[] = [];
    for await (const one of this.toDo()) if (one.kind === kind && one.owner === owner) ids.push(one.id);
    return ids;
  }

  /** Whether so many batches or jobs of a tenant have not ended, and how many. Records are read only where it may be. */
  async tooMany(kind: 'batch' | 'job', tenant: string, most: number): Promise<number | undefined> {
    const marked = await this.openOf(kind, tenant);
    if (marked.length < most) return undefined;
    let open = 0;
    for (const id of marked) {
      const found = await this.find(kind, tenant, id);
      if (found !== undefined && !hasEnded(found.record)) open++;
    }
    return open >= most ? open : undefined;
  }

  /** Files that open batches of a tenant read. */
  private async inputsOf(tenant: string): Promise<ReadonlySet<string>> {
    const inputs = new Set<string>();
    for (const id of await this.openOf('batch', tenant)) {
      const found = await this.find('batch', tenant, id);
      if (found !== undefined && !hasEnded(found.record)) inputs.add(found.record.input_file_id);
    }
    return inputs;
  }

  /** The open batch that reads this file, if there is one. */
  async readerOf(tenant: string, fileId: string): Promise<string | undefined> {
    for (const id of await this.openOf('batch', tenant)) {
      const found = await this.find('batch', tenant, id);
      if (found !== undefined && !hasEnded(found.record) && found.record.input_file_id === fileId) return id;
    }
    return undefined;
  }

  // ---- retention --------------------------------------------------------------------------------------------------

  /** Everybody who ever stored something. */
  async *tenants(): AsyncGenerator<string, void, undefined> {
    for await (const owner of this.storage.names(TENANTS)) {
      const found = await this.storage.read(`${TENANTS}/${owner}`);
      if (found !== undefined) yield found.bytes.toString();
    }
  }

  private async know(tenant: string): Promise<void> {
    if (this.known.has(tenant)) return;
    await this.storage.replace(`${TENANTS}/${ownerOf(tenant)}`, Buffer.from(tenant), undefined);
    this.known.add(tenant);
  }

  /**
   * Removes files that have expired, and batches and jobs that ended more than `keptSeconds` ago, of one tenant. Returns
   * how many.
   */
  async sweep(tenant: string, keptSeconds: number): Promise<number> {
    let removed = 0;
    const inputs = await this.inputsOf(tenant);
    for (const kind of ['file', 'batch', 'job'] as const)
      for await (const id of this.ids(kind, tenant, 'desc', undefined)) {
        const found = await this.findOf(kind, ownerOf(tenant), id);
        if (found === undefined || inputs.has(id) || !isOver(found.record, keptSeconds)) continue;
        await this.remove(kind, tenant, id);
        removed++;
      }
    return removed + (await this.sweepContents(tenant));
  }

  /** What was uploaded by who was killed before its record was there. */
  private async sweepContents(tenant: string): Promise<number> {
    const folder = `t/${ownerOf(tenant)}/contents`;
    let removed = 0;
    for await (const id of this.storage.names(folder)) {
      if (Date.now() - madeMs(id) < ABANDONED_MS || (await this.findOf('file', ownerOf(tenant), id)) !== undefined)
        continue;
      await this.storage.remove(`${folder}/${id}`);
      removed++;
    }
    return removed;
  }
}

/** What a tenant is called in keys, whatever characters its name has. */
export function ownerOf(tenant: string): string {
  return createHash('sha256').update(tenant).digest('hex').slice(0, 32);
}

function keyOf(kind: Kind, owner: string, id: string): string {
  return `t/${owner}/${FOLDER[kind]}/${id}`;
}

function markOf(kind: 'batch' | 'job', owner: string, id: string): string {
  return `${TO_DO}/${owner}~${kind}~${id}`;
}

function isGone(record: FileRecord | BatchRecord | JobRecord): boolean {
  return !('status' in record) && record.expires_at !== undefined && record.expires_at <= nowSeconds();
}

function isOver(record: FileRecord | BatchRecord | JobRecord, keptSeconds: number): boolean {
  if (!('status' in record)) return isGone(record);
  const ended = endedAt(record);
  return ended !== undefined && record.webhook?.status !== 'pending' && ended + keptSeconds <= nowSeconds();
}
