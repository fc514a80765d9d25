// What this process did at queue servers since it started, over all its connections and producers: for its metrics,
// which are of a process as well. Counted where it happens, read at a scrape.

/** Why there was no room for jobs; `memory`: the server is almost full, whatever fills it. */
export type RefusalReason = 'rows' | 'bytes' | 'tenant' | 'line' | 'memory';

/**
 * What became of a body for a payload server: it is there, it went by the queue server because none took it, or it was
 * lost there before it was read (a result, or in an executor an input), or was another by then.
 */
export type PayloadOutcome = 'put' | 'by_queue_server' | 'lost' | 'damaged';

type JobClass = 'interactive' | 'bulk';

export interface ProcessCounts {
  /** Connections that were lost and are there again. */
  readonly reconnects: number;
  /** Jobs that were put on queues. */
  readonly added: Readonly<Record<JobClass, number>>;
  readonly refused: Readonly<Record<RefusalReason, number>>;
  readonly payloads: Readonly<Record<PayloadOutcome, number>>;
}

const counts = {
  reconnects: 0,
  added: { interactive: 0, bulk: 0 },
  refused: { rows: 0, bytes: 0, tenant: 0, line: 0, memory: 0 },
  payloads: { put: 0, by_queue_server: 0, lost: 0, damaged: 0 },
};

export function processCounts(): ProcessCounts {
  return counts;
}

export function countReconnect(): void {
  counts.reconnects++;
}

export function countAdded(kind: JobClass): void {
  counts.added[kind]++;
}

export function countRefused(reason: RefusalReason): void {
  counts.refused[reason]++;
}

export function countPayload(outcome: PayloadOutcome): void {
  counts.payloads[outcome]++;
}
