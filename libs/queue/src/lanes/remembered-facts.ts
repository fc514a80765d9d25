// What other workers tell of themselves, for who looks at a fleet every second: of a worker that is new at once, of those
// that are known again every five seconds or so. Facts are half a kilobyte, and each worker that looks reads those of all:
// asked for with every look, those of forty workers were 0.8 MB a second.
//
// Why: docs/decisions/claiming-and-order.md#facts-of-others-are-remembered

import { keySpace } from '@shoal/contract';
import type { WorkerFacts } from '@shoal/core';
import type { Redis } from '../redis/connection.ts';

export interface RememberedFactsOptions {
  readonly connection: Redis;
  readonly prefix: string;
  readonly queue: string;
  /** For tests. */
  readonly nowMs?: () => number;
}

/** Jitter keeps workers that started together from asking together. */
const AGAIN_MS = { least: 4_000, spread: 2_000 } as const;

export class RememberedFacts {
  private readonly options: RememberedFactsOptions;
  private known = new Map<string, WorkerFacts | undefined>();
  private againMs = 0;

  constructor(options: RememberedFactsOptions) {
    this.options = options;
  }

  /** Of these workers of the lane, by id. */
  async of(workerIds: readonly string[]): Promise<ReadonlyMap<string, WorkerFacts | undefined>> {
    const { connection, prefix, queue } = this.options;
    const nowMs = (this.options.nowMs ?? performance.now.bind(performance))();
    const isDue = nowMs >= this.againMs;
    if (isDue) this.againMs = nowMs + AGAIN_MS.least + Math.random() * AGAIN_MS.spread;
    const asked = isDue ? workerIds : workerIds.filter((workerId) => !this.known.has(workerId));
    const told = asked.length === 0 ? [] : await connection.hmget(keySpace(prefix).facts(queue), ...asked);
    const news = new Map(asked.map((workerId, at) => [workerId, parseFacts(told[at] ?? undefined)]));
    this.known = new Map(workerIds.map((workerId) => [workerId, news.get(workerId) ?? this.known.get(workerId)]));
    return this.known;
  }
}

/** Written by a worker of this or another version. */
export function parseFacts(text: string | undefined): WorkerFacts | undefined {
  try {
    const facts: unknown = JSON.parse(text ?? 'null');
    if (typeof facts !== 'object' || facts === null) return undefined;
    const { rates, mix, lanes, device } = facts as Record<string, unknown>;
    const isWhole =
      typeof rates === 'object' &&
      rates !== null &&
      typeof mix === 'object' &&
      mix !== null &&
      Array.isArray(lanes) &&
      typeof device === 'string';
    return isWhole ? (facts as WorkerFacts) : undefined;
  } catch {
    return undefined;
  }
}
