// The HTTP producer as a process. Settings come from the environment (docs/settings.md), requests are in docs/http.md.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  MASTER_KEY_VARIABLE,
  cacheFolder,
  servedModels,
  storeFolders,
  type Settings,
  type Tokenizer,
} from '@shoal/core';
import { expectEmbedder, openModel, openTokenizer, type StoredEmbedder } from '@shoal/models';
import { serviceMain } from '@shoal/ops/service';
import type { BatchSettings } from './batches/batches.ts';
import { createProducer } from './producer.ts';

process.exit(
  await serviceMain({
    name: 'http',
    version: version(),
    start: async (settings, log, { trace }) => {
      const [first, ...others] = await openAll(settings);
      if (first === undefined) throw new Error('there is always the model of the settings');
      const { redisUrl, prefix, httpHost: host, httpPort: port, requestTimeoutMs, maxOpenRequests } = settings;
      const { url, stop } = await createProducer({
        redisUrl,
        cells: settings.cells,
        prefix,
        ...first,
        others,
        access: settings.httpAccess,
        masterKey: process.env[MASTER_KEY_VARIABLE] || undefined,
        keyFile: settings.httpKeyFile,
        corsOrigins: settings.httpCors,
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
        payloadServers: settings.payloadServers,
        jobTexts: settings.jobTexts,
        batches: batchSettings(settings),
        version: version(),
        tracer: await trace(),
        log,
      });
      return { facts: { url }, stop };
    },
  }),
);

interface OpenModel {
  readonly model: StoredEmbedder;
  readonly tokenizer: Tokenizer;
  readonly aliases: readonly string[];
}

/** The model of the settings, and those that are served besides. */
async function openAll({ model, serve, maxTokens, ...settings }: Settings): Promise<readonly OpenModel[]> {
  const besides = serve === undefined ? [] : servedModels(serve);
  const opened: OpenModel[] = [];
  for (const one of [{ model, aliases: [] }, ...besides]) {
    const stored = expectEmbedder(await openModel(one.model, storeFolders(settings)));
    const at = opened.findIndex(({ model: { name } }) => name === stored.name);
    if (at >= 0) {
      opened[at] = { ...opened[at]!, aliases: [...opened[at]!.aliases, ...one.aliases] };
      continue;
    }
    const tokenizer = await openTokenizer(stored, maxTokens === undefined ? {} : { maxTokens });
    opened.push({ model: stored, tokenizer, aliases: one.aliases });
  }
  return opened;
}

function batchSettings(settings: Settings): BatchSettings {
  return {
    place: settings.batchDir ?? join(cacheFolder(settings.cacheDir), 'batches'),
    isDefaultPlace: settings.batchDir === undefined,
    s3Endpoint: settings.batchS3Endpoint,
    maxFileBytes: settings.batchMaxFileBytes,
    maxLines: settings.batchMaxLines,
    maxOpenBatches: settings.maxOpenBatches,
    maxOpenJobs: settings.maxOpenJobs,
    retentionDays: settings.batchRetentionDays,
    jobsInFlight: settings.batchJobsInFlight,
    partLines: settings.batchPartLines,
    jobTexts: settings.jobTexts,
    webhooks: { secret: settings.webhookSecret, allowsPrivate: settings.webhookPrivate === 'yes' },
  };
}

function version(): string {
  const manifest: unknown = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
  return typeof manifest === 'object' && manifest !== null ? String(Reflect.get(manifest, 'version')) : '';
}
