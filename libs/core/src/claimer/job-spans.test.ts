import { expect, test } from 'vitest';
import { noFaults } from '../base/fault-points.ts';
import {
  FakeExecutorLink,
  ManualClock,
  MemoryJobSource,
  MemoryQueue,
  RecordingAnnouncer,
  RecordingLogger,
  RecordingTracer,
  settled,
} from '../testing/index.ts';
import { Pipeline } from './pipeline.ts';

const TEXT = 'a text that is nobody else’s business';
const SEEN = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
const UNSEEN = '00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00';
const RAN = { rows: 2, width: 8, tokens: 10, runMs: 4, duplicates: 0, poolTokens: 0, poolAgeMs: 0 };

async function started() {
  const clock = new ManualClock();
  const queue = new MemoryQueue(clock);
  const [link, tracer] = [new FakeExecutorLink(), new RecordingTracer()];
  const pipeline = new Pipeline({
    source: new MemoryJobSource(queue),
    announcer: new RecordingAnnouncer(),
    clock,
    log: new RecordingLogger(),
    executor: link,
    serverNowMs: () => 1_800_000_000_000 + clock.nowMs(),
    limits: { poolTokens: 4_096, executorTimeoutMs: 60_000, drainTimeoutMs: 30_000, claimTimeoutMs: 30_000 },
    faults: noFaults,
    traced: { tracer, queue: 'embed-fake', workerName: 'w1' },
  });
  await pipeline.start();
  const add = (jobId: string, traceparent: string): void =>
    void queue.add(jobId, { v: 2, texts: [TEXT], trace: { traceparent, requestId: `request-of-${jobId}` } });
  const end = async (jobId: string, kind: 'failed' | 'unstarted'): Promise<void> => {
    const { token } = link.orderOf(jobId)!;
    const failure = { code: 'INPUT_TOO_LONG' as const, message: TEXT };
    link.sayOutcomes(kind === 'failed' ? { kind, jobId, token, failure } : { kind, jobId, token });
    await settled();
  };
  const named = (name: string) => tracer.spans.filter((span) => span.name === name);
  const stop = (): Promise<void> => clock.advanceUntilSettled(pipeline.stop());
  return { clock, link, tracer, add, end, named, stop };
}

test('a job has a span from its claim to its ending, a child of what made it, and no word of its texts', async () => {
  const { tracer, add, end, stop } = await started();
  add('a', SEEN);
  add('b', UNSEEN);
  await settled();
  await end('a', 'failed');
  await end('b', 'failed');
  expect(tracer.spans).toMatchObject([
    {
      name: 'process embed-fake',
      options: {
        kind: 'consumer',
        parent: { traceparent: SEEN },
        facts: {
          'messaging.message.id': 'a',
          'messaging.destination.name': 'embed-fake',
          'shoal.request_id': 'request-of-a',
          'shoal.worker': 'w1',
          'shoal.rows': 1,
        },
      },
      ending: { facts: { 'shoal.outcome': 'fail' }, failed: 'INPUT_TOO_LONG' },
    },
  ]);
  expect(JSON.stringify(tracer.spans)).not.toContain(TEXT);
  await stop();
});

test('a micro-batch is linked with the jobs in it that are followed; one without any is not told of', async () => {
  const { clock, link, add, named, stop } = await started();
  for (const [jobId, trace] of [
    ['a', SEEN],
    ['b', UNSEEN],
    ['c', SEEN],
  ] as const)
    add(jobId, trace);
  await settled();
  link.say({ kind: 'began', batch: 1, jobIds: ['a', 'b', 'c'] });
  link.say({ kind: 'began', batch: 2, jobIds: ['b'] });
  await clock.advance(5);
  link.say({ kind: 'ran', batch: 1, ...RAN });
  link.say({ kind: 'ran', batch: 2, ...RAN });
  const [run, ...others] = named('run embed-fake');
  expect(others).toEqual([]);
  expect(run).toMatchObject({
    options: { kind: 'internal', agoMs: 5, facts: { 'messaging.batch.message_count': 2, 'shoal.device': 'fake' } },
    ending: { facts: { 'shoal.shape': '2x8', 'shoal.tokens': 10, 'shoal.run_ms': 4 }, failed: undefined },
  });
  const jobs = named('process embed-fake');
  expect(run!.links).toEqual(jobs.map(({ span }) => span));
  for (const job of jobs) expect(job.links).toEqual([run!.span]);
  await stop();
});

test('splits, deaths of executors and returned jobs are told where they happen, and every span ends', async () => {
  const { link, tracer, add, end, named, stop } = await started();
  add('a', SEEN);
  await settled();
  link.say({ kind: 'began', batch: 1, jobIds: ['a'] });
  link.say({ kind: 'split', batch: 1, code: 'OUT_OF_VRAM' });
  link.say({ kind: 'began', batch: 2, jobIds: ['a'] });
  link.die();
  await settled();
  await end('a', 'unstarted');
  expect(named('run embed-fake').map(({ ending }) => ending?.failed)).toEqual(['OUT_OF_VRAM', 'EXECUTOR_LOST']);
  const [job] = named('process embed-fake');
  expect(job).toMatchObject({
    events: ['split', 'executor lost', 'return'],
    ending: { facts: { 'shoal.outcome': 'return' } },
  });
  await stop();
  expect(tracer.spans.filter(({ ending }) => ending === undefined)).toEqual([]);
});
