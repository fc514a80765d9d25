import { expect, onTestFinished, test, vi } from 'vitest';
import type { FromExecutor, PayloadServerFacts } from '@shoal/core';
import { tellBodies } from './told-bodies.ts';

test('what became of bodies is told once, within a second, with servers that changed, and the rest at the end', () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  onTestFinished(() => void vi.useRealTimers());
  const payloads = { put: 0, by_queue_server: 0, lost: 0, damaged: 0 };
  const told: FromExecutor[] = [];
  let servers: readonly PayloadServerFacts[] | undefined;
  const stop = tellBodies(
    () => ({ payloads }),
    () => servers,
    (message) => told.push(message),
  );
  vi.advanceTimersByTime(5_000);
  expect(told).toEqual([]);
  Object.assign(payloads, { put: 3, by_queue_server: 1 });
  vi.advanceTimersByTime(5_000);
  expect(told).toEqual([{ kind: 'bodies', put: 3, byQueueServer: 1, lost: 0 }]);
  servers = [{ name: 'a:1', problem: 'takes no body (OOM)', sinceMs: 1 }];
  vi.advanceTimersByTime(5_000);
  expect(told.splice(1)).toEqual([{ kind: 'bodies', put: 0, byQueueServer: 0, lost: 0, servers }]);
  payloads.put = 5;
  payloads.lost = 1;
  stop();
  expect(told.slice(1)).toEqual([{ kind: 'bodies', put: 2, byQueueServer: 0, lost: 1 }]);
});
