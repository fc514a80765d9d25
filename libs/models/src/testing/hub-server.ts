// A hub on this machine, for tests: speaks what a client of the Hugging Face hub reads (revision, tree in pages, resolve
// with its headers), sends large files from a second host (another port) behind a redirect with a signature, and can
// refuse, break off, lie and be slow. It keeps what it was asked, headers included, so that a test sees who got a token.

import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface ServedFile {
  readonly bytes: Buffer;
  /** Kept by Git LFS: listed with sha256, sent from the second host. */
  readonly isLarge: boolean;
}

export interface ServedRepository {
  /** Branches and tags, and the commit each stands for. */
  readonly revisions: Readonly<Record<string, string>>;
  /** By commit. */
  readonly commits: Readonly<Record<string, Readonly<Record<string, ServedFile>>>>;
  readonly cardData?: Readonly<Record<string, unknown>>;
  readonly gated?: 'auto' | 'manual';
  /** Tokens that may read it; undefined: everybody. */
  readonly readers?: readonly string[];
}

export interface SeenRequest {
  readonly host: 'hub' | 'cdn';
  readonly url: string;
  readonly headers: IncomingMessage['headers'];
}

/** Decides over one request before it is served: true when it has answered. */
export type Fault = (seen: SeenRequest, response: ServerResponse) => boolean | Promise<boolean>;

const FILES_A_PAGE = 4;

export class HubServer {
  readonly seen: SeenRequest[] = [];
  readonly repositories = new Map<string, ServedRepository>();
  /** Names that were given up, and the new ones. */
  readonly renamed = new Map<string, string>();
  fault: Fault = () => false;
  /** Bytes of a large file that are sent before the connection is cut (`cutAt`); one connection each. */
  cuts: number[] = [];
  #held: { readonly response: ServerResponse; readonly upTo: number }[] = [];
  /** Between chunks of a large file. */
  delayMs = 0;
  readonly #servers: readonly [hub: Server, cdn: Server];

  private constructor() {
    const serve = (host: SeenRequest['host']): Server =>
      createServer((request, response) => {
        const seen = { host, url: request.url ?? '', headers: request.headers };
        this.seen.push(seen);
        void this.#answer(seen, response).catch((error: unknown) => response.destroy(error as Error));
      });
    this.#servers = [serve('hub'), serve('cdn')];
  }

  static async start(): Promise<HubServer> {
    const server = new HubServer();
    for (const each of server.#servers) await new Promise<void>((resolve) => each.listen(0, '127.0.0.1', resolve));
    return server;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.#servers[0].address() as AddressInfo).port}`;
  }

  /** Another origin, as a CDN is. */
  get cdn(): string {
    return `http://localhost:${(this.#servers[1].address() as AddressInfo).port}`;
  }

  async stop(): Promise<void> {
    for (const server of this.#servers) {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    }
  }

  /**
   * Cuts the connections that have sent what they were to send, once the reader says that so many bytes of the large
   * file have arrived: what a reader has not taken from its socket is lost with it.
   */
  cutAt(arrived: number): void {
    const [ready, held] = [
      this.#held.filter(({ upTo }) => arrived >= upTo),
      this.#held.filter(({ upTo }) => arrived < upTo),
    ];
    this.#held = held;
    for (const { response } of ready) response.destroy();
  }

  /** Serves these files under a commit that follows from them, as `main`; returns the commit. Earlier ones stay. */
  publish(
    name: string,
    files: Readonly<Record<string, string | Buffer>>,
    facts: Omit<Partial<ServedRepository>, 'commits'> = {},
  ): string {
    const served = Object.entries(files).map(([path, content]) => {
      const bytes = Buffer.from(content);
      return [path, { bytes, isLarge: /\.(?:safetensors|onnx|bin)$/.test(path) }] as const;
    });
    const commit = createHash('sha1')
      .update(JSON.stringify(served.map(([path, { bytes }]) => [path, sha256(bytes)])))
      .digest('hex');
    this.repositories.set(name, {
      ...facts,
      revisions: { ...facts.revisions, main: commit },
      commits: { ...this.repositories.get(name)?.commits, [commit]: Object.fromEntries(served) },
    });
    return commit;
  }

  async #answer(seen: SeenRequest, response: ServerResponse): Promise<void> {
    if (await this.fault(seen, response)) return;
    const url = new URL(seen.url, this.endpoint);
    if (seen.host === 'cdn') return this.#sendLarge(url, seen, response);
    const [, api, rest] = /^\/(api\/models\/)?(.*)$/.exec(url.pathname)!;
    const [org, name, verb, revision, ...path] = rest!.split('/').map(decodeURIComponent);
    const asked = `${org}/${name}`;
    const now = this.renamed.get(asked);
    if (now !== undefined) return void response.writeHead(307, { location: url.pathname.replace(asked, now) }).end();
    const repository = this.repositories.get(asked);
    const token = seen.headers.authorization?.replace(/^Bearer /, '');
    const mayRead = repository?.readers === undefined || (token !== undefined && repository.readers.includes(token));
    if (repository === undefined || (!mayRead && repository.gated === undefined))
      return refuse(response, token === undefined ? 401 : 404, 'RepoNotFound');
    const commit = repository.revisions[revision!] ?? Object.keys(repository.commits).find((one) => one === revision);
    if (commit === undefined) return refuse(response, 404, 'RevisionNotFound');
    if (api !== undefined && verb === 'revision') return sendJson(response, this.#facts(asked, repository, commit));
    if (!mayRead) return refuse(response, token === undefined ? 401 : 403, 'GatedRepo');
    if (api !== undefined && verb === 'tree') return this.#sendTree(url, repository.commits[commit]!, response);
    if (verb === 'resolve') return this.#resolve({ asked, repository, commit, path: path.join('/') }, seen, response);
    refuse(response, 404, 'EntryNotFound');
  }

  #facts(id: string, { cardData, gated, commits }: ServedRepository, sha: string): Record<string, unknown> {
    const siblings = Object.keys(commits[sha]!).map((rfilename) => ({ rfilename }));
    return { id, sha, gated: gated ?? false, private: false, siblings, ...(cardData && { cardData }) };
  }

  #sendTree(url: URL, files: Readonly<Record<string, ServedFile>>, response: ServerResponse): void {
    const all = Object.entries(files).map(([path, file]) => listed(path, file));
    const start = Number(url.searchParams.get('cursor') ?? 0);
    const page = start === 0 ? [{ type: 'directory', oid: '0'.repeat(40), size: 0, path: 'a-folder' }] : [];
    const next = start + FILES_A_PAGE;
    if (next < all.length) {
      url.searchParams.set('cursor', String(next));
      response.setHeader('link', `<${url.href}>; rel="next"`);
    }
    sendJson(response, [...page, ...all.slice(start, next)]);
  }

  #resolve(
    { asked, repository, commit, path }: { asked: string; repository: ServedRepository; commit: string; path: string },
    seen: SeenRequest,
    response: ServerResponse,
  ): void {
    const file = repository.commits[commit]?.[path];
    if (file === undefined) return refuse(response, 404, 'EntryNotFound');
    response.setHeader('x-repo-commit', commit);
    if (!file.isLarge) {
      response.setHeader('etag', `"${gitSha1(file.bytes)}"`);
      return send(file.bytes, seen, response);
    }
    const place = [asked, commit, path].map(encodeURIComponent).join('/');
    const location = `${this.cdn}/${place}?Signature=secret-signature`;
    response.setHeader('x-linked-size', String(file.bytes.length));
    response.setHeader('x-linked-etag', `"${sha256(file.bytes)}"`);
    response.writeHead(302, { location }).end(`Found. Redirecting to ${location}`);
  }

  async #sendLarge(url: URL, seen: SeenRequest, response: ServerResponse): Promise<void> {
    const [name, commit, path] = url.pathname.slice(1).split('/').map(decodeURIComponent);
    const file = this.repositories.get(name!)?.commits[commit!]?.[path!];
    if (file === undefined || url.searchParams.get('Signature') !== 'secret-signature')
      return refuse(response, 403, undefined);
    const cut = this.cuts.shift();
    if (cut === undefined && this.delayMs === 0) return send(file.bytes, seen, response);
    const body = begin(file.bytes, seen, response);
    const sent = cut === undefined ? body : body.subarray(0, cut);
    for (let at = 0; at < sent.length; at += 4_096) {
      if (!response.write(sent.subarray(at, at + 4_096)))
        await new Promise((resolve) => response.once('drain', resolve));
      if (this.delayMs > 0) await new Promise((resolve) => setTimeout(resolve, this.delayMs));
      if (response.destroyed) return;
    }
    if (cut === undefined) response.end();
    else this.#held.push({ response, upTo: bytesBefore(seen) + cut });
    if (cut === 0) this.cutAt(Infinity);
  }
}

/** Answers as the hub refuses: a status, and its own word for it. */
export function refuse(response: ServerResponse, status: number, code: string | undefined, headers = {}): void {
  response.writeHead(status, { ...(code !== undefined && { 'x-error-code': code }), ...headers }).end('refused');
}

export function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

export function gitSha1(bytes: Buffer): string {
  return createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');
}

function listed(path: string, { bytes, isLarge }: ServedFile): Record<string, unknown> {
  if (!isLarge) return { type: 'file', oid: gitSha1(bytes), size: bytes.length, path };
  const pointer = Buffer.from(
    `version https://git-lfs.github.com/spec/v1\noid sha256:${sha256(bytes)}\nsize ${bytes.length}\n`,
  );
  const lfs = { oid: sha256(bytes), size: bytes.length, pointerSize: pointer.length };
  return { type: 'file', oid: gitSha1(pointer), size: bytes.length, lfs, path };
}

function sendJson(response: ServerResponse, value: unknown): void {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(value));
}

function send(bytes: Buffer, seen: SeenRequest, response: ServerResponse): void {
  response.end(begin(bytes, seen, response));
}

function bytesBefore({ headers }: SeenRequest): number {
  return Number(/^bytes=(\d+)-$/.exec(headers.range ?? '')?.[1] ?? 0);
}

/** Writes the head and returns what its body is to be. */
function begin(bytes: Buffer, seen: SeenRequest, response: ServerResponse): Buffer {
  const start = bytesBefore(seen);
  const body = bytes.subarray(start);
  response.writeHead(start === 0 ? 200 : 206, {
    'content-length': body.length,
    'accept-ranges': 'bytes',
    ...(start > 0 && { 'content-range': `bytes ${start}-${bytes.length - 1}/${bytes.length}` }),
  });
  return body;
}
