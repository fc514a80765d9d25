// The executor's first verb: what a job order asks for becomes rows of token ids, checked in every respect, or the
// reason why it cannot. Reads inputs and tokenizes; holds no state of a job, and a fault in one order is that order's
// alone. What is in an input differs by the kind of model: text-rows.ts and pair-rows.ts.

import {
  MAX_RETURNED_BYTES,
  ShoalError,
  bodyBytes,
  decodeResultHeader,
  toFailure,
  type Failure,
  type ModelKind,
  type Prompts,
  type ResultHeader,
} from '@shoal/contract';
import type { BatchTokenizer } from '../ports/tokenizer.ts';
import type { InferenceBackend } from '../ports/device.ts';
import type { InputRead, PayloadStore, WantedPayload } from '../ports/payload.ts';
import type { JobOrder } from '../protocol.ts';
import type { FilledRows, RowMaker } from './row-maker.ts';
import { PairRows } from './pair-rows.ts';
import { TextRows } from './text-rows.ts';

export interface FillerParts {
  readonly store: PayloadStore;
  readonly tokenizer: BatchTokenizer;
  readonly backend: Pick<InferenceBackend, 'dims'>;
  /** name@revision */
  readonly model: string;
  /** Default: an embedder. */
  readonly kind?: ModelKind | undefined;
  readonly prompts: Prompts['prompts'];
  readonly defaultPrompt?: string | undefined;
  /** The model's vectors have length 1. Default true. */
  readonly isNormalized?: boolean | undefined;
}

/** Of a result that nobody keeps. */
const OWN_FINGERPRINT = '0'.repeat(16);

export type Filled =
  | { readonly kind: 'failed'; readonly failure: Failure }
  /** A result of the same request is there. */
  | { readonly kind: 'already'; readonly header: ResultHeader }
  | ({ readonly kind: 'rows'; readonly fingerprint: string } & FilledRows);

export class Filler {
  private readonly parts: FillerParts;
  private readonly maker: RowMaker;

  constructor(parts: FillerParts) {
    this.parts = parts;
    this.maker = parts.kind === 'reranker' ? new PairRows(parts) : new TextRows(parts);
  }

  /** One value per order, in order. `store`: where their inputs are. */
  async fill(orders: readonly JobOrder[], store: Pick<PayloadStore, 'read'> = this.parts.store): Promise<Filled[]> {
    const reads = await store.read(
      orders.map((order) => ({
        jobId: order.jobId,
        resultId: order.resultId,
        hasInput: order.input.form !== 'inline',
        beside: besideOf(order),
      })),
    );
    return Promise.all(orders.map((order, i) => this.readOne(order, reads[i]!)));
  }

  private async readOne(order: JobOrder, read: InputRead): Promise<Filled> {
    try {
      const known = read.resultHead === undefined ? undefined : decodeResultHeader(read.resultHead);
      return await this.prepare(order, read, known);
    } catch (error) {
      if (!(error instanceof ShoalError)) throw error;
      return { kind: 'failed', failure: toFailure(error) };
    }
  }

  private async prepare(order: JobOrder, read: InputRead, known: ResultHeader | undefined): Promise<Filled> {
    const {
      output: { dimensions = 0 },
    } = order;
    const {
      backend: { dims },
      model,
    } = this.parts;
    if (dimensions > dims)
      throw new ShoalError(
        'JOB_INVALID',
        `job "${order.jobId}" asks for ${dimensions} dimensions, and ${model} has ${dims}; ask for at most ` +
          `${dims}, or leave output.dimensions out`,
        { jobId: order.jobId },
      );
    checkReturned(order, dims);
    const bytes = this.maker.inlineBytes(order) ?? read.input;
    if (bytes === undefined) {
      if (known !== undefined && (order.fingerprint === undefined || order.fingerprint === known.fingerprint))
        return { kind: 'already', header: known };
      if (known !== undefined) throw conflict(order.jobId, known.fingerprint, order.fingerprint ?? 'unknown');
      throw inputLost(
        order.jobId,
        read.lost === undefined ? 'has neither an input key nor a result' : `cannot be run: ${read.lost}`,
      );
    }
    const { isOwn = false } = read;
    const fingerprint = isOwn ? OWN_FINGERPRINT : this.checkedFingerprint(order, bytes);
    if (known !== undefined) {
      if (known.fingerprint !== fingerprint) throw conflict(order.jobId, known.fingerprint, fingerprint);
      // the header alone has no vectors to return: they are computed again, and the result stays as it is
      if (order.returnsVectors !== true) return { kind: 'already', header: known };
    }
    return { kind: 'rows', fingerprint, ...(await this.maker.rowsOf(order, bytes, isOwn)) };
  }

  private checkedFingerprint(order: JobOrder, bytes: Buffer): string {
    const fingerprint = this.maker.fingerprintOf(order, bytes);
    if (order.fingerprint !== undefined && order.fingerprint !== fingerprint) {
      const beside = besideOf(order);
      if (beside !== undefined)
        throw inputLost(
          order.jobId,
          `cannot be run: payload server ${beside.store} has other bytes than its fingerprint ${order.fingerprint} stands for`,
        );
      throw new ShoalError(
        'FINGERPRINT_MISMATCH',
        `job "${order.jobId}" came with fingerprint ${order.fingerprint}, but its input and options for ` +
          `${this.parts.model} have ${fingerprint}; ` +
          'the producer uses another revision of the model or makes fingerprints differently',
        { jobId: order.jobId },
      );
    }
    return fingerprint;
  }
}

function besideOf({ input, fingerprint }: JobOrder): WantedPayload['beside'] {
  const store = 'store' in input ? input.store : undefined;
  return store === undefined || fingerprint === undefined ? undefined : { store, fingerprint };
}

function inputLost(jobId: string, found: string): ShoalError<'INPUT_LOST'> {
  return new ShoalError('INPUT_LOST', `job "${jobId}" ${found}; add it again with its input`, { jobId });
}

/** Vectors in the return value stay with the job for as long as it is remembered: they are few and small. */
function checkReturned({ jobId, input, output, returnsVectors }: JobOrder, dims: number): void {
  if (returnsVectors !== true || input.form !== 'inline') return;
  const bytes = bodyBytes(output.dtype, input.texts.length, output.dimensions ?? dims);
  if (bytes > MAX_RETURNED_BYTES)
    throw new ShoalError(
      'RESULT_TOO_LARGE',
      `job "${jobId}" asks for its vectors in the return value, and they have ${bytes} bytes, above the ` +
        `${MAX_RETURNED_BYTES} that may travel there; ask with fewer texts or dimensions, or another dtype, or read the ` +
        'result key',
      { jobId, bytes },
    );
}

export function conflict(jobId: string, found: string, asked: string): ShoalError<'JOB_ID_CONFLICT'> {
  return new ShoalError(
    'JOB_ID_CONFLICT',
    `job id "${jobId}" already has a result for other input (fingerprint ${found}, asked for ${asked}); use another id`,
    { jobId },
  );
}
