import { expect, onTestFinished, test, vi } from 'vitest';
import type { FromExecutor } from '@shoal/core';
import { tellBodies } from './told-bodies.ts';

test('results beside the queue server are told once each, within a second, and the rest at the end', () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  onTestFinished(() => void vi.useRealTimers());
  const payloads = { put: 0, by_queue_server: 0, lost: 0, damaged: 0 };
  const told: FromExecutor[] = [];
  const stop = tellBodies(
    () => ({ payloads }),
    (message) => told.push(message),
  );
  vi.advanceTimersByTime(5_000);
  expect(told).toEqual([]);
  Object.assign(payloads, { put: 3, by_queue_server: 1 });
  vi.advanceTimersByTime(5_000);
  expect(told).toEqual([{ kind: 'bodies', put: 3, byQueueServer: 1 }]);
  payloads.put = 5;
  stop();
  expect(told.slice(1)).toEqual([{ kind: 'bodies', put: 2, byQueueServer: 0 }]);
});
