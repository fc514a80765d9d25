// Which hub, with which token, and whether at all, by the variables that people have set for huggingface_hub: HF_ENDPOINT,
// HF_TOKEN (or the file that `hf auth login` writes), HF_HUB_OFFLINE. The token is kept where nothing prints it.

import { readFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { ShoalError } from '@shoal/contract';

export type Environment = Readonly<Record<string, string | undefined>>;

export class HubSettings {
  /** Without a slash at the end. */
  readonly endpoint: string;
  readonly isOffline: boolean;
  /** Where the token came from, for messages; undefined without one. */
  readonly tokenSource: string | undefined;
  readonly #token: string | undefined;

  private constructor(given: {
    readonly endpoint: string;
    readonly isOffline: boolean;
    readonly token: { readonly value: string; readonly source: string } | undefined;
  }) {
    this.endpoint = given.endpoint;
    this.isOffline = given.isOffline;
    this.tokenSource = given.token?.source;
    this.#token = given.token?.value;
  }

  /** CONFIG_INVALID for an address or a token that cannot be one; none of them repeats what it holds. */
  static async read(environment: Environment): Promise<HubSettings> {
    return new HubSettings({
      endpoint: readEndpoint(environment),
      isOffline: isOn(environment['HF_HUB_OFFLINE']),
      token: await readToken(environment),
    });
  }

  /** Headers that only the hub itself may see. */
  get secretHeaders(): Readonly<Record<string, string>> {
    return this.#token === undefined ? {} : { authorization: `Bearer ${this.#token}` };
  }
}

/** As huggingface_hub reads switches. */
function isOn(value: string | undefined): boolean {
  return ['1', 'on', 'yes', 'true'].includes((value ?? '').toLowerCase());
}

function readEndpoint(environment: Environment): string {
  const text = environment['HF_ENDPOINT'] || 'https://huggingface.co';
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isPlain =
    url !== undefined && url.username === '' && url.password === '' && url.search === '' && url.hash === '';
  if (isPlain && (url.protocol === 'https:' || url.protocol === 'http:')) return text.replace(/\/+$/, '');
  throw new ShoalError(
    'CONFIG_INVALID',
    'HF_ENDPOINT is not the address of a hub: http:// or https://, a host and perhaps a path; a token goes into HF_TOKEN',
  );
}

async function readToken(environment: Environment): Promise<{ value: string; source: string } | undefined> {
  const given = environment['HF_TOKEN']?.trim();
  if (given) return { value: checkToken(given, 'HF_TOKEN'), source: 'HF_TOKEN' };
  const path = tokenPath(environment);
  const text = await readFile(path, 'utf8').catch(() => '');
  return text.trim() === '' ? undefined : { value: checkToken(text.trim(), path), source: path };
}

function tokenPath(environment: Environment): string {
  const home = environment['HOME'] || homedir();
  const cache = environment['XDG_CACHE_HOME'] || join(home, '.cache');
  return environment['HF_TOKEN_PATH'] || join(environment['HF_HOME'] || join(cache, 'huggingface'), 'token');
}

function checkToken(token: string, source: string): string {
  if (/^[\x21-\x7e]{1,1000}$/.test(token)) return token;
  throw new ShoalError('CONFIG_INVALID', `${source} does not hold a token: one word of ASCII characters is expected`);
}
