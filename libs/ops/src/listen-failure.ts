// Why a server could not listen, as an error that names the setting to change. For every HTTP server of this project.

import { ShoalError } from '@shoal/contract';
import { descriptorFailure } from '@shoal/core/base';

export interface ListenAddress {
  readonly host: string;
  readonly port: number;
  /** What wanted to listen: "metrics", "the HTTP producer". */
  readonly what: string;
  /** Key of the setting that has the port, e.g. "metricsPort". */
  readonly setting: string;
}

/**
 * `error` as CONFIG_INVALID when it is about the address, as SETUP_FAILED when this process may open nothing more;
 * anything else comes back as it is.
 */
export function listenFailure(error: unknown, { host, port, what, setting }: ListenAddress): unknown {
  const code: unknown = error instanceof Error ? Reflect.get(error, 'code') : undefined;
  const found = typeof code === 'string' ? REASONS.get(code) : undefined;
  if (found === undefined) return descriptorFailure(error) ?? error;
  return new ShoalError(
    'CONFIG_INVALID',
    `${what} cannot listen on ${host}:${port}: ${found}; choose another with the setting ${setting}`,
    { host, port },
    error,
  );
}

const REASONS: ReadonlyMap<string, string> = new Map([
  ['EADDRINUSE', 'somebody else listens there already'],
  ['EACCES', 'this user may not use that port'],
  ['EADDRNOTAVAIL', 'this machine has no such address'],
  ['ENOTFOUND', 'there is no host of that name'],
  ['EAI_AGAIN', 'the name of the host cannot be looked up'],
]);
