// Spans of a worker: one for each job, from its claim to its ending, a child of whoever made the job; and one for each
// micro-batch, of no trace in particular, with links to the jobs in it and from them. A micro-batch is told of where one
// of its jobs is. Everything is heard by the claimer: what happens at the device comes with the messages that it has
// anyway.

import { readableTrace, type Trace } from '@shoal/contract';
import type { RawClaim } from '../ports/queue.ts';
import { noSpan, noTracer, type Span, type SpanFacts, type Tracer } from '../ports/tracer.ts';
import type { Metrics, SettledJob } from '../ports/metrics.ts';
import type { FromExecutor } from '../protocol.ts';
import type { QueuedJob } from './queued-job.ts';

/** Who makes spans, and what each of them is told. */
export interface Traced {
  readonly tracer: Tracer;
  readonly queue: string;
  readonly workerName: string;
}

export const UNTRACED: Traced = { tracer: noTracer, queue: '', workerName: '' };

/** OpenTelemetry's conventions of messaging (v1.4x, 2026), as far as a queue of jobs has them. */
const MESSAGING = { 'messaging.system': 'bullmq', 'messaging.operation.type': 'process' };

type Message<Kind extends FromExecutor['kind']> = Extract<FromExecutor, { kind: Kind }>;

export class JobSpans {
  private readonly traced: Traced;
  private readonly common: SpanFacts;
  private device: string | undefined;
  /** Spans that are seen, of jobs that are claimed, by id. */
  private readonly jobs = new Map<string, Span>();
  /** What is at the device, by number: since when, and spans of its jobs. */
  private readonly runs = new Map<number, { readonly sinceMs: number; readonly jobs: readonly Span[] }>();
  private readonly nowMs: () => number;

  constructor(traced: Traced, nowMs: () => number) {
    const { queue, workerName } = traced;
    this.traced = traced;
    this.nowMs = nowMs;
    this.common = { 'messaging.destination.name': queue, 'shoal.worker': workerName };
  }

  /** On what it runs. */
  readyAt(device: string): void {
    this.device = device;
  }

  /** A job was claimed; `job`: undefined where it has its ending without running. */
  claimed(claim: RawClaim, job: QueuedJob | undefined): Span {
    const { tracer, queue } = this.traced;
    if (!tracer.isOn) return noSpan;
    const trace = job?.trace ?? traceIn(claim.data);
    const span = tracer.start(`process ${queue}`, {
      kind: 'consumer',
      parent: trace,
      facts: {
        ...MESSAGING,
        ...this.common,
        'messaging.operation.name': 'process',
        'messaging.message.id': claim.jobId,
        'shoal.request_id': trace?.requestId,
        'shoal.lane': claim.lane ?? 'main',
        'shoal.queued_ms': Math.round(claim.queuedMs),
        'shoal.stalls': claim.stalls === 0 ? undefined : claim.stalls,
        ...(job !== undefined && { 'shoal.rows': job.rows, 'shoal.class': job.class }),
      },
    });
    if (span.isSampled && job !== undefined) this.jobs.set(claim.jobId, span);
    return span;
  }

  /** The job of this span is held no more: its ending is on its way. */
  left(jobId: string, span: Span): void {
    if (this.jobs.get(jobId) === span) this.jobs.delete(jobId);
  }

  hear(message: FromExecutor): void {
    if (this.jobs.size === 0 && this.runs.size === 0) return;
    switch (message.kind) {
      case 'began':
        return this.began(message);
      case 'ran':
        return this.ran(message);
      case 'split':
      case 'refused':
        for (const job of this.runs.get(message.batch)?.jobs ?? []) job.event(message.kind, { code: message.code });
        return this.end(message.batch, {}, message.code);
      default:
        return;
    }
  }

  /** For the keeper of executors, whose deaths are told as what becomes of what was at the device. */
  tap(metrics: Metrics): Metrics {
    if (!this.traced.tracer.isOn) return metrics;
    return {
      ...metrics,
      executorLost: (reason, words) => {
        metrics.executorLost(reason, words);
        for (const batch of this.runs.keys()) this.end(batch, { 'shoal.reason': reason }, 'EXECUTOR_LOST');
        for (const job of this.jobs.values()) job.event('executor lost', { reason });
      },
    };
  }

  private began({ batch, jobIds }: Message<'began'>): void {
    const jobs = jobIds.flatMap((jobId) => this.jobs.get(jobId) ?? []);
    if (jobs.length > 0) this.runs.set(batch, { sinceMs: this.nowMs(), jobs });
  }

  private ran({ batch, rows, width, tokens, runMs, duplicates }: Message<'ran'>): void {
    this.end(batch, {
      'shoal.rows': rows,
      'shoal.width': width,
      'shoal.shape': `${rows}x${width}`,
      'shoal.tokens': tokens,
      'shoal.padded_tokens': rows * width,
      'shoal.duplicates': duplicates,
      'shoal.run_ms': runMs,
    });
  }

  private end(batch: number, facts: SpanFacts, failed?: string): void {
    const run = this.runs.get(batch);
    if (run === undefined) return;
    this.runs.delete(batch);
    const { tracer, queue } = this.traced;
    const span = tracer.start(`run ${queue}`, {
      kind: 'internal',
      links: run.jobs,
      agoMs: this.nowMs() - run.sinceMs,
      facts: {
        ...this.common,
        'messaging.system': MESSAGING['messaging.system'],
        'messaging.batch.message_count': run.jobs.length,
        'shoal.device': this.device,
        'shoal.batch': batch,
      },
    });
    for (const job of run.jobs) job.link(span);
    span.end(facts, failed);
  }
}

/** How a claim ended, for its span. */
export function endSpan(span: Span, { outcome, code }: SettledJob): void {
  if (!span.isSampled) return;
  if (outcome === 'return' || outcome === 'hand-over') span.event(outcome);
  span.end({ 'shoal.outcome': outcome, 'shoal.code': code }, code === 'CANCELLED' ? undefined : code);
}

/** Of a job that could not be read; whoever makes a span of it looks at it again. */
function traceIn(data: unknown): Trace | undefined {
  const trace: unknown = typeof data === 'object' && data !== null ? Reflect.get(data, 'trace') : undefined;
  return typeof trace === 'object' && trace !== null
    ? readableTrace({ requestId: undefined, traceparent: undefined, tracestate: undefined, ...trace })
    : undefined;
}
