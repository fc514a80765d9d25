// Between a checked request and the SDK: which rerankers there are, and scores by one of them. Rerankers come and go with
// their workers, so they are looked for on the queue server and nothing is configured. Knows no HTTP.

import { randomUUID } from 'node:crypto';
import { setTimeout as after } from 'node:timers/promises';
import { ShoalError, isShoalError, storedName } from '@shoal/contract';
import type { Clock } from '@shoal/core';
import { firstRowOf, type RerankResult, type ShoalClient } from '@shoal/client';
import { shownModel } from './body-fields.ts';
import type { Answering } from './gate.ts';
import { withPatience } from './patience.ts';
import { invalid, type Problem } from './problem.ts';
import type { RefusedWrites } from './refused-writes.ts';
import type { RerankRequest } from './rerank-request.ts';

export interface RerankerParts {
  readonly client: Pick<ShoalClient, 'rerank' | 'whyWaiting'>;
  /** name@revision of every reranker that a live worker serves. Rejects with QUEUE_UNREACHABLE. */
  readonly served: () => Promise<readonly string[]>;
  /** Whether this server embeds with a model of this name, for whoever asks that one for scores. */
  readonly isEmbedder: (asked: string) => boolean;
  readonly refusedWrites: Pick<RefusedWrites, 'whileWaiting'>;
  readonly clock: Pick<Clock, 'nowMs'>;
}

export interface ServedReranker {
  readonly name: string;
  readonly revision: string;
}

/** The queue server is not looked through for each request. */
const KNOWN_MS = 2_000;
/** Nobody waits longer for a server that hangs. */
const LOOK_MS = 2_000;

export class Reranker {
  private readonly parts: RerankerParts;
  /** By name, as they were last told of: one whose workers start anew keeps its requests waiting. */
  private readonly known = new Map<string, string>();
  private looking: Promise<void> | undefined;
  private lookedMs = Number.NEGATIVE_INFINITY;
  private now: readonly ServedReranker[] = [];

  constructor(parts: RerankerParts) {
    this.parts = parts;
  }

  /** Those that are served, as of two seconds ago at most. Rejects with QUEUE_UNREACHABLE. */
  async served(): Promise<readonly ServedReranker[]> {
    if (this.parts.clock.nowMs() - this.lookedMs >= KNOWN_MS)
      await (this.looking ??= this.look().finally(() => (this.looking = undefined)));
    return this.now;
  }

  /** Throws a Problem where there is no such reranker, which names those that there are; QUEUE_UNREACHABLE. */
  async named(asked: string | undefined): Promise<ServedReranker> {
    const [name, revision] = storedName(asked ?? '').split('@', 2) as [string, string?];
    const served = this.served();
    if (this.known.has(name)) await served.catch(() => undefined); // it is waited for as it was known
    else await served;
    const [only, ...others] = this.now;
    if (asked === undefined && only !== undefined && others.length === 0) return only;
    const found = this.known.get(name);
    if (found === undefined || (revision !== undefined && revision !== found)) throw this.unknown(asked);
    return { name, revision: found };
  }

  /**
   * Workers that changed to another revision since they were looked at are asked once more, as they are now. Throws
   * Problem and ShoalError.
   */
  async rerank(request: RerankRequest, model: ServedReranker, answering: Answering): Promise<RerankResult> {
    try {
      return await this.ask(request, model, answering);
    } catch (error) {
      if (!isShoalError(error, 'FINGERPRINT_MISMATCH')) throw error;
      return this.ask(request, await this.revisionNow(request.model, model, error), answering);
    }
  }

  private async ask(
    { query, documents, topN, truncate }: RerankRequest,
    { name, revision }: ServedReranker,
    { gone, leftMs, tenant, trace }: Answering,
  ): Promise<RerankResult> {
    const { client, refusedWrites } = this.parts;
    const backlog = async (): Promise<string | undefined> =>
      client.whyWaiting({ reranker: name }).then(
        ({ message }) => message,
        () => undefined,
      );
    return withPatience({ refusedWrites, backlog, timeoutMs: leftMs(), what: 'no scores' }, gone, (signal) =>
      client
        .rerank({
          model: { name, revision },
          query,
          documents,
          truncate,
          ...(topN !== undefined && { topN }),
          jobId: randomUUID().replaceAll('-', ''), // several jobs of one request end in "-<first document>"
          class: 'interactive',
          tenant,
          signal,
          ...(trace !== undefined && { trace }),
        })
        .catch((error: unknown) => Promise.reject(withPlace(error))),
    );
  }

  /** The other revision that is served by now. Throws `error` without one, and a Problem to who asked for the old one. */
  private async revisionNow(
    asked: string | undefined,
    old: ServedReranker,
    error: ShoalError,
  ): Promise<ServedReranker> {
    await this.looking?.catch(() => undefined); // it may have begun before the change
    this.lookedMs = Number.NEGATIVE_INFINITY;
    const revisions = (await this.served()).filter(({ name }) => name === old.name);
    const other = revisions.find(({ revision }) => revision !== old.revision);
    if (other === undefined) throw error;
    if (asked?.includes('@') !== true) return other;
    throw revisions.length > 1 ? error : this.unknown(asked);
  }

  private async look(): Promise<void> {
    const late = new AbortController();
    const silence = after(LOOK_MS, undefined, { signal: late.signal, ref: false }).then(() => {
      throw new ShoalError('QUEUE_UNREACHABLE', `the queue server has not answered for ${LOOK_MS / 1_000} s`);
    });
    silence.catch(() => undefined); // the answer came first
    const models = await Promise.race([this.parts.served(), silence]).finally(() => late.abort());
    this.lookedMs = this.parts.clock.nowMs();
    this.now = models.map((model) => {
      const [name, revision] = model.split('@', 2) as [string, string];
      this.known.set(name, revision);
      return { name, revision };
    });
  }

  private unknown(asked: string | undefined): Problem {
    const there =
      this.now.length === 0
        ? 'no worker serves a reranker (shoal worker --model ORG/NAME starts one)'
        : `rerankers that are served: ${this.now.map(({ name, revision }) => `"${name}" (also as "${name}@${revision}")`).join(', ')}`;
    if (asked === undefined)
      return invalid('missing_required_parameter', 'model', `"model" is missing, and needed to choose: ${there}`);
    return invalid(
      'model_not_found',
      'model',
      this.parts.isEmbedder(asked)
        ? `${shownModel(asked)} gives vectors and no scores; ${there}`
        : `there is no reranker ${shownModel(asked)} here; ${there}`,
      404,
    );
  }
}

/** The client counts pairs by job; a caller counts documents. */
export function withPlace(error: unknown): unknown {
  if (!isShoalError(error, 'INPUT_TOO_LONG')) return error;
  const row = /\brow (\d+)/.exec(error.message)?.[1];
  const first = firstRowOf(String(error.fields['jobId']));
  const place = row === undefined ? 'documents' : `documents[${first + Number(row)}]`;
  return invalid(
    'context_length_exceeded',
    place,
    `the query and ${place} together have more tokens than the model takes; shorten them, or send "truncate": "end" ` +
      'to have the longer one cut',
  );
}
