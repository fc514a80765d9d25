// A model that was just brought, run on one text in a process of its own: a graph that does not run, crashes the runtime,
// takes all memory or never ends is refused at its import, where whoever brought it reads why. What it gives is what
// every device has to give for that text from then on.

import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { ShoalError } from '@shoal/contract';
import { descriptorFailure, programFile } from '@shoal/core/base';
import { CANARY_TEXT, encodeCanary, openGraph, openTokenizer, type Canary, type StoredModel } from '@shoal/models';

export interface ProveOptions {
  readonly cacheDir: string;
  /** Default: a minute, in which the largest graph that can be is read and run several times. */
  readonly timeoutMs?: number;
}

const TIMEOUT_MS = 60_000;

export interface ToProof {
  readonly graphPath: string;
  readonly dims: number;
  readonly precision: StoredModel['precision'];
  readonly ids: readonly number[];
  /** Of a pair: at which id its second text begins. */
  readonly second: number | undefined;
}
export type FromProof =
  | { readonly kind: 'vector'; readonly values: readonly number[] }
  | { readonly kind: 'failed'; readonly message: string };

/** On the CPU in the model's own precision. MODEL_CORRUPT says what came instead of a vector. */
export async function proveModel(
  model: StoredModel,
  { cacheDir, timeoutMs = TIMEOUT_MS }: ProveOptions,
): Promise<Canary> {
  const { ids: encoded, second } = encodeCanary(model, await openTokenizer(model));
  const ids = [...encoded];
  const graphPath = await openGraph(model, { cacheDir });
  const values = await runApart({ graphPath, dims: model.dims, precision: model.precision, ids, second }, timeoutMs);
  const vector = Float32Array.from(values);
  const problem = vector.length === model.dims ? problemOf(model, vector) : `${vector.length} values`;
  if (problem !== undefined)
    throw corrupt(
      model.kind === 'reranker'
        ? `gives a pair of texts ${problem} where it should give one score`
        : `gives a text a vector of ${problem}, not one of ${model.dims} values and ` +
            (model.isNormalized ? 'length 1' : 'a length above 0'),
    );
  return { ids, ...(second !== undefined && { second }), vector };
}

/** What is wrong with what the model gave; undefined where it is as it should be. */
function problemOf({ kind, isNormalized }: StoredModel, vector: Float32Array): string | undefined {
  if (kind === 'reranker') return Number.isFinite(vector[0]) ? undefined : `the value ${vector[0]}`;
  const length = Math.hypot(...vector);
  const isSound = isNormalized ? Math.abs(length - 1) < 1e-3 : length > 0 && Number.isFinite(length);
  return isSound ? undefined : `${vector.length} values and length ${length}`;
}

function runApart(order: ToProof, timeoutMs: number): Promise<readonly number[]> {
  const main = fileURLToPath(programFile('./prove-model-main', import.meta.url));
  const child = fork(main, [], { stdio: ['ignore', 'ignore', 'ignore', 'ipc'] });
  const { promise, resolve, reject } = Promise.withResolvers<readonly number[]>();
  const patience = setTimeout(
    () => reject(corrupt(`gives no vector for a short text within ${timeoutMs / 1000} s`)),
    timeoutMs,
  );
  child.on('message', (message: FromProof) => {
    if (message.kind === 'vector') resolve(message.values);
    else reject(corrupt(`does not run: ${message.message}`));
  });
  child.once('error', (error) => reject(descriptorFailure(error) ?? error));
  child.once('close', (code, signal) =>
    reject(corrupt(`ends the process that runs it (${signal ?? `exit code ${code}`})`)),
  );
  // it may end before it has read the order, which its end tells as well
  child.once('spawn', () => child.send(order, () => undefined));
  return promise.finally(() => {
    clearTimeout(patience);
    child.kill('SIGKILL');
  });
}

function corrupt(problem: string): ShoalError {
  return new ShoalError(
    'MODEL_CORRUPT',
    `the model ${problem}. It was run on the CPU with ${JSON.stringify(CANARY_TEXT)}`,
  );
}
