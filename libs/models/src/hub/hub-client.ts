// The HTTP interface of the Hugging Face hub, as far as fetching a model needs it: what a revision is, which files it
// has, and their bytes. Whatever the hub refuses is said with the repository's name and what to do about it. A branch
// or tag is resolved once; everything after that is asked of the commit.
// Source: https://huggingface.co/docs/hub/api and the headers that huggingface_hub reads (X-Error-Code, X-Repo-Commit,
// X-Linked-Size, X-Linked-Etag).

import { ShoalError } from '@shoal/contract';
import { askPatiently, fetchResumed, type Answer, type FileDigest, type RetryTerms } from '@shoal/fetch';
import { CheckedJson } from '../checked-json.ts';
import type { HubSettings } from './hub-settings.ts';
import { COMMIT } from './hub-name.ts';

export interface HubFile {
  /** Inside the repository, with "/". */
  readonly path: string;
  readonly bytes: number;
  readonly digest: FileDigest;
}

export interface HubRevision {
  /** As the hub spells it today: a repository that was renamed has another name than the one that was asked for. */
  readonly repository: string;
  readonly commit: string;
  /** SPDX identifier of its card; "unknown" where there is none. */
  readonly licence: string;
  readonly isGated: boolean;
}

export interface HubClientOptions {
  readonly settings: HubSettings;
  readonly signal?: AbortSignal | undefined;
  readonly retries?: RetryTerms | undefined;
  /** Told before each wait. */
  readonly onWait?: ((why: string, waitMs: number) => void) | undefined;
}

/** Without a network a pull says so after this. */
const CONNECT_TIMEOUT_MS = 10_000;
/** Qwen3-8B has 20 files; a repository with every quantization there is has some thousands. */
const MOST_FILES = 20_000;
const MOST_PAGES = 100;
const MOST_JSON_BYTES = 50_000_000;
const USER_AGENT = { 'user-agent': 'shoal' };

export class HubClient {
  readonly #options: HubClientOptions;

  constructor(options: HubClientOptions) {
    this.#options = options;
  }

  get endpoint(): string {
    return this.#options.settings.endpoint;
  }

  /** What this revision is. MODEL_UNAVAILABLE where there is none, or none for this person. */
  async revision(repository: string, revision: string): Promise<HubRevision> {
    const url = `${this.endpoint}/api/models/${repository}/revision/${encodeURIComponent(revision)}`;
    const json = await this.#json(url, { repository, revision });
    const card = json.has('cardData') && isObject(json.raw('cardData')) ? json.object('cardData') : undefined;
    const commit = json.string('sha');
    if (!COMMIT.test(commit))
      throw unavailable({ repository, revision }, `${url} names the commit ${JSON.stringify(commit)}, which is none`);
    return {
      repository: json.has('id') ? json.string('id') : repository,
      commit,
      licence: licenceOf(card),
      isGated: json.has('gated') && json.raw('gated') !== false,
    };
  }

  /** Every file of a commit, with its size and digest; a list in pages is followed to its end. */
  async files(repository: string, commit: string): Promise<readonly HubFile[]> {
    const asked = { repository, revision: commit };
    const files: HubFile[] = [];
    let url: string | undefined = `${this.endpoint}/api/models/${repository}/tree/${commit}?recursive=true`;
    for (let page = 0; url !== undefined; page++) {
      const answer = await this.#ask(url, asked);
      const text = await answer.text(MOST_JSON_BYTES);
      const list = CheckedJson.parse(`{ "files": ${text} }`, url).list('files');
      for (const [at, entry] of list.entries()) {
        const json = CheckedJson.of(entry, `${url}: entry ${at}`);
        if (json.string('type') === 'file') files.push(readFile(json));
      }
      if (files.length > MOST_FILES || page >= MOST_PAGES)
        throw unavailable(asked, `${repository} lists more than ${MOST_FILES} files or ${MOST_PAGES} pages`);
      url = nextPage(answer, url, asked);
    }
    return files;
  }

  /** Puts the bytes of one file to `destination`, or goes on with what an earlier run left there. */
  async fetchFile(
    { repository, commit }: Pick<HubRevision, 'repository' | 'commit'>,
    file: HubFile,
    { destination, onProgress }: { readonly destination: string; readonly onProgress?: (bytes: number) => void },
  ): Promise<void> {
    const asked = { repository, revision: commit, path: file.path };
    const path = file.path.split('/').map(encodeURIComponent).join('/');
    await fetchResumed(`${this.endpoint}/${repository}/resolve/${commit}/${path}`, destination, file, {
      ...this.#terms(asked),
      contradiction: (answer) => contradictionOf(answer, commit, file),
      ...(onProgress && { onProgress }),
    });
  }

  async #json(url: string, asked: Asked): Promise<CheckedJson> {
    return CheckedJson.parse(await (await this.#ask(url, asked)).text(MOST_JSON_BYTES), url);
  }

  async #ask(url: string, asked: Asked): Promise<Answer> {
    return askPatiently(url, { ...this.#terms(asked), connectTimeoutMs: CONNECT_TIMEOUT_MS });
  }

  #terms(asked: Asked): Omit<Parameters<typeof fetchResumed>[3], 'contradiction' | 'onProgress'> {
    const { settings, signal, retries, onWait } = this.#options;
    return {
      headers: USER_AGENT,
      secretHeaders: settings.secretHeaders,
      signal,
      retries,
      ...(onWait && { onWait }),
      refusal: (answer) => refusalOf(answer, asked, settings),
    };
  }
}

interface Asked {
  readonly repository: string;
  readonly revision: string;
  readonly path?: string;
}

/** What will be the same when it is asked again; undefined for what may pass. */
function refusalOf(answer: Answer, asked: Asked, settings: HubSettings): ShoalError | undefined {
  const { status } = answer;
  if (status === 429 || status >= 500 || status === 408) return undefined;
  const { repository, revision, path } = asked;
  if (new URL(answer.lastUrl).origin !== new URL(settings.endpoint).origin) return undefined; // its addresses expire
  const [page, code] = [`${settings.endpoint}/${repository}`, answer.header('x-error-code')];
  if (code === 'GatedRepo') return unavailable(asked, gated(page, status, settings));
  if (code === 'DisabledRepo') return unavailable(asked, `the hub has disabled ${repository}; ${page} may say why`);
  if (code === 'RevisionNotFound')
    return unavailable(asked, `${repository} has no revision ${revision}: ${page}/commits/main lists them`);
  if (code === 'EntryNotFound')
    return unavailable(asked, `${repository}@${revision} has no file ${path ?? '(none was named)'}`);
  if (status === 401 || status === 403 || code === 'RepoNotFound')
    return unavailable(asked, denied(page, asked, settings));
  if (status === 404 || status === 410)
    return unavailable(
      asked,
      `${settings.endpoint} has no ${repository} with the revision ${revision} (HTTP ${status})`,
    );
  return unavailable(
    asked,
    `${settings.endpoint} was asked for ${repository}@${revision} and answered with HTTP ${status}`,
  );
}

function gated(page: string, status: number, { tokenSource }: HubSettings): string {
  const first = `its authors give it only to people who agreed to their terms (HTTP ${status}). Agree on ${page}, `;
  return tokenSource === undefined
    ? `${first}then make a token that may read it (Settings, Access Tokens) and set HF_TOKEN, or run "hf auth login"`
    : `${first}with the account of the token of ${tokenSource}; a token of the fine-grained kind must be allowed to ` +
        'read gated repositories';
}

/** The hub says the same of what is not there and of what this person may not see. */
function denied(page: string, { repository }: Asked, { tokenSource }: HubSettings): string {
  return (
    `${page} is not there, or not for you: look at the spelling of ${repository}` +
    (tokenSource === undefined
      ? '; where it is private, set HF_TOKEN to a token that may read it'
      : `; where it is private, the token of ${tokenSource} must be allowed to read it, and may have expired`)
  );
}

function unavailable({ repository, revision, path }: Asked, problem: string): ShoalError {
  return new ShoalError('MODEL_UNAVAILABLE', `${repository} could not be fetched: ${problem}`, {
    repository,
    revision,
    ...(path !== undefined && { path }),
  });
}

/** What the hub says of the file before it sends its bytes, where it says it. */
function contradictionOf(answer: Answer, commit: string, { path, bytes, digest }: HubFile): ShoalError | undefined {
  const said = {
    commit: answer.header('x-repo-commit'),
    bytes: answer.header('x-linked-size'),
    digest: answer.header('x-linked-etag')?.replace(/^W\//, '').replaceAll('"', ''),
  };
  const pairs: readonly (readonly [what: string, said: string | undefined, expected: string])[] = [
    ['commit', said.commit, commit],
    ['size', said.bytes, String(bytes)],
    ['sha256', digest.algorithm === 'sha256' ? said.digest : undefined, digest.hex],
  ];
  const wrong = pairs.find(([, found, expected]) => found !== undefined && found !== expected);
  if (wrong === undefined) return undefined;
  const [what, found, expected] = wrong;
  return new ShoalError(
    'MODEL_CORRUPT',
    `the hub contradicts itself about ${path}: its list says ${what} ${expected}, and the file ${found}. Nothing was kept ` +
      'of it',
    { path },
  );
}

function readFile(json: CheckedJson): HubFile {
  const path = json.string('path');
  const large = json.has('lfs') && isObject(json.raw('lfs')) ? json.object('lfs') : undefined;
  const [hex, digits] = large === undefined ? [json.string('oid'), 40] : [large.string('oid'), 64];
  if (hex.length !== digits || !/^[0-9a-f]+$/.test(hex))
    throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${path} has no digest but ${JSON.stringify(hex)}`, { path });
  return {
    path,
    bytes: (large ?? json).integer('size'),
    digest: { algorithm: large === undefined ? 'git-sha1' : 'sha256', hex },
  };
}

/** <https://…>; rel="next" */
function nextPage(answer: Answer, url: string, asked: Asked): string | undefined {
  const next = /<([^>]+)>\s*;[^,]*rel="?next"?/.exec(answer.lastHeaders.get('link') ?? '')?.[1];
  if (next === undefined) return undefined;
  const at = new URL(next, url);
  if (at.origin !== new URL(url).origin)
    throw unavailable(asked, `the next page of its list lies on ${at.host}, another host`);
  return at.href;
}

/** One identifier or a list of them; "other" has its name beside it. */
function licenceOf(card: CheckedJson | undefined): string {
  const licence = card?.has('license') === true ? card.raw('license') : undefined;
  const names = (Array.isArray(licence) ? licence : [licence]).filter((name) => typeof name === 'string');
  if (names.length === 0) return 'unknown';
  const named = card?.has('license_name') === true ? card.raw('license_name') : undefined;
  return names.join() === 'other' && typeof named === 'string' ? named : names.join(' or ');
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
