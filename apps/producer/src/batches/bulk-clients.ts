// Clients of the queue for batches and jobs, each opened when it is first needed: one for the texts of a model, one for
// token ids, which few ever send.

import type { Tokenizer } from '@shoal/core';
import type { ClientModel, ShoalClient } from '@shoal/client';
import { idTokenizer } from '../token-rows.ts';

/** A model, and what its texts are tokenized with. */
export interface BulkModel {
  readonly model: ClientModel;
  readonly tokenizer: Tokenizer;
}

type Connect = (model: ClientModel, tokenizer: Tokenizer) => Promise<ShoalClient>;

export class BulkClients {
  private readonly models: readonly BulkModel[];
  private readonly connect: Connect;
  private readonly opened = new Map<string, Promise<ShoalClient>>();

  constructor(models: readonly BulkModel[], connect: Connect) {
    this.models = models;
    this.connect = connect;
  }

  /** Of a model by its name in the store, or of the first. */
  tokenizerOf(name?: string): Tokenizer {
    return this.modelNamed(name).tokenizer;
  }

  /** Rejects with QUEUE_UNREACHABLE; asked again, it is tried again. */
  clientOf(kind: 'texts' | 'tokens', name?: string): Promise<ShoalClient> {
    const { model, tokenizer } = this.modelNamed(name);
    const key = `${kind} ${model.name}`;
    const known = this.opened.get(key);
    if (known !== undefined) return known;
    const opening = this.connect(model, kind === 'texts' ? tokenizer : idTokenizer(tokenizer));
    this.opened.set(key, opening);
    opening.catch(() => this.opened.delete(key));
    return opening;
  }

  async close(): Promise<void> {
    const clients = await Promise.all([...this.opened.values()].map((one) => one.catch(() => undefined)));
    await Promise.all(clients.map((client) => client?.close()));
  }

  private modelNamed(name: string | undefined): BulkModel {
    const found = name === undefined ? this.models[0] : this.models.find(({ model }) => model.name === name);
    if (found === undefined) throw new Error(`there is no model ${name}`);
    return found;
  }
}
