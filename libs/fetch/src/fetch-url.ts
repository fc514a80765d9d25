// One file over HTTP(S), hashed while it arrives. Refuses to hand over bytes whose digest is not the pinned one, and
// does not wait for a server that does not answer: a laptop without a network learns that in seconds.

import { createHash } from 'node:crypto';
import { open, rm } from 'node:fs/promises';
import { isShoalError } from '@shoal/contract';
import { fetchFailure, mismatch } from './fetch-failure.ts';

export type OnProgress = (bytes: number, totalBytes: number | undefined) => void;

export interface UrlOptions {
  /** Lower-case hex; bytes with another digest are deleted and refused. */
  readonly sha256?: string;
  /** Until the answer's first bytes, redirects included. */
  readonly connectTimeoutMs?: number;
  /** Longest silence while the body arrives. */
  readonly silenceTimeoutMs?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly onProgress?: OnProgress;
  /** Ends it, with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * Writes the body of `url` to `destination` (created or overwritten; removed again on failure). Use inside
 * `placeAtomically`.
 */
export async function fetchUrl(
  url: string,
  destination: string,
  options: UrlOptions = {},
): Promise<{ bytes: number; sha256: string }> {
  try {
    const received = await receive(url, destination, options);
    if (options.sha256 !== undefined && received.sha256 !== options.sha256)
      throw mismatch(url, options.sha256, received.sha256);
    return received;
  } catch (error) {
    await rm(destination, { force: true });
    options.signal?.throwIfAborted(); // not a failure of the source
    throw isShoalError(error) ? error : translate(url, error);
  }
}

async function receive(
  url: string,
  destination: string,
  options: UrlOptions,
): Promise<{ bytes: number; sha256: string }> {
  const { connectTimeoutMs = 5_000, silenceTimeoutMs = 30_000, headers = {}, onProgress, signal } = options;
  const abort = new AbortController();
  let timer = setTimeout(() => abort.abort(new Error(`no answer within ${connectTimeoutMs} ms`)), connectTimeoutMs);
  const file = await open(destination, 'w');
  try {
    const response = await fetch(url, {
      signal: signal === undefined ? abort.signal : AbortSignal.any([abort.signal, signal]),
      headers,
    });
    if (!response.ok || response.body === null) throw refused(url, response.status);
    const length = Number(response.headers.get('content-length'));
    const totalBytes = Number.isInteger(length) && length > 0 ? length : undefined;
    const hash = createHash('sha256');
    let bytes = 0;
    for await (const chunk of response.body) {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(new Error(`nothing arrived for ${silenceTimeoutMs} ms`)), silenceTimeoutMs);
      hash.update(chunk);
      await file.writeFile(chunk);
      bytes += chunk.byteLength;
      onProgress?.(bytes, totalBytes);
    }
    return { bytes, sha256: hash.digest('hex') };
  } finally {
    clearTimeout(timer);
    await file.close();
  }
}

function refused(url: string, status: number): Error {
  return fetchFailure(
    status === 404 || status === 410 || status === 401 || status === 403 ? 'not-found' : 'unreachable',
    `${url} was asked for and answered with HTTP ${status}`,
  );
}

function translate(url: string, error: unknown): Error {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const found =
    cause instanceof Error ? cause.message || ('code' in cause ? String(cause.code) : cause.name) : String(cause);
  if (found.includes('ENOSPC'))
    return fetchFailure(
      'disk-full',
      `${url} could not be stored: the disk is full. Free some space and try again.`,
      error,
    );
  return fetchFailure(
    'unreachable',
    `${url} cannot be reached from here (${found}): check the network or the proxy settings`,
    error,
  );
}
