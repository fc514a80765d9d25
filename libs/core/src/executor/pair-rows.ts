// Rows of a reranker: the query of a job with each of its texts, or the pairs that the job brought as token ids.

import { decodePairs, encodeQueryTexts, invariant, rerankFingerprint } from '@shoal/contract';
import type { BatchTokenizer } from '../ports/tokenizer.ts';
import type { JobOrder } from '../protocol.ts';
import { checkedIds, countCut, expectInput, type FilledRows, type RowMaker } from './row-maker.ts';

export interface PairRowsParts {
  readonly tokenizer: BatchTokenizer;
  /** name@revision */
  readonly model: string;
}

interface QueryTexts {
  readonly query: string;
  readonly texts: readonly string[];
}

export class PairRows implements RowMaker {
  private readonly parts: PairRowsParts;

  constructor(parts: PairRowsParts) {
    this.parts = parts;
  }

  inlineBytes(order: JobOrder): Buffer | undefined {
    const inline = inlineOf(order);
    return inline === undefined ? undefined : encodeQueryTexts(inline.query, inline.texts);
  }

  fingerprintOf({ truncate }: JobOrder, bytes: Buffer): string {
    return rerankFingerprint({ model: this.parts.model, truncate }, bytes);
  }

  async rowsOf(order: JobOrder, bytes: Buffer): Promise<FilledRows> {
    const inline = inlineOf(order);
    if (inline !== undefined) return this.tokenized(order, inline);
    const input = decodePairs(bytes);
    expectInput(order, { form: input.form, rows: input.form === 'texts' ? input.texts.length : input.rows.length });
    if (input.form === 'texts') return this.tokenized(order, input);
    return { ids: checkedIds(order, input, this.parts), seconds: input.seconds, truncated: 0 };
  }

  private async tokenized(order: JobOrder, { query, texts }: QueryTexts): Promise<FilledRows> {
    const { tokenizer } = this.parts;
    const pairs = await tokenizer.encodePairs(query, texts);
    return {
      ids: pairs.map(({ ids }) => ids),
      seconds: Uint32Array.from(pairs, ({ second }) => second),
      truncated: countCut(order, pairs, tokenizer.maxTokens),
    };
  }
}

function inlineOf({ input }: JobOrder): QueryTexts | undefined {
  if (input.form !== 'inline') return undefined;
  invariant('query' in input, 'a queue of a reranker has jobs that rerank');
  return input;
}
