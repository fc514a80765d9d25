// Real time behind the Clock port. Timers do not keep a process alive by themselves.

import type { Clock } from './ports.ts';

export const systemClock: Clock = {
  nowMs: () => performance.now(),
  after(delayMs, wake) {
    const timer = setTimeout(wake, delayMs);
    timer.unref();
    return () => clearTimeout(timer);
  },
};
