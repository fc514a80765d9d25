// Which request a job belongs to: what is taken, what is refused, and what is left out of what others have sent.

import { describe, expect, test } from 'vitest';
import { parseJob } from './embed-job.ts';
import { parseRerankJob } from './rerank-job.ts';
import { parseSimilarityJob } from './similarity-job.ts';
import { readableTrace, requestIdIn } from './trace.ts';

const TRACEPARENT = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
const TRACE = { requestId: 'req_7:a/b', traceparent: TRACEPARENT, tracestate: 'vendor=1,other=x' };
const VECTORS = { vectors: Buffer.from(Float32Array.of(1, 0).buffer).toString('base64'), dims: 2 };

describe('in a job', () => {
  test('of every kind it is kept as it came, with version 2', () => {
    expect(parseJob('a', 'embed', { v: 2, texts: ['one'], trace: TRACE }).trace).toEqual(TRACE);
    expect(parseRerankJob('a', 'rerank', { v: 2, query: 'q', texts: ['one'], trace: TRACE }).trace).toEqual(TRACE);
    const topk = { v: 2, collection: 'docs', k: 1, queries: VECTORS, trace: { requestId: 'r' } };
    expect(parseSimilarityJob('a', 'topk', topk).trace).toEqual({ requestId: 'r' });
    expect(parseJob('a', 'embed', { v: 2, texts: ['one'], trace: {} }).trace).toEqual({});
  });

  test.each([
    [{ v: 1, trace: TRACE }, 'unknown field "trace" ("trace": it needs "v": 2)'],
    [{ v: 2, requestId: 'r' }, '"requestId": it belongs into "trace"'],
    [{ v: 2, trace: { requestId: 'a b' } }, 'trace.requestId: must be 1 to 128 of'],
    [{ v: 2, trace: { traceparent: TRACEPARENT.replace('00-', 'ff-') } }, 'trace.traceparent: must be version'],
    [{ v: 2, trace: { traceparent: TRACEPARENT.replace(/-4.*36-/, `-${'0'.repeat(32)}-`) } }, 'trace.traceparent'],
    [{ v: 2, trace: { tracestate: 'x'.repeat(513) } }, 'trace.tracestate: must be 1 to 512'],
    [{ v: 2, trace: { spanId: 'x' } }, 'unknown field "spanId" in trace'],
  ])('what cannot be is refused by its name: %j', (data, words) => {
    expect(() => parseJob('a', 'embed', { texts: ['one'], ...data })).toThrow(words);
  });
});

test('of what others have sent, what cannot be read is left out', () => {
  expect(readableTrace(TRACE)).toEqual(TRACE);
  expect(readableTrace({ ...TRACE, traceparent: 'nonsense' })).toEqual({ requestId: TRACE.requestId });
  expect(readableTrace({ ...TRACE, requestId: 'a b', tracestate: 7 })).toEqual({ traceparent: TRACEPARENT });
  expect(readableTrace({ requestId: undefined, traceparent: [], tracestate: 'a=1' })).toBeUndefined();
});

test('the id of a request is found in data that no job could have', () => {
  expect(requestIdIn({ v: 9, trace: { requestId: 'r-1', other: 1 } })).toBe('r-1');
  for (const data of [undefined, null, 'x', {}, { trace: 'r-1' }, { trace: { requestId: 'two words' } }])
    expect(requestIdIn(data)).toBeUndefined();
});
