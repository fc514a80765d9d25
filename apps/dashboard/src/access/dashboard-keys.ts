// The keys of the dashboard: a file that `shoal key create --dashboard` writes. A key with the scope "operate" is an
// operator's, one with "view" a viewer's. The file is looked at again when somebody asks and two seconds
// have passed; one that cannot be read leaves the keys as they were last known.

import { randomBytes } from 'node:crypto';
import { ShoalError } from '@shoal/contract';
import { apiKeyId, isDigestOf, type ApiKey, type Logger } from '@shoal/core';
import { FileApiKeys } from '@shoal/queue';
import type { Role } from './visitor.ts';

const LOOK_EVERY_MS = 2_000;
/** Compared with where there is no such key, so that it takes as long. */
const NOBODYS_DIGEST = randomBytes(32);

export interface KnownKey {
  readonly keyId: string;
  /** As it was called when it was made. */
  readonly name: string;
  readonly role: Role;
}

export class DashboardKeys {
  private readonly store: FileApiKeys;
  private readonly log: Logger;
  private keys: ReadonlyMap<string, ApiKey> = new Map();
  private version: string | undefined;
  private lookAgainMs = 0;

  private constructor(path: string, log: Logger) {
    this.store = new FileApiKeys(path);
    this.log = log;
  }

  /** Throws FILE_UNREADABLE, and CONFIG_INVALID for a file that is none of ours or has no key for the dashboard. */
  static async open(path: string, log: Logger): Promise<DashboardKeys> {
    const keys = new DashboardKeys(path, log);
    await keys.read();
    if (![...keys.keys.values()].some((key) => roleOf(key) !== undefined))
      throw new ShoalError(
        'CONFIG_INVALID',
        `dashboardKeyFile ${keys.store.place} has no key of the dashboard; make one: shoal key create NAME --dashboard ` +
          '--scopes operate (or view)',
        { path },
      );
    return keys;
  }

  /** Whose key this text is; undefined for no key of ours, or one that is not good any more. */
  async who(text: string, nowMs: number): Promise<KnownKey | undefined> {
    await this.lookAgain();
    const key = this.keys.get(apiKeyId(text) ?? '');
    const isRight = isDigestOf(key === undefined ? NOBODYS_DIGEST : Buffer.from(key.digest, 'hex'), text);
    return isRight ? knownOf(key, nowMs) : undefined;
  }

  /** The key of a session, as long as it is good. */
  async byId(keyId: string, nowMs: number): Promise<KnownKey | undefined> {
    await this.lookAgain();
    return knownOf(this.keys.get(keyId), nowMs);
  }

  private async lookAgain(): Promise<void> {
    if (performance.now() < this.lookAgainMs) return;
    try {
      await this.read();
    } catch (error) {
      this.log.warn({ err: error, place: this.store.place }, 'keys of the dashboard could not be read');
    }
  }

  private async read(): Promise<void> {
    this.lookAgainMs = performance.now() + LOOK_EVERY_MS;
    const version = await this.store.version();
    if (version === this.version) return;
    this.keys = new Map((await this.store.list()).map((key) => [key.id, key]));
    this.version = version;
  }
}

function knownOf(key: ApiKey | undefined, nowMs: number): KnownKey | undefined {
  if (key === undefined || key.revokedMs !== undefined || (key.expiresMs ?? Infinity) <= nowMs) return undefined;
  const role = roleOf(key);
  return role === undefined ? undefined : { keyId: key.id, name: key.name, role };
}

function roleOf({ scopes }: ApiKey): Role | undefined {
  if (scopes.includes('operate')) return 'operator';
  return scopes.includes('view') ? 'viewer' : undefined;
}
