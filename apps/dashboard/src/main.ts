// The dashboard as a process. Settings come from the environment (docs/settings.md).

import { readFileSync } from 'node:fs';
import { storeFolders } from '@shoal/core';
import { serviceMain } from '@shoal/ops/service';
import { createDashboard } from './dashboard.ts';

process.exit(
  await serviceMain({
    name: 'dashboard',
    version: version(),
    start: async (settings, log) => {
      const { redisUrl, prefix, dashboardHost: host, dashboardPort: port, httpHosts: hosts } = settings;
      const { dashboardKeyFile: keyFile, dashboardProxyHeader: proxyHeader } = settings;
      const { dashboardProxies: proxies, dashboardOperators: operators } = settings;
      const textsOf = settings.dashboardTexts === 'yes' ? storeFolders(settings) : undefined;
      const access = { keyFile, proxyHeader, proxies, operators, textsOf };
      const { url, stop } = await createDashboard({
        redisUrl,
        cells: settings.cells,
        payloadServers: settings.payloadServers,
        prefix,
        host,
        hosts,
        port,
        ...access,
        version: version(),
        log,
      });
      return { facts: { url }, stop };
    },
  }),
);

function version(): string {
  const manifest: unknown = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
  return typeof manifest === 'object' && manifest !== null ? String(Reflect.get(manifest, 'version')) : '';
}
