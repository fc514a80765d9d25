// `shoal exporter`: /metrics of the whole fleet in the foreground, for people and process managers. With a queue server
// that was named it needs none to start: that the server is away is what it is there to tell.

import { once } from 'node:events';
import { ShoalError } from '@shoal/contract';
import type { Logger, Settings } from '@shoal/core';
import { cellsText, createExporterMetrics, startMetricsServer, type ExporterMetrics } from '@shoal/ops';
import { createLogger } from '@shoal/ops/service';
import { FleetSurvey, PerCell, ServerWatch } from '@shoal/queue';
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
  const seen =
    settings.cells === undefined
      ? new ServerTold({ redisUrl, prefix, version, log })
      : new CellsTold({ cells: settings.cells, prefix, version, log });
  try {
    const { url, stop } = await startMetricsServer({
      host,
      hosts,
      port,
      setting: 'exporterPort',
      metrics: seen,
      ready: () => ({ reasons: seen.reasons() }),
    });
    try {
      await print(terminal, `${url}/metrics\n`);
      await ended;
    } finally {
      await stop();
    }
  } finally {
    await seen.close();
  }
  if (lost.aborted) throw lost.reason;
}

interface ToldOptions {
  readonly prefix: string;
  readonly version: string;
  readonly log: Logger;
}

/** One queue server and what is told of it. */
class ServerTold {
  readonly contentType: string;
  private readonly survey: FleetSurvey;
  private readonly server: ServerWatch;
  private readonly metrics: ExporterMetrics;

  constructor({ redisUrl, prefix, version, log }: ToldOptions & { readonly redisUrl: string }) {
    this.survey = FleetSurvey.open({ redisUrl, prefix, log });
    this.server = ServerWatch.open({ redisUrl, prefix });
    const survey = (): ReturnType<FleetSurvey['read']> => this.survey.read();
    this.metrics = createExporterMetrics({ process: 'exporter', server: this.server, version, survey });
    this.server.onRoundTrip((ms) => this.metrics.roundTrip(ms));
    this.contentType = this.metrics.contentType;
  }

  text(): Promise<string> {
    return this.metrics.text();
  }

  reasons(): string[] {
    return this.server.isUp ? [] : ['the queue server does not answer'];
  }

  async close(): Promise<void> {
    await Promise.all([this.survey.close(), this.server.stop()]);
  }
}

/** Every cell of the list, as the list is now. */
class CellsTold {
  private readonly told: PerCell<ServerTold>;

  constructor({ cells, ...options }: ToldOptions & { readonly cells: string }) {
    const { log } = options;
    this.told = new PerCell(
      { cells, log },
      ({ address, prefix = options.prefix }) => new ServerTold({ ...options, redisUrl: address, prefix }),
    );
  }

  get contentType(): string {
    return this.told.all[0]!.part.contentType;
  }

  async text(): Promise<string> {
    const texts = this.told.all.map(async ({ cell, part }) => ({ cell: cell.name, text: await part.text() }));
    return cellsText(await Promise.all(texts));
  }

  reasons(): string[] {
    return this.told.all.flatMap(({ cell, part }) => part.reasons().map((reason) => `cell ${cell.name}: ${reason}`));
  }

  async close(): Promise<void> {
    await this.told.close();
  }
}
