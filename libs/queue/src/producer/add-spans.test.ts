import { expect, test } from 'vitest';
import { RecordingTracer } from '@shoal/core/testing';
import { addSpans } from './add-spans.ts';
import type { NewJob } from './new-job.ts';

const SEEN = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
const UNSEEN = '00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00';

function job(jobId: string, traceparent?: string): NewJob {
  const trace = { requestId: 'r', ...(traceparent !== undefined && { traceparent }) };
  return { jobId, data: { v: 2, texts: ['planted'], trace } };
}

test('a followed job carries the context of its own span; the others go as they are', () => {
  const tracer = new RecordingTracer();
  const given = [job('a', SEEN), job('b', UNSEEN), job('c')];
  const { jobs, end } = addSpans(tracer, 'embed-x', given);
  expect(jobs.slice(1)).toEqual(given.slice(1));
  expect(jobs[0]!.data.trace).toEqual({ requestId: 'r', ...tracer.spans[0]!.span.context });
  expect(given[0]!.data.trace?.traceparent).toBe(SEEN);
  end(jobs.map(({ jobId }) => ({ jobId, outcome: 'added' })));
  expect(tracer.spans).toMatchObject([
    { name: 'send embed-x', options: { kind: 'producer' }, ending: { facts: { 'shoal.outcome': 'added' } } },
  ]);
  expect(JSON.stringify(tracer.spans)).not.toContain('planted');
});

test('what could not be added ends its span all the same', () => {
  const tracer = new RecordingTracer();
  addSpans(tracer, 'embed-x', [job('a', SEEN)]).end(undefined);
  expect(tracer.spans[0]!.ending?.failed).toBe('QUEUE_UNREACHABLE');
});
