// Between a checked request and the SDK: asks the queue for vectors, as long as patience.ts lets it, and says which
// input was at fault. Knows no HTTP.

import { randomUUID } from 'node:crypto';
import { isShoalError, promptText, type Prompts } from '@shoal/contract';
import { loopTurn } from '@shoal/core/base';
import type { Encoded, Tokenizer } from '@shoal/core';
import { firstRowOf, type EmbedResult, type ShoalClient } from '@shoal/client';
import type { Decoder } from '@shoal/models';
import type { EmbeddingsRequest } from './embeddings-request.ts';
import type { Usage } from './embeddings-response.ts';
import type { Answering } from './gate.ts';
import { withPatience } from './patience.ts';
import type { RefusedWrites } from './refused-writes.ts';
import { idTokenizer, toTokenTexts, tooLong } from './token-rows.ts';

/** In characters; shorter ones are tokenized in less than a millisecond. */
const LONG_TEXT = 16_384;
const TEXTS_A_TURN = 32;

export interface EmbedderParts {
  readonly tokenizer: Tokenizer;
  readonly prompts: Prompts;
  /** Reads what turns ids into text. */
  readonly openDecoder: () => Promise<Decoder>;
  /** A client that tokenizes with this. */
  readonly connect: (tokenizer: Tokenizer) => Promise<ShoalClient>;
  /** How many jobs wait and how many workers there are, as words for a person; undefined when that is not known. */
  readonly backlog: () => Promise<string | undefined>;
  readonly refusedWrites: RefusedWrites;
}

export class Embedder {
  private readonly parts: EmbedderParts;
  /** Embeds texts; other questions about texts go by it as well. */
  readonly textClient: ShoalClient;
  /** For token ids; most servers never need it. */
  private idClient: Promise<ShoalClient> | undefined;
  /** Most servers are never asked for it. */
  private decoder: Promise<Decoder> | undefined;

  private constructor(parts: EmbedderParts, textClient: ShoalClient) {
    this.parts = parts;
    this.textClient = textClient;
  }

  /** Throws QUEUE_UNREACHABLE. */
  static async connect(parts: EmbedderParts): Promise<Embedder> {
    return new Embedder(parts, await parts.connect(parts.tokenizer));
  }

  /** Vectors, the number of real tokens, and how many inputs were cut. Throws Problem and ShoalError. */
  async embed(
    { input, dimensions, truncate, prompt, normalize }: EmbeddingsRequest,
    { gone, leftMs, tenant, trace }: Answering,
  ): Promise<Usage & { readonly result: EmbedResult }> {
    return withPatience({ ...this.parts, timeoutMs: leftMs(), what: 'no vectors' }, gone, async (signal) => {
      const { texts, cut } = textsOf(input, this.parts.tokenizer, truncate);
      const client = input.kind === 'texts' ? this.textClient : await this.clientForIds();
      const result = await client
        .embed(texts, {
          jobId: randomUUID().replaceAll('-', ''), // several jobs of one request end in "-<first row>"
          class: 'interactive',
          tenant,
          truncate,
          signal,
          ...(trace !== undefined && { trace }),
          ...(prompt === undefined ? {} : { prompt }),
          output: { ...(dimensions !== undefined && { dimensions }), ...(normalize && { normalize }) },
        })
        .catch((error: unknown) => Promise.reject(this.withInput(error)));
      const tokens = (result.tokens ?? []).reduce((sum, count) => sum + count, 0);
      return { result, tokens, truncated: cut + Number(Array.isArray(result.truncated) && result.truncated.length) };
    });
  }

  /** The ids of each text as the model takes them, end tokens included; a prompt goes before, as for `embed`. */
  async tokens(
    texts: readonly string[],
    prompt: string | undefined,
    { tenant }: Pick<Answering, 'tenant'>,
  ): Promise<readonly Encoded[]> {
    const { tokenizer, prompts } = this.parts;
    const before = promptText(prompts, prompt) ?? '';
    const encoded: Encoded[] = [];
    for (const [at, text] of texts.entries()) {
      if (at % TEXTS_A_TURN === TEXTS_A_TURN - 1) await loopTurn(tenant);
      encoded.push(await inTurns(tokenizer, before + text, tenant));
    }
    return encoded;
  }

  /** What each row of ids stands for. Rejects with MODEL_CORRUPT where the model's files do not say how that is told. */
  async texts(rows: readonly (readonly number[])[], skipsSpecial: boolean): Promise<readonly string[]> {
    this.decoder ??= this.parts.openDecoder().catch((error: unknown) => {
      this.decoder = undefined;
      throw error;
    });
    const decoder = await this.decoder;
    const texts: string[] = [];
    for (const [at, row] of rows.entries()) {
      if (at % TEXTS_A_TURN === TEXTS_A_TURN - 1) await loopTurn();
      texts.push(decoder.decode(row, skipsSpecial));
    }
    return texts;
  }

  /** Requests that are open end with INTERRUPTED. Safe to call twice. */
  async close(): Promise<void> {
    await Promise.all([
      this.textClient.close(),
      this.idClient?.then(
        (client) => client.close(),
        () => undefined,
      ),
    ]);
  }

  private clientForIds(): Promise<ShoalClient> {
    this.idClient ??= this.parts.connect(idTokenizer(this.parts.tokenizer)).catch((error: unknown) => {
      this.idClient = undefined; // the next request may find the server back
      throw error;
    });
    return this.idClient;
  }

  /** The client counts rows by job; a caller counts inputs. */
  private withInput(error: unknown): unknown {
    if (!isShoalError(error, 'INPUT_TOO_LONG')) return error;
    const { jobId, row } = error.fields;
    if (typeof jobId !== 'string' || typeof row !== 'number') return error;
    return tooLong(firstRowOf(jobId) + row, undefined, this.parts.tokenizer.maxTokens);
  }
}

/** A long text holds nobody up. */
async function inTurns(tokenizer: Tokenizer, text: string, tenant: string): Promise<Encoded> {
  if (text.length < LONG_TEXT || tokenizer.encodeSteps === undefined) return tokenizer.encode(text);
  const steps = tokenizer.encodeSteps(text);
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
    await loopTurn(tenant);
  }
}

function textsOf(
  input: EmbeddingsRequest['input'],
  tokenizer: Tokenizer,
  truncate: 'end' | 'error',
): { readonly texts: readonly string[]; readonly cut: number } {
  return input.kind === 'texts' ? { texts: input.texts, cut: 0 } : toTokenTexts(input.rows, tokenizer, truncate);
}
