// Rows of an embedder: each text behind the prompt that its job asks for, or the token ids that the job brought.

import {
  ShoalError,
  decodeInput,
  encodeTexts,
  fingerprintOf,
  missingPrompt,
  promptText,
  type Prompts,
} from '@shoal/contract';
import type { BatchTokenizer } from '../ports/tokenizer.ts';
import type { JobOrder } from '../protocol.ts';
import { checkedIds, countCut, expectInput, type FilledRows, type RowMaker } from './row-maker.ts';

export interface TextRowsParts extends Prompts {
  readonly tokenizer: BatchTokenizer;
  /** name@revision */
  readonly model: string;
  /** The model's vectors have length 1. Default true. */
  readonly isNormalized?: boolean | undefined;
}

export class TextRows implements RowMaker {
  private readonly parts: TextRowsParts;

  constructor(parts: TextRowsParts) {
    this.parts = parts;
  }

  inlineBytes({ input }: JobOrder): Buffer | undefined {
    return input.form === 'inline' ? encodeTexts(input.texts) : undefined;
  }

  fingerprintOf(order: JobOrder, bytes: Buffer): string {
    const { prompt, truncate, output } = order;
    const of = (asked: typeof output): string =>
      fingerprintOf({ model: this.parts.model, prompt, truncate, output: asked }, bytes);
    const asked = of(output);
    if (order.fingerprint === asked) return asked;
    // where vectors have length 1 anyhow, a producer need not know that asking for it has a fingerprint of its own
    return output.normalize === true && this.parts.isNormalized !== false
      ? of({ ...output, normalize: undefined })
      : asked;
  }

  async rowsOf(order: JobOrder, bytes: Buffer, isOwn: boolean): Promise<FilledRows> {
    if (order.output.normalize === false && this.parts.isNormalized !== false) throw this.alwaysUnit(order);
    if (order.input.form === 'inline') return this.tokenized(order, order.input.texts);
    const input = decodeInput(bytes);
    expectInput(order, { form: input.form, rows: input.form === 'texts' ? input.texts.length : input.rows.length });
    if (input.form === 'texts') return this.tokenized(order, input.texts);
    return { ids: isOwn ? input.rows : checkedIds(order, input, this.parts), truncated: 0 };
  }

  private async tokenized(order: JobOrder, texts: readonly string[]): Promise<FilledRows> {
    const { tokenizer } = this.parts;
    const prefix = promptText(this.parts, order.prompt);
    if (prefix === undefined) throw this.noPrompt(order);
    const rows = await tokenizer.encodeAll(prefix === '' ? texts : texts.map((text) => prefix + text));
    return { ids: rows.map((row) => row.ids), truncated: countCut(order, rows, tokenizer.maxTokens) };
  }

  /** A promise that nobody could keep. */
  private alwaysUnit({ jobId }: JobOrder): ShoalError<'JOB_INVALID'> {
    return new ShoalError(
      'JOB_INVALID',
      `job "${jobId}" asks for vectors that are not normalized ("normalize": false), and those of ${this.parts.model} ` +
        'have length 1 and cannot be had otherwise: leave it out',
      { jobId },
    );
  }

  /** Texts without the words that were asked for would have other vectors, and nobody would see it. */
  private noPrompt({ jobId, prompt }: JobOrder): ShoalError<'JOB_INVALID'> {
    return new ShoalError(
      'JOB_INVALID',
      `job "${jobId}" asks for the prompt "${prompt}", and ${this.parts.model} ${missingPrompt(this.parts)}`,
      { jobId },
    );
  }
}
