// One HTTP request whose redirects are followed by hand: what is secret goes to the host that was asked and to no other,
// and what each hop said is kept. Judges no status: an answer is an answer, whatever it says. Refuses a redirect from
// HTTPS to plain HTTP.

import { fetchFailure } from './fetch-failure.ts';

export interface AskOptions {
  readonly headers?: Readonly<Record<string, string>>;
  /** Headers for the origin of `url` alone; left out as soon as a redirect leads elsewhere. */
  readonly secretHeaders?: Readonly<Record<string, string>>;
  /** Until the last answer's headers, redirects included. Default 10 s. */
  readonly connectTimeoutMs?: number;
  /** Longest silence while a body arrives. Default 30 s. */
  readonly silenceTimeoutMs?: number;
  /** Ends it, with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

export interface Answer {
  readonly status: number;
  /** The first hop that has this header says it: a hub describes a file before it sends elsewhere for its bytes. */
  header(name: string): string | undefined;
  /** Where redirects led. */
  readonly lastUrl: string;
  /** Of the last hop alone. */
  readonly lastHeaders: Headers;
  /** Throws SETUP_FAILED when the body breaks off or stays silent for too long. */
  chunks(): AsyncIterable<Uint8Array>;
  /** The whole body; SETUP_FAILED above so many bytes. */
  text(maxBytes: number): Promise<string>;
  /** Ends the connection of an answer whose body nobody wants. */
  drop(): void;
}

const MOST_REDIRECTS = 5;
const REDIRECTS = new Set([301, 302, 303, 307, 308]);

/** SETUP_FAILED (`unreachable`) when nobody answers, or not in time. */
export async function ask(url: string, options: AskOptions = {}): Promise<Answer> {
  const { connectTimeoutMs = 10_000, silenceTimeoutMs = 30_000, signal } = options;
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(new Error(`no answer within ${connectTimeoutMs} ms`)), connectTimeoutMs);
  const ended = signal === undefined ? abort.signal : AbortSignal.any([abort.signal, signal]);
  try {
    const hops = await follow(url, options, ended);
    return answerOf(url, hops, { abort, silenceTimeoutMs, signal });
  } catch (error) {
    signal?.throwIfAborted(); // not a failure of the other side
    throw unreachable(url, error);
  } finally {
    clearTimeout(timer);
  }
}

/** Every answer on the way, the one that is no redirect last. */
async function follow(url: string, options: AskOptions, signal: AbortSignal): Promise<readonly Response[]> {
  const { headers = {}, secretHeaders = {} } = options;
  const { origin, protocol } = new URL(url);
  const hops: Response[] = [];
  let [at, isAtHome] = [url, true];
  for (;;) {
    const response = await fetch(at, {
      redirect: 'manual',
      headers: isAtHome ? { ...headers, ...secretHeaders } : headers,
      signal,
    });
    hops.push(response);
    const location = response.headers.get('location');
    if (!REDIRECTS.has(response.status) || location === null) return hops;
    await response.body?.cancel();
    const next = new URL(location, at);
    if (next.protocol !== 'https:' && (protocol === 'https:' || next.protocol !== 'http:'))
      throw new Error(`it redirects to ${next.protocol}//${next.host}, which is not HTTPS`);
    if (hops.length > MOST_REDIRECTS) throw new Error(`more than ${MOST_REDIRECTS} redirects`);
    isAtHome &&= next.origin === origin; // whoever sent elsewhere could send back with a path of its choice
    at = next.href;
  }
}

interface Reading {
  readonly abort: AbortController;
  readonly silenceTimeoutMs: number;
  readonly signal: AbortSignal | undefined;
}

function answerOf(url: string, hops: readonly Response[], reading: Reading): Answer {
  const last = hops.at(-1)!;
  return {
    status: last.status,
    lastUrl: last.url || url,
    header: (name) => hops.map((hop) => hop.headers.get(name)).find((value) => value !== null) ?? undefined,
    lastHeaders: last.headers,
    chunks: () => chunksOf(url, last, reading),
    text: async (maxBytes) => {
      const chunks: Uint8Array[] = [];
      let bytes = 0;
      for await (const chunk of chunksOf(url, last, reading)) {
        chunks.push(chunk);
        bytes += chunk.byteLength;
        if (bytes > maxBytes) throw fetchFailure('failed', `${named(url)} answered with more than ${maxBytes} bytes`);
      }
      return Buffer.concat(chunks).toString();
    },
    drop: () => reading.abort.abort(new Error('nobody wants it')),
  };
}

async function* chunksOf(url: string, response: Response, reading: Reading): AsyncGenerator<Uint8Array> {
  const { abort, silenceTimeoutMs, signal } = reading;
  const silent = (): void => abort.abort(new Error(`nothing arrived for ${silenceTimeoutMs} ms`));
  let timer = setTimeout(silent, silenceTimeoutMs);
  let isRead = false;
  try {
    for await (const chunk of response.body ?? []) {
      clearTimeout(timer); // whoever writes it somewhere may take its time
      yield chunk;
      timer = setTimeout(silent, silenceTimeoutMs);
    }
    isRead = true;
  } catch (error) {
    signal?.throwIfAborted();
    throw unreachable(url, error);
  } finally {
    clearTimeout(timer);
    if (!isRead) abort.abort(new Error('nobody wants the rest'));
  }
}

/** What stands behind "?" may be a signature that opens the file to anybody. */
export function named(url: string): string {
  return url.replace(/[?#].*$/s, '');
}

function unreachable(url: string, error: unknown): Error {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const found =
    cause instanceof Error ? cause.message || ('code' in cause ? String(cause.code) : cause.name) : String(cause);
  return fetchFailure(
    'unreachable',
    `${named(url)} cannot be reached from here (${found}): check the network${proxyHint()}`,
    error,
  );
}

/** Node uses the proxies of the environment only when it is told to. */
function proxyHint(): string {
  const { env } = process;
  const isSet = ['https_proxy', 'HTTPS_PROXY', 'http_proxy', 'HTTP_PROXY'].some((name) => env[name]);
  if (!isSet) return ' or the proxy settings';
  const isUsed = env['NODE_USE_ENV_PROXY'] === '1' || (env['NODE_OPTIONS'] ?? '').includes('--use-env-proxy');
  return isUsed ? ' and the proxy that is set' : '. A proxy is set: NODE_USE_ENV_PROXY=1 makes Node use it';
}
