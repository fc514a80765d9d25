// The models that this server gives vectors of, each with its own queue, and the names that they are called by: the
// store's name, name@revision, ORG/NAME of the hub, and aliases. The first is the one for requests that name none.

import { ShoalError, storedName } from '@shoal/contract';
import type { ShoalClient } from '@shoal/client';
import type { QueueService } from '@shoal/queue';
import { shownModel } from './body-fields.ts';
import type { Embedder } from './embedder.ts';
import { isModel, namesOf, type ServedModel } from './embeddings-request.ts';
import { invalid, type Problem } from './problem.ts';

export interface Served {
  readonly model: ServedModel & { readonly maxTokens: number };
  readonly embedder: Pick<Embedder, 'embed' | 'tokens' | 'texts'> & {
    readonly textClient: Pick<ShoalClient, 'topK' | 'rescore' | 'cosine' | 'spread'>;
  };
  /** Undefined, or resolved so: not known. Never rejects. */
  readonly service?: (() => Promise<QueueService | undefined>) | undefined;
}

export class Catalogue {
  readonly all: readonly Served[];
  readonly first: Served;

  /** Throws CONFIG_INVALID where two models are called alike. */
  constructor(all: readonly [Served, ...Served[]]) {
    this.all = all;
    this.first = all[0];
    const seen = new Map<string, string>();
    for (const { model } of all)
      for (const name of [model.name, ...(model.aliases ?? [])]) {
        const other = seen.get(storedName(name));
        if (other !== undefined)
          throw new ShoalError(
            'CONFIG_INVALID',
            `two models are called "${name}": ${other} and ${model.name}; give each name to one (setting serve)`,
            { name },
          );
        seen.set(storedName(name), model.name);
      }
  }

  /** Undefined where there is none of this name. */
  find(asked: string): Served | undefined {
    return this.all.find(({ model }) => isModel(asked, model));
  }

  /** Throws a Problem (404) that names those that there are; undefined asks for the first. */
  named(asked: string | undefined): Served {
    const found = asked === undefined ? this.first : this.find(asked);
    if (found === undefined) throw this.unknown(asked ?? '');
    return found;
  }

  /**
   * Of a request's body, whatever it is: where it names no model in a way that can be understood, the first, whose own
   * checks then say what is wrong with the body.
   */
  ofBody(body: unknown): Served {
    const asked: unknown = typeof body === 'object' && body !== null ? Reflect.get(body, 'model') : undefined;
    if (typeof asked !== 'string') return this.first;
    return this.find(asked) ?? (this.all.length === 1 ? this.first : this.named(asked));
  }

  private unknown(asked: string): Problem {
    const there = this.all.map(({ model }) => namesOf(model)).join(', ');
    return invalid(
      'model_not_found',
      'model',
      `there is no model ${shownModel(asked)} here; this server has ${there}`,
      404,
    );
  }
}
