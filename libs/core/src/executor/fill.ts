// The executor's first verb: what a job order asks for becomes rows of token ids, checked in every respect, or the
// reason why it cannot. Reads inputs and tokenizes; holds no state of a job, and a fault in one order is that order's
// alone.

import {
  decodeInput,
  encodeTexts,
  hasAtLeast,
  type DecodedInput,
  ShoalError,
  toFailure,
  type Failure,
  decodeResultHeader,
  type ResultHeader,
  fingerprintOf,
  invariant,
  missingPrompt,
  promptText,
  type Prompts,
} from '@shoal/contract';
import type { BatchTokenizer } from '../ports/tokenizer.ts';
import type { InferenceBackend } from '../ports/device.ts';
import type { InputRead, PayloadStore } from '../ports/payload.ts';
import type { JobOrder } from '../protocol.ts';

export interface FillerParts {
  readonly store: PayloadStore;
  readonly tokenizer: BatchTokenizer;
  readonly backend: Pick<InferenceBackend, 'dims'>;
  /** name@revision */
  readonly model: string;
  readonly prompts: Prompts['prompts'];
  readonly defaultPrompt?: string | undefined;
  /** The model's vectors have length 1. Default true. */
  readonly isNormalized?: boolean | undefined;
}

export type Filled =
  | { readonly kind: 'failed'; readonly failure: Failure }
  /** A result of the same request is there. */
  | { readonly kind: 'already'; readonly header: ResultHeader }
  | {
      readonly kind: 'rows';
      readonly fingerprint: string;
      readonly ids: readonly ArrayLike<number>[];
      readonly truncated: number;
    };

export class Filler {
  private readonly parts: FillerParts;

  constructor(parts: FillerParts) {
    this.parts = parts;
  }

  /** One value per order, in order. */
  async fill(orders: readonly JobOrder[]): Promise<Filled[]> {
    const reads = await this.parts.store.read(
      orders.map(({ jobId, resultId, input }) => ({ jobId, resultId, hasInput: input.form !== 'inline' })),
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
    const bytes = order.input.form === 'inline' ? encodeTexts(order.input.texts) : read.input;
    if (bytes === undefined) {
      if (known !== undefined && (order.fingerprint === undefined || order.fingerprint === known.fingerprint))
        return { kind: 'already', header: known };
      if (known !== undefined) throw conflict(order.jobId, known.fingerprint, order.fingerprint ?? 'unknown');
      throw new ShoalError(
        'INPUT_LOST',
        `job "${order.jobId}" has neither an input key nor a result; add it again with its input`,
        { jobId: order.jobId },
      );
    }
    const fingerprint = this.checkedFingerprint(order, bytes);
    if (known !== undefined) {
      if (known.fingerprint === fingerprint) return { kind: 'already', header: known };
      throw conflict(order.jobId, known.fingerprint, fingerprint);
    }
    return {
      kind: 'rows',
      fingerprint,
      ...(await this.rowsOf(
        order,
        order.input.form === 'inline' ? { form: 'texts', texts: order.input.texts } : decodeInput(bytes),
      )),
    };
  }

  private checkedFingerprint(order: JobOrder, bytes: Buffer): string {
    const { prompt, truncate, output } = order;
    const of = (asked: typeof output): string =>
      fingerprintOf({ model: this.parts.model, prompt, truncate, output: asked }, bytes);
    const asked = of(output);
    if (order.fingerprint === asked) return asked;
    // where vectors have length 1 anyhow, a producer need not know that asking for it has a fingerprint of its own
    const fingerprint =
      output.normalize === true && this.parts.isNormalized !== false ? of({ ...output, normalize: undefined }) : asked;
    if (order.fingerprint !== undefined && order.fingerprint !== fingerprint) {
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

  private async rowsOf(order: JobOrder, input: DecodedInput): Promise<{ ids: ArrayLike<number>[]; truncated: number }> {
    const expected = order.input.form === 'inline' ? undefined : order.input;
    if (expected !== undefined && expected.form !== input.form)
      throw inputMismatch(order.jobId, `says ${expected.form}`, `holds ${input.form}`);
    const ids =
      input.form === 'texts'
        ? await this.tokenized(order, input.texts)
        : { ids: this.checkedIds(order, input), truncated: 0 };
    if (expected !== undefined && expected.rows !== ids.ids.length)
      throw inputMismatch(order.jobId, `says ${expected.rows} rows`, `holds ${ids.ids.length}`);
    return ids;
  }

  private async tokenized(
    order: JobOrder,
    texts: readonly string[],
  ): Promise<{ ids: ArrayLike<number>[]; truncated: number }> {
    const { tokenizer } = this.parts;
    const prefix = promptText(this.parts, order.prompt);
    if (prefix === undefined) throw this.noPrompt(order);
    const rows = await tokenizer.encodeAll(prefix === '' ? texts : texts.map((text) => prefix + text));
    const firstCut = rows.findIndex((row) => row.isTruncated);
    if (firstCut >= 0 && order.truncate === 'error') throw tooLong(order.jobId, firstCut, tokenizer.maxTokens);
    return { ids: rows.map((row) => row.ids), truncated: rows.filter((row) => row.isTruncated).length };
  }

  /** Texts without the words that were asked for would have other vectors, and nobody would see it. */
  private noPrompt({ jobId, prompt }: JobOrder): ShoalError<'JOB_INVALID'> {
    return new ShoalError(
      'JOB_INVALID',
      `job "${jobId}" asks for the prompt "${prompt}", and ${this.parts.model} ${missingPrompt(this.parts)}`,
      { jobId },
    );
  }

  private checkedIds(
    order: JobOrder,
    { rows, ids }: Extract<DecodedInput, { readonly form: 'tokens' }>,
  ): ArrayLike<number>[] {
    const { tokenizer } = this.parts;
    invariant(order.input.form === 'tokens', 'token ids come with the hash of their tokenizer');
    if (order.input.tokenizer !== tokenizer.hash) {
      throw new ShoalError(
        'TOKENIZER_MISMATCH',
        `job "${order.jobId}" has token ids of tokenizer ${order.input.tokenizer}; ${this.parts.model} has ` +
          `${tokenizer.hash}`,
        {
          jobId: order.jobId,
        },
      );
    }
    const long = rows.findIndex((row) => row.length > tokenizer.maxTokens);
    if (long !== -1) throw tooLong(order.jobId, long, tokenizer.maxTokens);
    if (hasAtLeast(tokenizer.vocabularySize, ids)) {
      const row = rows.findIndex((one) => hasAtLeast(tokenizer.vocabularySize, one));
      const stranger = rows[row]!.find((id) => id >= tokenizer.vocabularySize);
      throw new ShoalError(
        'INPUT_CORRUPT',
        `job "${order.jobId}", row ${row}: token id ${stranger} is outside the vocabulary of ` +
          `${tokenizer.vocabularySize}`,
      );
    }
    return [...rows];
  }
}

function inputMismatch(jobId: string, says: string, holds: string): ShoalError<'INPUT_CORRUPT'> {
  return new ShoalError('INPUT_CORRUPT', `job "${jobId}" ${says}, but its input key ${holds}`, { jobId });
}

function tooLong(jobId: string, row: number, maxTokens: number): ShoalError<'INPUT_TOO_LONG'> {
  return new ShoalError(
    'INPUT_TOO_LONG',
    `job "${jobId}", row ${row} has more than the ${maxTokens} tokens this worker takes; shorten it or ask ` +
      'with truncate "end"',
    {
      jobId,
      row,
    },
  );
}

export function conflict(jobId: string, found: string, asked: string): ShoalError<'JOB_ID_CONFLICT'> {
  return new ShoalError(
    'JOB_ID_CONFLICT',
    `job id "${jobId}" already has a result for other input (fingerprint ${found}, asked for ${asked}); use another id`,
    { jobId },
  );
}
