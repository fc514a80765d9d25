// Whether this process traces, and with what: OpenTelemetry's SDK, which is loaded nowhere else and only where the
// setting `traces` asks for it. OpenTelemetry's own variables say the rest
// (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/); those that ask for what is not
// there are refused by name.

import { ShoalError } from '@shoal/contract';
import { noTracer, type Logger, type Settings, type Tracer } from '@shoal/core';

export interface OpenTracer {
  readonly tracer: Tracer;
  /** Sends what waits, within five seconds. Safe to call twice. */
  stop(): Promise<void>;
}

export interface TracerOptions {
  readonly traces: Settings['traces'];
  readonly environment: Readonly<Record<string, string | undefined>>;
  /** What the process does: "worker", "http". Its service is called shoal-<name>, where OTEL_SERVICE_NAME says nothing. */
  readonly name: string;
  /** Of Shoal. */
  readonly version: string;
  readonly log: Logger;
}

export const SAMPLERS = [
  'always_on',
  'always_off',
  'traceidratio',
  'parentbased_always_on',
  'parentbased_always_off',
  'parentbased_traceidratio',
] as const;

/** How spans that begin a trace are chosen; `parentbased`: others by what their parent's process chose. */
export interface Sampling {
  readonly isParentBased: boolean;
  /** 0 to 1. */
  readonly ratio: number;
}

/** Of the traces that begin here, where nothing else is said. */
export const DEFAULT_RATIO = 0.01;

/** Throws CONFIG_INVALID for variables of OpenTelemetry that ask for what Shoal does not have. */
export async function openTracer(options: TracerOptions): Promise<OpenTracer> {
  const { traces, environment, log } = options;
  const none: OpenTracer = { tracer: noTracer, stop: async () => undefined };
  if (traces === 'off') return none;
  const switched = ['OTEL_SDK_DISABLED=true', 'OTEL_TRACES_EXPORTER=none'].find((off) => isSet(environment, off));
  if (switched !== undefined) {
    log.info({ because: switched }, 'traces are asked for and switched off by a variable of OpenTelemetry');
    return none;
  }
  const sampling = samplingOf(environment);
  checkExporter(environment);
  const propagators = words(environment, 'OTEL_PROPAGATORS');
  if (propagators !== '' && !propagators.split(',').includes('tracecontext'))
    log.warn({ OTEL_PROPAGATORS: propagators }, 'traces travel as W3C Trace Context here, whatever is set');
  const { startSdk } = await import('./otel-tracer.ts');
  const sdk = startSdk(options, sampling);
  log.info({ ...sampling, endpoint: sdk.endpoint }, 'spans are sent');
  return sdk;
}

/** By OTEL_TRACES_SAMPLER and its argument; where neither is set, one trace of a hundred. */
export function samplingOf(environment: TracerOptions['environment']): Sampling {
  const sampler = words(environment, 'OTEL_TRACES_SAMPLER') || 'parentbased_traceidratio';
  if (!SAMPLERS.some((known) => known === sampler))
    throw refused('OTEL_TRACES_SAMPLER', sampler, `there are ${SAMPLERS.join(', ')}`);
  const isParentBased = sampler.startsWith('parentbased_');
  if (sampler.endsWith('always_on')) return { isParentBased, ratio: 1 };
  if (sampler.endsWith('always_off')) return { isParentBased, ratio: 0 };
  const given = words(environment, 'OTEL_TRACES_SAMPLER_ARG');
  const ratio = given === '' ? DEFAULT_RATIO : Number(given);
  if (!(ratio >= 0 && ratio <= 1)) throw refused('OTEL_TRACES_SAMPLER_ARG', given, 'it must be a number from 0 to 1');
  return { isParentBased, ratio };
}

function checkExporter(environment: TracerOptions['environment']): void {
  const exporter = words(environment, 'OTEL_TRACES_EXPORTER');
  if (exporter !== '' && exporter !== 'otlp')
    throw refused('OTEL_TRACES_EXPORTER', exporter, 'there are otlp and none');
  for (const name of ['OTEL_EXPORTER_OTLP_TRACES_PROTOCOL', 'OTEL_EXPORTER_OTLP_PROTOCOL']) {
    const protocol = words(environment, name);
    if (protocol !== '' && protocol !== 'http/protobuf')
      throw refused(name, protocol, 'spans are sent as http/protobuf, which collectors take at port 4318');
  }
}

function words(environment: TracerOptions['environment'], name: string): string {
  return (environment[name] ?? '').trim();
}

function isSet(environment: TracerOptions['environment'], assignment: string): boolean {
  const [name = '', value = ''] = assignment.split('=');
  return words(environment, name).toLowerCase() === value;
}

function refused(name: string, found: string, what: string): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError('CONFIG_INVALID', `${name} = ${JSON.stringify(found)}: ${what}`, { problems: [name] });
}
