// The simulated device keeps what every backend keeps; its own faults are used, and so proven, by executor.test.ts.

import { describeInferenceBackend } from './inference-backend.conformance.ts';
import { FakeBackend } from './fake-backend.ts';
import { ManualClock } from './manual-clock.ts';

for (const precision of ['fp32', 'fp16'] as const) {
  describeInferenceBackend(`FakeBackend in ${precision}`, async () => {
    const clock = new ManualClock();
    const backend = new FakeBackend({
      clock,
      precision,
      slots: 4,
      memoryAfter: ({ rows, width }) => ({
        liveBytes: rows * width * 100,
        footprintBytes: undefined,
        source: 'simulated',
      }),
    });
    return { backend, vocabularySize: 30_522, maxTokens: 64, wait: (promise) => clock.advanceUntilSettled(promise) };
  });
}
