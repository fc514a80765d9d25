// A process for tests: a service that never becomes ready ("start"), or one whose stop waits for nobody's answer ("stop").

import { serviceMain } from '../service-main.ts';

const never = new Promise<never>(() => undefined);

process.exit(
  await serviceMain({
    name: 'worker',
    version: '',
    fixed: { drainTimeoutMs: 100 },
    mostStopMs: 300,
    start: async (_settings, log) => {
      log.info({}, 'starting');
      if (process.argv[2] === 'start') await never;
      return { facts: {}, stop: () => never };
    },
  }),
);
