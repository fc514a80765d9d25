// The dashboard as a process. Settings come from the environment (docs/settings.md).

import { serviceMain } from '@shoal/ops/service';
import { createDashboard } from './dashboard.ts';

process.exit(
  await serviceMain({
    name: 'dashboard',
    start: async ({ redisUrl, prefix, dashboardHost: host, dashboardPort: port, httpHosts: hosts }, log) => {
      const { url, stop } = await createDashboard({ redisUrl, prefix, host, hosts, port, log });
      return { facts: { url }, stop };
    },
  }),
);
