// The dashboard as a process. Settings come from the environment (docs/settings.md).

import { serviceMain } from '@shoal/ops';
import { createDashboard } from './dashboard.ts';

process.exitCode = await serviceMain({
  name: 'dashboard',
  start: async ({ redisUrl, prefix, dashboardHost: host, dashboardPort: port }, log) => createDashboard({ redisUrl, prefix, host, port, log }),
});
