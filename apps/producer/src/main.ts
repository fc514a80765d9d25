// The HTTP producer as a process. Settings come from the environment (docs/settings.md), requests are in docs/http.md.

import { readFileSync } from 'node:fs';
import { storeFolders } from '@shoal/core';
import { expectEmbedder, openModel, openTokenizer } from '@shoal/models';
import { serviceMain } from '@shoal/ops/service';
import { createProducer } from './producer.ts';

process.exit(
  await serviceMain({
    name: 'http',
    start: async (settings, log) => {
      const model = expectEmbedder(await openModel(settings.model, storeFolders(settings)));
      const tokenizer = await openTokenizer(
        model,
        settings.maxTokens === undefined ? {} : { maxTokens: settings.maxTokens },
      );
      const { redisUrl, prefix, httpHost: host, httpPort: port, requestTimeoutMs, maxOpenRequests } = settings;
      const { url, stop } = await createProducer({
        redisUrl,
        prefix,
        model,
        tokenizer,
        host,
        port,
        requestTimeoutMs,
        maxOpenRequests,
        maxWaitingRequests: settings.maxWaitingRequests,
        maxHttpBytes: settings.maxHttpBytes,
        maxHttpConnections: settings.maxHttpConnections,
        hosts: settings.httpHosts,
        tokenRows: settings.httpTokenRows,
        truncate: settings.httpTruncate,
        readyNeedsWorkers: settings.readyNeedsWorkers === 'yes',
        limits: settings,
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
