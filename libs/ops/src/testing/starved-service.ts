// A process for tests: a service that opens files until it may open no more, and then wants a port for its metrics.

import { openSync } from 'node:fs';
import { startMetricsServer } from '../metrics-server.ts';
import { serviceMain } from '../service-main.ts';

process.exit(
  await serviceMain({
    name: 'worker',
    version: '',
    start: async () => {
      openAll();
      const metrics = { contentType: 'text/plain', text: async () => '' };
      const { url, stop } = await startMetricsServer({ port: 0, metrics });
      return { facts: { url }, stop };
    },
  }),
);

function openAll(): void {
  for (;;) {
    try {
      openSync('/dev/null', 'r');
    } catch {
      return;
    }
  }
}
