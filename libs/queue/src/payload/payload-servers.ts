// The payload servers of this process: several Valkey or Redis servers beside the queue's, without an append-only file,
// buckets, or folders that all share.
// A body goes to the one that its id chooses (rendezvous hashing, so that a server more or less moves only its share),
// or to the next where that one fails; who wants to read it is told where by a pointer. It never waits for a server that
// is away, and promises nothing: what is lost is computed again by whoever asked.

import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { crc32 } from 'node:zlib';
import { ShoalError, elsewhere, lost } from '@shoal/contract';
import { redactMessage, redactUrl, type Logger, type PayloadServerFacts } from '@shoal/core';
import { BufferPool } from '@shoal/core/base';
import { countPayload } from '../redis/process-counts.ts';
import type { Bodies, Remark } from './bodies.ts';
import { BucketBodies, type BucketPlace } from './bucket-bodies.ts';
import { FolderBodies } from './folder-bodies.ts';
import { PayloadServer } from './payload-server.ts';
import { ServerBodies } from './server-bodies.ts';

export interface PayloadServersOptions {
  /** The setting: redis://, rediss://, s3:// and file:// URLs separated by commas. */
  readonly payloadServers: string;
  /** Shown by CLIENT LIST. */
  readonly clientName: string;
  readonly log?: Logger | undefined;
}

export interface PayloadPlace {
  readonly store: string;
  readonly key: string;
}

/** Servers that are tried for one body. A third would cost a job that waits six seconds. */
const MOST_TRIED = 2;
const MOST_NOTED = 50_000;
/** So long lies what is only to see whether a server works. */
const TRIED_MS = 60_000;
/** How long it may take until is known how a server fares that nobody has a body for. */
const LOOK_EVERY_MS = 30_000;
/** Pointers have 255 bytes for a name. */
const MAX_PATH_BYTES = 250;

/** How one fared that was tried. */
export interface TriedServer {
  readonly name: string;
  /** Which place that is, where its name does not say it. */
  readonly where: string | undefined;
  /** Why nothing can be put there and had back; undefined: it can. */
  readonly problem: string | undefined;
  readonly remarks: readonly Remark[];
}

export class PayloadServers {
  /** In the order of the setting. */
  readonly names: readonly string[];
  /**
   * 16 hex digits that stand for this set of servers: a job says by them which servers its reader reads, and a worker
   * with another set sends the body by the queue server.
   */
  readonly id: string;
  /** Bodies are read into its memory. */
  readonly pool: BufferPool;
  private readonly servers: ReadonlyMap<string, PayloadServer>;
  private looking: NodeJS.Timeout | undefined;
  /** What lies there for jobs of this process, by job. */
  private readonly noted = new Map<string, PayloadPlace[]>();

  private constructor(servers: readonly PayloadServer[], pool: BufferPool) {
    this.pool = pool;
    this.servers = new Map(servers.map((server) => [server.name, server]));
    this.names = servers.map(({ name }) => name);
    this.id = idOf(this.names);
  }

  /**
   * Resolves when they answer, after two seconds at the latest: one that is away is left out until it comes. Throws
   * CONFIG_INVALID, also for a bucket where AWS's client is not installed.
   */
  static async connect({ payloadServers, ...options }: PayloadServersOptions): Promise<PayloadServers> {
    const pool = new BufferPool();
    const listed = serversIn(payloadServers);
    const buckets = await openBuckets(listed);
    const servers = listed.map((one) => {
      const bodies = buckets.get(one.name) ?? bodiesOf(one, { ...options, pool });
      return new PayloadServer({ name: one.name, bodies, log: options.log });
    });
    await Promise.all(servers.map((server) => server.ready()));
    return new PayloadServers(servers, pool);
  }

  /** The name of the server that has it now; undefined where none takes it. */
  async put(spreadBy: string, key: string, value: Buffer, ttlMs: number): Promise<string | undefined> {
    const open = inOrder(this.names, spreadBy).flatMap((name) => this.servers.get(name) ?? []);
    for (const server of open.filter(({ isPaused }) => !isPaused).slice(0, MOST_TRIED)) {
      try {
        await server.put(key, value, ttlMs);
        countPayload('put');
        return server.name;
      } catch {
        // told by the server's log line; the next one
      }
    }
    countPayload('by_queue_server');
    return undefined;
  }

  /** The bytes there. Throws PAYLOAD_ELSEWHERE, or PAYLOAD_LOST where they cannot be had. */
  async get({ store, key }: PayloadPlace): Promise<Buffer> {
    const server = this.servers.get(store);
    if (server === undefined) throw elsewhere(store, this.names);
    await server.ready();
    let value: Buffer | undefined;
    try {
      value = await server.get(key);
    } catch (error) {
      throw lost({ store, key }, `cannot be read (${redactMessage(error)})`, error);
    }
    if (value !== undefined) return value;
    throw lost({ store, key }, 'has nothing there: it was emptied, restarted or evicts keys');
  }

  /** Some bytes are put on each, read and deleted. In the order of the setting. */
  async tried(): Promise<TriedServer[]> {
    const key = `{shoal}:tried:${randomUUID()}`;
    return Promise.all([...this.servers.values()].map((server) => triedWith(server, key)));
  }

  /** How each fares, in the order of the setting, as of the last question to it. */
  facts(): readonly PayloadServerFacts[] {
    return [...this.servers.values()].map(({ facts }) => facts);
  }

  /** The same as of now, with what says which place one is where its name does not. */
  async look(): Promise<readonly (PayloadServerFacts & { readonly where?: string | undefined })[]> {
    const servers = [...this.servers.values()];
    await Promise.all(servers.map((server) => server.look()));
    return servers.map(({ facts, where }) => ({ ...facts, where }));
  }

  /** From now on, until it is closed, nothing that `facts` tells is older than half a minute. */
  keepLooking(): void {
    this.looking ??= setInterval(() => void this.look(), LOOK_EVERY_MS).unref();
    void this.look();
  }

  /** What is to be deleted once the job is over. Of too many the oldest are left to their time to live. */
  note(jobId: string, place: PayloadPlace): void {
    const places = this.noted.get(jobId);
    if (places === undefined) this.noted.set(jobId, [place]);
    else if (!places.some(({ key }) => key === place.key)) places.push(place);
    const [oldest] = this.noted.keys();
    if (this.noted.size > MOST_NOTED && oldest !== undefined) this.noted.delete(oldest);
  }

  /** Deletes what was noted for these jobs. Best effort, and nobody waits for it. */
  forget(jobIds: readonly string[]): void {
    const places = jobIds.flatMap((jobId) => this.noted.get(jobId) ?? []);
    for (const jobId of jobIds) this.noted.delete(jobId);
    if (places.length > 0) this.drop(places);
  }

  private drop(places: readonly PayloadPlace[]): void {
    for (const [name, server] of this.servers) {
      const keys = places.flatMap(({ store, key }) => (store === name ? [key] : []));
      if (keys.length > 0) server.drop(keys);
    }
  }

  /** Safe to call twice. */
  async close(): Promise<void> {
    clearInterval(this.looking);
    await Promise.all([...this.servers.values()].map((server) => server.close()));
  }
}

async function triedWith(server: PayloadServer, key: string): Promise<TriedServer> {
  const { name, where } = server;
  let step = 'takes no body';
  try {
    const bytes = randomBytes(1_024);
    await server.put(key, bytes, TRIED_MS);
    step = 'gives no body back';
    const found = await server.get(key);
    const kept = await server.dropped([key]);
    if (found?.equals(bytes) !== true) return { name, where, problem: 'gave back other bytes', remarks: [] };
    const cure = 'allow it, or what was read lies there until its time to live is over';
    const ofDrop = kept === undefined ? [] : [{ found: `deletes nothing (${kept})`, cure }];
    return { name, where, problem: undefined, remarks: [...ofDrop, ...(await server.remarks())] };
  } catch (error) {
    return { name, where, problem: `${step} (${redactMessage(error)})`, remarks: [] };
  }
}

/** A key that no other claim, and no other run of the same one, writes to. */
export function resultPlace(prefix: string, queue: string): string {
  return `${prefix}:out:${queue}:${randomUUID()}`;
}

/** The key of an input there: the same when its job is added again, another for other input and for other jobs. */
export function inputPlace(prefix: string, queue: string, jobId: string, fingerprint: string): string {
  return `${prefix}:in:${queue}:${fingerprint}:${createHash('sha256').update(jobId).digest('hex').slice(0, 16)}`;
}

/**
 * The names, the one first that is to have what `id` says. Each server's weight is a mix of checksums: those of CRC alone
 * differ between two names by the same bits whatever the id, which would give one of three servers half of all.
 */
export function inOrder(names: readonly string[], id: string): readonly string[] {
  const hash = crc32(id);
  return names
    .map((name) => ({ name, weight: mixed(hash ^ mixed(crc32(name))) }))
    .toSorted((a, b) => b.weight - a.weight || (a.name < b.name ? -1 : 1))
    .map(({ name }) => name);
}

/** The finalizer of MurmurHash3 (Austin Appleby, public domain): every bit changes about half of the others. */
function mixed(value: number): number {
  let bits = Math.imul(value ^ (value >>> 16), 0x85eb_ca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2_ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}

function idOf(names: readonly string[]): string {
  return createHash('sha256').update(names.toSorted().join('\n')).digest('hex').slice(0, 16);
}

/** The `id` of the servers that the setting lists. Throws CONFIG_INVALID. */
export function payloadSetOf(payloadServers: string): string {
  return idOf(serversIn(payloadServers).map(({ name }) => name));
}

/** One of the setting. */
interface Listed {
  readonly url: string;
  /** As pointers have it. */
  readonly name: string;
  /** Its path, where it is a folder. */
  readonly folder?: string | undefined;
  /** Where it is a bucket. */
  readonly place?: BucketPlace | undefined;
}

/** By name: first of all, because they alone may be impossible here. */
async function openBuckets(listed: readonly Listed[]): Promise<ReadonlyMap<string, Bodies>> {
  const opened = new Map<string, Bodies>();
  for (const { name, place } of listed) if (place !== undefined) opened.set(name, await BucketBodies.open(place));
  return opened;
}

function bodiesOf(
  { url, folder }: Listed,
  { clientName, pool }: { readonly clientName: string; readonly pool: BufferPool },
): Bodies {
  return folder === undefined ? new ServerBodies({ url, clientName, pool }) : new FolderBodies(folder);
}

/** Address and name of each server that the setting lists. Throws CONFIG_INVALID. */
export function serversIn(payloadServers: string): Listed[] {
  const servers = payloadServers.split(',').map((text) => serverOf(text.trim()));
  const twice = servers.find(({ name }, at) => servers.findIndex((other) => other.name === name) !== at);
  if (twice !== undefined) throw invalid(`${twice.name} is there twice`);
  return servers;
}

function serverOf(url: string): Listed {
  const parsed = URL.canParse(url) ? new URL(url) : undefined;
  if (parsed?.protocol === 'file:') return folderOf(url);
  if (parsed?.protocol === 's3:') return bucketOf(url);
  if (parsed === undefined || !/^rediss?:$/.test(parsed.protocol) || parsed.hostname === '')
    throw invalid(
      `${JSON.stringify(redactUrl(url))} is no redis:// or rediss:// URL of one server, and no s3:// or file:// URL`,
    );
  const database = parsed.pathname.slice(1);
  const name = `${parsed.hostname}:${parsed.port === '' ? '6379' : parsed.port}`;
  return { url, name: database === '' || database === '0' ? name : `${name}/${database}` };
}

/** Named by its path, which is the same for all who share it. */
function folderOf(url: string): Listed {
  const folder = pathOf(url);
  if (folder === undefined || folder === '' || Buffer.byteLength(folder) > MAX_PATH_BYTES)
    throw invalid(`${JSON.stringify(url)} is no folder: it must be file:///PATH, of ${MAX_PATH_BYTES} bytes at most`);
  return { url, name: `file:${folder}`, folder };
}

/** Named by its address: which store that is, and who asks, is said by AWS's variables. */
function bucketOf(url: string): Listed {
  const [, bucket, prefix = ''] = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/(?:(.+?)\/?)?)?$/.exec(url) ?? [];
  const isPlain = prefix === '' || prefix.split('/').every((part) => /^(?!\.{1,2}$)[\w!.*'()-]+$/.test(part));
  const name = `s3://${bucket}${prefix === '' ? '' : `/${prefix}`}`;
  if (bucket === undefined || !isPlain || name.length > MAX_PATH_BYTES)
    throw invalid(
      `${JSON.stringify(redactUrl(url))} is no bucket: it must be s3://BUCKET/PREFIX, of ${MAX_PATH_BYTES} characters at ` +
        "most, the prefix of letters, digits, / and !-_.*'(); its endpoint, region and credentials come from AWS’s variables",
    );
  return { url, name, place: { bucket, prefix } };
}

function pathOf(url: string): string | undefined {
  try {
    return /[?#]/.test(url) ? undefined : fileURLToPath(url).replace(/\/+$/, '');
  } catch {
    return undefined;
  }
}

function invalid(problem: string): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError(
    'CONFIG_INVALID',
    `payloadServers: ${problem}; write redis://host:port of each server, s3://bucket/prefix, or file:///path of a shared ` +
      'folder, separated by commas, the same for workers and producers',
  );
}
