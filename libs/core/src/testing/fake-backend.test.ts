// The simulated device keeps what every backend keeps; its own faults are used, and so proven, by executor.test.ts.

import { describeInferenceBackend } from './inference-backend.conformance.ts';
import { FakeBackend } from './fake-backend.ts';
import { ManualClock } from './manual-clock.ts';

describeInferenceBackend('FakeBackend', async () => {
  const clock = new ManualClock();
  return {
    backend: new FakeBackend({ clock }),
    vocabularySize: 30_522,
    maxTokens: 64,
    wait: (promise) => clock.advanceUntilSettled(promise),
  };
});
