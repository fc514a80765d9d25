// Where keys of HTTP callers are kept: on the queue server, which all HTTP processes share, or in a file, for those who
// hand keys out with their deployment. Either tells quickly whether anything has changed, so that servers look every two
// seconds and a revoked key is of no use soon after.

import { randomUUID } from 'node:crypto';
import { readFile, stat, writeFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { DEFAULT_PREFIX, ShoalError, keySpace } from '@shoal/contract';
import { readApiKey, type ApiKey } from '@shoal/core';
import { placeAtomically, withLock } from '@shoal/fetch';
import type { Redis } from '../redis/connection.ts';
import { translated } from '../redis/translated.ts';

export interface ApiKeyStore {
  /** Where it is, for messages. */
  readonly place: string;
  /** Changes whenever a key is added or revoked. Throws QUEUE_UNREACHABLE or FILE_UNREADABLE. */
  version(): Promise<string>;
  /** All of them, revoked and expired ones too, oldest first. Throws as `version` does, and CONFIG_INVALID. */
  list(): Promise<readonly ApiKey[]>;
  add(key: ApiKey): Promise<void>;
  /** What is kept of it now; undefined where there is no such key. One that was revoked stays as it is. */
  revoke(id: string, nowMs: number): Promise<ApiKey | undefined>;
}

/** Keys are asked for from the first one on. */
const NONE = 'none';
const VERSION_FIELD = 'version';

/** On the queue server, below a prefix. */
export class ServerApiKeys implements ApiKeyStore {
  readonly place = 'the queue server';
  private readonly connection: Redis;
  private readonly key: string;

  constructor(connection: Redis, prefix: string = DEFAULT_PREFIX) {
    this.connection = connection;
    this.key = keySpace(prefix).apiKeys();
  }

  async version(): Promise<string> {
    return (await translated(() => this.connection.hget(this.key, VERSION_FIELD))) ?? NONE;
  }

  async list(): Promise<readonly ApiKey[]> {
    const found = await translated(() => this.connection.hgetall(this.key));
    return Object.entries(found)
      .filter(([field]) => field !== VERSION_FIELD)
      .map(([id, text]) => keptOf(text, `the field ${id} of ${this.key} on the queue server`))
      .sort(byAge);
  }

  async add(key: ApiKey): Promise<void> {
    await this.write(key);
  }

  async revoke(id: string, nowMs: number): Promise<ApiKey | undefined> {
    const found = (await this.list()).find((key) => key.id === id);
    if (found === undefined || found.revokedMs !== undefined) return found;
    const revoked = { ...found, revokedMs: nowMs };
    await this.write(revoked);
    return revoked;
  }

  /** One command, so that nobody sees the key without the change of version. */
  private async write(key: ApiKey): Promise<void> {
    await translated(() => this.connection.hset(this.key, key.id, JSON.stringify(key), VERSION_FIELD, randomUUID()));
  }
}

/** In a file: `{ "keys": [ … ] }`, readable by its owner alone. */
export class FileApiKeys implements ApiKeyStore {
  readonly place: string;

  constructor(path: string) {
    this.place = resolve(path);
  }

  async version(): Promise<string> {
    const found = await stat(this.place, { bigint: true }).catch(unlessMissing(this.place));
    return found === undefined ? NONE : `${found.mtimeNs} ${found.size} ${found.ino}`;
  }

  async list(): Promise<readonly ApiKey[]> {
    const text = await readFile(this.place, 'utf8').catch(unlessMissing(this.place));
    if (text === undefined) return [];
    const content = parsed(text, this.place);
    const keys: unknown = typeof content === 'object' && content !== null ? Reflect.get(content, 'keys') : undefined;
    if (!Array.isArray(keys)) throw unfit(`${this.place} has no list "keys"`);
    const read = keys.map((key: unknown, at) => readApiKey(key, `key ${at + 1} of ${this.place}`));
    const twice = read.find(({ id }, at) => read.findIndex((other) => other.id === id) !== at);
    if (twice !== undefined) throw unfit(`${this.place} has two keys of the id ${twice.id}; remove one`);
    return read;
  }

  async add(key: ApiKey): Promise<void> {
    await this.change((keys) => [...keys, key]);
  }

  async revoke(id: string, nowMs: number): Promise<ApiKey | undefined> {
    const keys = await this.change((before) =>
      before.some((key) => key.id === id && key.revokedMs === undefined)
        ? before.map((key) => (key.id === id ? { ...key, revokedMs: nowMs } : key))
        : undefined,
    );
    return keys.find((key) => key.id === id);
  }

  /** Returns the keys as they are afterwards; `next` answers undefined where nothing changes. */
  private change(next: (keys: readonly ApiKey[]) => readonly ApiKey[] | undefined): Promise<readonly ApiKey[]> {
    return withLock(`${this.place}.lock`, async () => {
      const before = await this.list();
      const keys = next(before);
      if (keys === undefined) return before;
      const text = `${JSON.stringify({ keys }, undefined, 2)}\n`;
      await placeAtomically(this.place, (temporary) => writeFile(temporary, text, { mode: 0o600 }), {
        isLocked: true,
      });
      return keys;
    });
  }
}

function keptOf(text: string, where: string): ApiKey {
  return readApiKey(parsed(text, where), where);
}

function parsed(text: string, where: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw unfit(`${where} is not JSON`);
  }
}

function byAge(a: ApiKey, b: ApiKey): number {
  return a.createdMs - b.createdMs || (a.id < b.id ? -1 : 1);
}

function unfit(message: string): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError('CONFIG_INVALID', message);
}

/** A file that is not there holds no keys. */
function unlessMissing(path: string): (error: NodeJS.ErrnoException) => undefined {
  return (error) => {
    if (error.code === 'ENOENT') return undefined;
    throw new ShoalError('FILE_UNREADABLE', `the keys in ${path} cannot be read: ${error.message}`, { path }, error);
  };
}
