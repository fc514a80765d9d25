import { expect, test } from 'vitest';
import { noMetrics } from '@shoal/core';
import { WorkerStatus } from './worker-status.ts';

function setup() {
  const clock = { at: 0, nowMs: (): number => clock.at, after: () => () => undefined };
  const server = { isUp: true };
  const status = new WorkerStatus({
    clock,
    meter: { load: () => ({ claims: 3, poolTokens: 0, rates: {}, mix: {}, tokensPerJob: undefined }) },
    isServerUp: () => server.isUp,
  });
  return { clock, server, status, metrics: status.tap(noMetrics) };
}

test('is ready once its executor is, others see it, and the server answers; says why not until then', () => {
  const { server, status, metrics } = setup();
  expect(status.ready()).toEqual({ reasons: ['its executor is starting'], facts: { state: 'starting', claims: 3 } });
  metrics.executorReady(1);
  expect([status.isExecutorUp, status.ready().reasons]).toEqual([true, ['others do not see it yet']]);
  let standing: { readonly state: 'ready' | 'braked' | 'drained'; readonly reason: string } = {
    state: 'ready',
    reason: 'it claims',
  };
  status.shown({ told: () => ({ ...standing, sinceMs: 0 }) });
  expect(status.ready().reasons).toEqual([]);
  server.isUp = false;
  expect(status.ready().reasons).toEqual(['the queue server does not answer']);
  standing = { state: 'drained', reason: 'it was told to claim nothing until it is resumed' };
  expect(status.ready().reasons).toHaveLength(2);
  server.isUp = true;
  standing = { state: 'braked', reason: 'the memory of the queue server is almost full' };
  expect(status.ready()).toEqual({ reasons: [], facts: { state: 'braked', claims: 3 } });
});

test('lives while an executor is there or may come back, whatever the server does', () => {
  const { clock, server, status, metrics } = setup();
  metrics.executorReady(1);
  server.isUp = false;
  clock.at += 3_600_000;
  expect(status.live().reasons).toEqual([]);
  metrics.executorLost('signal');
  expect(status.isExecutorUp).toBe(false);
  clock.at += 599_999;
  expect(status.live().reasons).toEqual([]);
  clock.at += 1;
  expect(status.live().reasons).toEqual(['no executor was ready for 600 s']);
});
