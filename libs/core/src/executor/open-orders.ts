// The orders that an executor has and has not answered, whatever they ask for: *wanted* while their input is read, then
// *open* as a job, until their outcome is sent or they are dropped. Keeps the book; runs nothing.

import type { JobOutcome, OrderTerms } from '../protocol.ts';

export interface OrderedJob<Order extends OrderTerms> {
  readonly order: Order;
  /** The deadline by the executor's clock; infinite for a job without one. */
  readonly deadlineMs: number;
  isDropped: boolean;
}

/** A line of a log names so many requests at most. */
const MOST_NAMED = 16;

/** The requests that jobs are parts of, for a log line about all of them; no field where none is known. */
export function requestsOf(jobs: Iterable<Pick<OrderedJob<OrderTerms>, 'order'>>): {
  readonly requestIds?: readonly string[];
} {
  const ids = new Set([...jobs].flatMap(({ order }) => order.requestId ?? []));
  return ids.size === 0 ? {} : { requestIds: [...ids].slice(0, MOST_NAMED) };
}

export class OpenOrders<Order extends OrderTerms, Job extends OrderedJob<Order>> {
  private readonly report: (outcomes: readonly JobOutcome[]) => void;
  private readonly wanted = new Map<string, Order>();
  private readonly jobs = new Map<string, Job>();
  private readonly withDeadline = new Set<Job>();

  constructor(report: (outcomes: readonly JobOutcome[]) => void) {
    this.report = report;
  }

  get size(): number {
    return this.jobs.size;
  }

  find(jobId: string): Job | undefined {
    return this.jobs.get(jobId);
  }

  all(): Job[] {
    return [...this.jobs.values()];
  }

  /** Whether this very claim is here already: a claimer that is not sure whether an order arrived sends it again. */
  has({ jobId, token }: Order): boolean {
    return (this.wanted.get(jobId) ?? this.jobs.get(jobId)?.order)?.token === token;
  }

  want(orders: readonly Order[]): void {
    for (const order of orders) this.wanted.set(order.jobId, order);
  }

  /** True once for an order that nobody has dropped while its input was read. */
  arrived(order: Order): boolean {
    return this.wanted.get(order.jobId) === order && this.wanted.delete(order.jobId);
  }

  open(job: Job): void {
    this.jobs.set(job.order.jobId, job);
    if (job.deadlineMs < Number.POSITIVE_INFINITY) this.withDeadline.add(job);
  }

  /** The open jobs whose deadline has passed. */
  late(nowMs: number): Job[] {
    return [...this.withDeadline].filter((job) => job.deadlineMs <= nowMs);
  }

  /** Drops jobs: nothing is said of them any more. Returns those that were open. */
  drop(jobIds: readonly string[]): Job[] {
    return jobIds.flatMap((jobId) => {
      this.wanted.delete(jobId);
      const job = this.jobs.get(jobId);
      if (job === undefined) return [];
      job.isDropped = true;
      this.forget(job);
      return [job];
    });
  }

  /** Takes a job out of the book, because its outcome is on its way. */
  forget(job: Job): void {
    this.withDeadline.delete(job);
    if (this.jobs.get(job.order.jobId) === job) this.jobs.delete(job.order.jobId);
  }

  /** Ends jobs without a result. Returns those that were still open. */
  end(jobs: readonly Job[], outcomeOf: (order: Order) => JobOutcome): Job[] {
    const open = jobs.filter((job) => !job.isDropped);
    this.drop(open.map(({ order }) => order.jobId));
    if (open.length > 0) this.report(open.map(({ order }) => outcomeOf(order)));
    return open;
  }
}
