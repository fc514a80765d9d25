// `shoal exporter`: /metrics of the whole fleet in the foreground, for people and process managers. With a queue server
// that was named it needs none to start: that the server is away is what it is there to tell.

import { once } from 'node:events';
import { ShoalError } from '@shoal/contract';
import type { Settings } from '@shoal/core';
import { createExporterMetrics, startMetricsServer } from '@shoal/ops';
import { createLogger } from '@shoal/ops/service';
import { FleetSurvey, ServerWatch } from '@shoal/queue';
import { withServer } from '../processes/session.ts';
import { settingsOf } from '../settings.ts';
import { print, type Terminal } from '../terminal.ts';

export type ExporterFlags = Readonly<Record<string, string>>;

export async function exporter(terminal: Terminal, flags: ExporterFlags, version: string): Promise<void> {
  const settings = await settingsOf(terminal, withShortForms(flags));
  const { redisUrl } = settings;
  const never = new AbortController().signal;
  if (redisUrl !== undefined) return run(terminal, { ...settings, redisUrl }, never, version);
  await withServer(terminal, { settings, isQuiet: false }, (server) =>
    run(terminal, { ...settings, redisUrl: server.redisUrl }, server.lost, version),
  );
}

/** `--port` is `--exporter-port` of a command that has one port alone. */
export function withShortForms({ port, host, ...flags }: ExporterFlags): ExporterFlags {
  if ((port !== undefined && flags['exporterPort'] !== undefined) || (host !== undefined && flags['exporterHost']))
    throw new ShoalError('USAGE', '--port is --exporter-port and --host is --exporter-host: give one of each');
  return {
    ...flags,
    ...(port === undefined ? {} : { exporterPort: port }),
    ...(host === undefined ? {} : { exporterHost: host }),
  };
}

async function run(
  terminal: Terminal,
  settings: Settings & { readonly redisUrl: string },
  lost: AbortSignal,
  version: string,
): Promise<void> {
  const { redisUrl, prefix, exporterHost: host, exporterPort: port, httpHosts: hosts, logLevel, logFormat } = settings;
  const ending = AbortSignal.any([terminal.signal, lost]);
  ending.throwIfAborted();
  const ended = once(ending, 'abort');
  const log = createLogger({ level: logLevel, format: logFormat, name: 'exporter', who: { version } });
  const survey = FleetSurvey.open({ redisUrl, prefix, log });
  const server = ServerWatch.open({ redisUrl, prefix });
  try {
    const metrics = createExporterMetrics({ process: 'exporter', server, version, survey: () => survey.read() });
    server.onRoundTrip((ms) => metrics.roundTrip(ms));
    const reasons = (): string[] => (server.isUp ? [] : ['the queue server does not answer']);
    const { url, stop } = await startMetricsServer({
      host,
      hosts,
      port,
      setting: 'exporterPort',
      metrics,
      ready: () => ({ reasons: reasons() }),
    });
    try {
      await print(terminal, `${url}/metrics\n`);
      await ended;
    } finally {
      await stop();
    }
  } finally {
    await Promise.all([survey.close(), server.stop()]);
  }
  if (lost.aborted) throw lost.reason;
}
