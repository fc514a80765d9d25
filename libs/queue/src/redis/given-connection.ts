// A queue server as the settings of a connection that somebody has already, an ioredis one or what BullMQ takes as
// `connection`. Only where the server is and who we are is taken from it: how our connections behave is not up to it,
// and its own socket is neither used nor closed here.

import { ShoalError } from '@shoal/contract';
import { redactUrl } from '@shoal/core';
import type { RedisOptions } from 'ioredis';
import { WatchingSentinelConnector } from './sentinel-connector.ts';
import { LEAVES_SUCCEEDED } from './server-address.ts';

/** An ioredis connection, of any version that has `options`, or such options. */
export type GivenConnection = object;
export type ServerAddress = string | GivenConnection;

/** Where and who. */
const TAKEN = [
  'host',
  'port',
  'path',
  'family',
  'db',
  'username',
  'password',
  'tls',
  'sentinels',
  'name',
  'role',
  'sentinelUsername',
  'sentinelPassword',
  'sentinelTLS',
  'enableTLSForSentinelMode',
  'natMap',
  'keepAlive',
  'noDelay',
  'connectTimeout',
] as const satisfies readonly (keyof RedisOptions)[];

/** Throws CONFIG_INVALID for what cannot be used: a cluster, or keys that would lie elsewhere. */
export function givenOptions(given: GivenConnection): RedisOptions {
  if (Reflect.get(given, 'isCluster') === true)
    throw invalid('it is a cluster; pass redisUrl: "redis+cluster://host:port,host:port" instead');
  const options = optionsOf(given);
  if (typeof options['url'] === 'string')
    throw invalid('it names its server by url; pass that as redisUrl instead, or host and port');
  if (typeof options['keyPrefix'] === 'string' && options['keyPrefix'] !== '')
    throw invalid(
      `it puts ${JSON.stringify(options['keyPrefix'])} before every key (keyPrefix), where no worker looks; pass one ` +
        'without, and prefix for keys of your own',
    );
  const known = TAKEN.filter((name) => options[name] !== undefined && options[name] !== null);
  const taken = Object.fromEntries(known.map((name) => [name, options[name]]));
  return Array.isArray(options['sentinels'])
    ? { ...taken, ...LEAVES_SUCCEEDED, Connector: WatchingSentinelConnector }
    : taken;
}

/** The server in messages, as a URL; never with a password. */
export function addressText(address: ServerAddress): string {
  if (typeof address === 'string') return redactUrl(address);
  const { path, host = 'localhost', port = 6379, tls, sentinels, name } = optionsOf(address);
  if (typeof path === 'string') return `unix://${path}`;
  const scheme = tls === undefined || tls === null ? 'redis' : 'rediss';
  if (Array.isArray(sentinels)) return `${scheme}+sentinel://${sentinels.length} Sentinels/${String(name)}`;
  return `${scheme}://${String(host)}:${String(port)}`;
}

function optionsOf(given: GivenConnection): Readonly<Record<string, unknown>> {
  const options: unknown = 'options' in given ? given.options : given;
  return typeof options === 'object' && options !== null ? (options as Record<string, unknown>) : {};
}

function invalid(problem: string): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError('CONFIG_INVALID', `the connection that was passed cannot be used: ${problem}`);
}
