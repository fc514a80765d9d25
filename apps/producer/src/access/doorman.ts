// Asks callers for their keys, and tells by the key who they are. Keys are read when the server starts and looked at
// again every two seconds, so that deciding on a request costs a digest and no question to anybody. What could not be
// read leaves the keys as they were last known.
//
// Why: docs/decisions/command-and-setup.md#http-asks-for-keys-once-there-are-any

import { randomBytes } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { ShoalError } from '@shoal/contract';
import { MASTER_KEY_VARIABLE, apiKeyId, digestOf, isDigestOf, type ApiKey, type Clock, type Logger } from '@shoal/core';
import { isLoopbackHost } from '@shoal/ops';
import type { ApiKeyStore } from '@shoal/queue';
import { invalid, type Problem } from '../problem.ts';
import { ANYBODY, type Caller } from './caller.ts';

/** The setting httpAccess. */
export type AccessMode = 'auto' | 'keys' | 'open';

export interface DoormanOptions {
  readonly mode: AccessMode;
  readonly store: ApiKeyStore;
  /** Has every scope and no limits. */
  readonly masterKey?: string | undefined;
  /** What the server listens on. */
  readonly host: string;
  readonly clock: Clock;
  readonly log: Logger;
}

const LEAST_MASTER_CHARACTERS = 16;
const LOOK_EVERY_MS = 2_000;
/** Compared with where there is no such key, so that it takes as long. */
const NOBODYS_DIGEST = randomBytes(32);

interface KnownKey {
  readonly key: ApiKey;
  readonly digest: Buffer;
  readonly caller: Caller;
}

export class Doorman {
  private readonly options: DoormanOptions;
  private readonly masterDigest: Buffer | undefined;
  private known: ReadonlyMap<string, KnownKey> = new Map();
  private version: string | undefined;
  /** Stays true once there were any: keys that are lost or taken away open no door. */
  private hasKeys = false;
  private isReading = false;
  private cancelLook: (() => void) | undefined;
  private isStopped = false;

  private constructor(options: DoormanOptions) {
    this.options = options;
    const { masterKey } = options;
    this.masterDigest = masterKey === undefined ? undefined : digestOf(masterKey);
  }

  /**
   * Knows the keys when this resolves. Throws CONFIG_INVALID for settings that leave the door open beyond loopback
   * without anybody having said so, and whatever the store throws.
   */
  static async post(options: DoormanOptions): Promise<Doorman> {
    checkMasterKey(options);
    const doorman = new Doorman(options);
    await doorman.read();
    if (!doorman.asksForKeys && options.mode === 'auto' && !isLoopbackHost(options.host)) throw openToAll(options);
    doorman.lookLater();
    return doorman;
  }

  get asksForKeys(): boolean {
    const { mode } = this.options;
    return mode !== 'open' && (mode === 'keys' || this.masterDigest !== undefined || this.hasKeys);
  }

  /** Who sent these headers; throws a Problem (401) for who has no key, or none that is good. */
  callerOf(headers: IncomingHttpHeaders): Caller {
    if (!this.asksForKeys) return ANYBODY;
    const text = keyIn(headers);
    if (this.masterDigest !== undefined && isDigestOf(this.masterDigest, text)) return ANYBODY;
    const found = this.known.get(apiKeyId(text) ?? '');
    const isRight = isDigestOf(found?.digest ?? NOBODYS_DIGEST, text);
    if (found === undefined || !isRight) throw wrongKey('the API key of the request is not one of this server');
    const { id, revokedMs, expiresMs } = found.key;
    if (revokedMs !== undefined) throw wrongKey(`the API key ${id} was revoked; ask for another one`);
    if (expiresMs !== undefined && expiresMs <= Date.now())
      throw wrongKey(`the API key ${id} has expired at ${new Date(expiresMs).toISOString()}; ask for another one`);
    return found.caller;
  }

  /** Looks no more. Safe to call twice. */
  stop(): void {
    this.isStopped = true;
    this.cancelLook?.();
  }

  private lookLater(): void {
    if (this.isStopped) return;
    this.cancelLook = this.options.clock.after(LOOK_EVERY_MS, () => void this.look());
  }

  /** While the server of the keys is away one question waits for it, and no other is asked. */
  private async look(): Promise<void> {
    if (this.isReading || this.isStopped) return;
    this.isReading = true;
    try {
      await this.read();
    } catch (error) {
      this.options.log.warn({ err: error, place: this.options.store.place }, 'keys of callers could not be read');
    } finally {
      this.isReading = false;
      this.lookLater();
    }
  }

  private async read(): Promise<void> {
    const { store } = this.options;
    const version = await store.version();
    if (version === this.version) return;
    const keys = await store.list();
    this.known = new Map(keys.map((key) => [key.id, knownKey(key)]));
    this.hasKeys ||= keys.length > 0;
    this.version = version;
  }
}

function knownKey(key: ApiKey): KnownKey {
  const { id: keyId, tenant, scopes, limits } = key;
  return { key, digest: Buffer.from(key.digest, 'hex'), caller: { keyId, tenant, scopes: new Set(scopes), limits } };
}

/** OpenAI's clients send the first, others the second. A proxy may have used `authorization` for itself. */
function keyIn({ authorization, 'x-api-key': apiKey }: IncomingHttpHeaders): string {
  const bearer = /^Bearer +(\S+) *$/i.exec(authorization ?? '')?.[1];
  const other = typeof apiKey === 'string' ? apiKey.trim() : undefined;
  if (bearer !== undefined && other !== undefined && bearer !== other)
    throw wrongKey('the request has two different API keys, in "authorization" and "x-api-key"; send one');
  const text = bearer ?? other;
  if (text !== undefined && text !== '') return text;
  throw wrongKey(
    'this server asks for an API key: send "authorization: Bearer KEY" or "x-api-key: KEY" (shoal key create makes one)',
    'missing_api_key',
  );
}

function wrongKey(message: string, code = 'invalid_api_key'): Problem {
  return invalid(code, null, message, 401);
}

function checkMasterKey({ masterKey, mode }: DoormanOptions): void {
  if (masterKey === undefined) return;
  if (mode === 'open')
    throw new ShoalError(
      'CONFIG_INVALID',
      `${MASTER_KEY_VARIABLE} is set and httpAccess is "open", which asks nobody for a key: unset one of them`,
    );
  if (masterKey.length < LEAST_MASTER_CHARACTERS || !/^[\x21-\x7e]+$/.test(masterKey))
    throw new ShoalError(
      'CONFIG_INVALID',
      `${MASTER_KEY_VARIABLE} must have at least ${LEAST_MASTER_CHARACTERS} characters, printable ASCII without blanks; ` +
        `it has ${masterKey.length}. openssl rand -hex 32 makes a good one`,
    );
}

function openToAll({ host, store }: DoormanOptions): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError(
    'CONFIG_INVALID',
    `httpHost ${host} is reached from other machines, and there are no API keys (${store.place}): whoever reaches it ` +
      `could use and see everything. Make one with "shoal key create", or set ${MASTER_KEY_VARIABLE}; or, where ` +
      'something else asks who is there, say --http-access open (SHOAL_HTTP_ACCESS=open)',
    { host },
  );
}
