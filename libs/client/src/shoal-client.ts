// The SDK's face. (The waiting behind it follows in the next commits; the types hold.)

import type { ClientCounts, ClientOptions, EmbedOptions, EmbedResult, StreamBlock, StreamOptions } from './embedding.ts';

export class ShoalClient {
  /** Connects and checks that the server answers. Throws QUEUE_UNREACHABLE or CONFIG_INVALID. */
  static async connect(options: ClientOptions): Promise<ShoalClient> {
    throw new Error(`not built yet (${options.model.name})`);
  }

  /** Vectors of `texts`, in order. */
  async embed(texts: readonly string[], options: EmbedOptions = {}): Promise<EmbedResult> {
    throw new Error(`not built yet (${texts.length} ${options.jobId ?? ''})`);
  }

  /** Vectors of a stream of any length, in input order, with bounded memory. Extra fields of an item come back in `items`. */
  async *embedStream<Item extends { readonly text: string }>(
    texts: AsyncIterable<Item> | Iterable<Item>,
    options: StreamOptions = {},
  ): AsyncGenerator<StreamBlock<Item>, void, undefined> {
    yield* [];
    throw new Error(`not built yet (${typeof texts} ${options.runId ?? ''})`);
  }

  counts(): ClientCounts {
    throw new Error('not built yet');
  }

  /** Gives up whatever is open and closes the connections. Safe to call twice. */
  async close(): Promise<void> {}
}
