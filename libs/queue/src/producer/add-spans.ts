// Spans of jobs that are put on a queue: one each for those whose trace is followed, as OpenTelemetry's conventions of
// messaging have it. The job then carries that span's context, so that whoever runs it goes on from there. A trace is
// part of no fingerprint, and jobs that carry none get none.

import type { Span, Tracer } from '@shoal/core';
import type { AddResult, NewJob } from './new-job.ts';

export interface AddSpans {
  /** As they are to be added, in order. */
  readonly jobs: readonly NewJob[];
  /** Ends the spans: with what became of each job, or with what went wrong. */
  end(results: readonly AddResult[] | undefined): void;
}

export function addSpans(tracer: Tracer, queue: string, jobs: readonly NewJob[]): AddSpans {
  const spans = new Map<number, Span>();
  const traced = jobs.map((job, at) => {
    const { trace } = job.data;
    if (trace?.traceparent === undefined) return job;
    const span = tracer.start(`send ${queue}`, {
      kind: 'producer',
      parent: trace,
      facts: {
        'messaging.system': 'bullmq',
        'messaging.destination.name': queue,
        'messaging.operation.type': 'send',
        'messaging.operation.name': 'send',
        'messaging.message.id': job.jobId,
        'shoal.request_id': trace.requestId,
        'shoal.input_bytes': job.input?.length,
      },
    });
    if (!span.isSampled) return job;
    spans.set(at, span);
    return withTrace(job, { ...trace, ...span.context });
  });
  return {
    jobs: spans.size === 0 ? jobs : traced,
    end: (results) => {
      for (const [at, span] of spans) {
        const result = results?.[at];
        if (result === undefined) span.end({}, 'QUEUE_UNREACHABLE');
        else span.end({ 'shoal.outcome': result.outcome }, 'error' in result ? result.error.code : undefined);
      }
    },
  };
}

function withTrace(job: NewJob, trace: NonNullable<NewJob['data']['trace']>): NewJob {
  return { ...job, data: { ...job.data, trace } };
}
