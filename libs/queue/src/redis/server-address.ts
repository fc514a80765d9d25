// What the URL of a queue server says: one server, a master that Sentinels name, or the node of a cluster that holds
// our keys. Pure: connects to nothing. A connection is always one socket to one server, whatever stands behind the URL:
//   redis://host:port/db, rediss://…, unix:///path/of/the.sock?db=1
//   redis+sentinel://host:port,host:port/master?db=1     host:port are Sentinels
//   redis+cluster://host:port,host:port                  host:port are any nodes
//   rediss://…?ca=/a.pem&cert=/b.pem&key=/c.pem&serverName=name       see tls.ts
//   redis://user@host:port?passwordFile=/run/secrets/queue            a file with the password, see password-file.ts
// User and password before the @ are the server's own; ?sentinelUsername= and ?sentinelPassword= are the Sentinels'.

import { DEFAULT_PREFIX, ShoalError } from '@shoal/contract';
import { redactUrl } from '@shoal/core';
import type { BufferPool } from '@shoal/core/base';
import type { RedisOptions } from 'ioredis';
import { largeReplyConnector } from './large-replies.ts';
import { WatchingSentinelConnector } from './sentinel-connector.ts';
import { slotOwnerConnector, type Node } from './slot-owner-connector.ts';
import { PASSWORD_FILE, withPasswordFile } from './password-file.ts';
import { TLS_PARAMETERS, tlsOptions } from './tls.ts';

/** Leaves a server that can no longer be written to and looks for the one that can. */
export const LEAVES_SUCCEEDED = {
  reconnectOnError: (error: Error) => /^(READONLY|NOREPLICAS|MOVED)\b/.test(error.message),
} as const satisfies RedisOptions;

/**
 * Where to connect, as ioredis wants it. `prefix` is the hash tag whose slot decides on the node of a cluster, `pool`
 * are for large-replies.ts, and are left alone behind TLS and Sentinels. Throws CONFIG_INVALID.
 */
export function addressOf(
  url: string,
  prefix: string = DEFAULT_PREFIX,
  { pool }: { readonly pool?: BufferPool | undefined } = {},
): RedisOptions {
  const many = /^(rediss?)\+(sentinel|cluster):\/\/(?:([^/?]*)@)?([^@/?]+)(?:\/([^?]*))?(?:\?(.*))?$/.exec(url);
  if (many === null) return withPool(oneServer(url), pool);
  const [, scheme, kind, credentials = '', hosts = '', path = '', query = ''] = many;
  const nodes = hosts.split(',').map((host) => nodeOf(url, host, kind === 'sentinel' ? 26_379 : 6_379));
  const parameters = parametersOf(
    url,
    query,
    kind === 'sentinel' ? ['db', 'sentinelUsername', 'sentinelPassword'] : [],
  );
  if (kind === 'cluster' && !/^0?$/.test(path)) throw notAnAddress(url, 'a cluster has database 0 only; leave it out');
  const common = {
    ...withPasswordFile(credentialsOf(...(credentials.split(/:(.*)/s) as [string, string?])), parameters),
    ...(scheme === 'rediss' ? { tls: tlsOptions(parameters) } : {}),
    ...LEAVES_SUCCEEDED,
  };
  if (kind === 'cluster') return { ...common, Connector: slotOwnerConnector(nodes, prefix, pool) };
  if (path === '')
    throw notAnAddress(url, 'the name of the master is missing: redis+sentinel://host:port,host:port/mymaster');
  return {
    ...common,
    ...databaseOf(url, parameters.get('db')),
    ...sentinelCredentials(parameters),
    Connector: WatchingSentinelConnector,
    sentinels: nodes,
    name: decoded(path),
    enableTLSForSentinelMode: scheme === 'rediss',
  };
}

function oneServer(url: string): RedisOptions {
  // A path has no host before it, which URL demands where there are credentials.
  const unix = /^unix:\/\/([^/]*@)?(\/.+)$/.exec(url);
  const text = unix === null ? url : `unix://${unix[1] ?? ''}localhost${unix[2]}`;
  const parsed = URL.canParse(text) ? new URL(text) : undefined;
  if (parsed !== undefined && parsed.hash !== '') throw notAnAddress(url, 'write "#" in a password as %23');
  const parameters = parsed === undefined ? new URLSearchParams() : parametersOf(url, parsed.search.slice(1), ['db']);
  const credentials = parsed === undefined ? {} : withPasswordFile(credentialsIn(parsed), parameters);
  const database = parsed?.pathname.slice(1) || parameters.get('db');
  switch (parsed?.protocol) {
    case 'unix:':
      return {
        path: decoded(parsed.pathname),
        ...credentials,
        ...databaseOf(url, parameters.get('db')),
      };
    case 'redis:':
      return { ...hostOf(parsed), ...credentials, ...databaseOf(url, database ?? null) };
    case 'rediss:':
      return {
        ...hostOf(parsed),
        ...credentials,
        ...databaseOf(url, database ?? null),
        tls: tlsOptions(parameters),
      };
    default:
      throw notAnAddress(
        url,
        'use redis://host:port, rediss://host:port, unix:///path/to.sock, ' +
          'redis+sentinel://host:port,host:port/master or redis+cluster://host:port,host:port',
      );
  }
}

/**
 * What stands behind the "?". A parameter that we do not know is refused by its name: a password that is passed over in
 * silence, or a "?" inside one, would be somebody else's riddle.
 */
function parametersOf(url: string, query: string, known: readonly string[]): URLSearchParams {
  const parameters = new URLSearchParams(query);
  const allowed: readonly string[] = [...known, PASSWORD_FILE, ...(url.startsWith('rediss') ? TLS_PARAMETERS : [])];
  for (const name of parameters.keys()) {
    if (allowed.includes(name)) continue;
    const isTls = (TLS_PARAMETERS as readonly string[]).includes(name);
    throw notAnAddress(
      url,
      isTls
        ? `"${name}" is about TLS, which begins with rediss://`
        : `${/^[a-z]{1,32}$/i.test(name) ? `"${name}"` : 'what stands behind "?"'} is no parameter; user and password ` +
            'come before the "@", where a "?" is written as %3F',
    );
  }
  return parameters;
}

function withPool(options: RedisOptions, pool: BufferPool | undefined): RedisOptions {
  return pool === undefined || options.tls !== undefined
    ? options
    : { ...options, Connector: largeReplyConnector(pool) };
}

function hostOf(url: URL): { host: string; port: number } {
  return { host: url.hostname.replace(/^\[|\]$/g, '') || 'localhost', port: url.port === '' ? 6379 : Number(url.port) };
}

function nodeOf(url: string, text: string, defaultPort: number): Node {
  const match = /^(\[[0-9a-fA-F:.%]+\]|[^[\]:]+)(?::(\d{1,5}))?$/.exec(text.trim());
  // A "/" or "?" in a password ends it where no one meant, and what looks like a host is the beginning of it.
  if (match === null)
    throw notAnAddress(url, 'each of its hosts is host or host:port; write "/" in a password as %2F and "?" as %3F');
  return { host: match[1]!.replace(/^\[|\]$/g, ''), port: match[2] === undefined ? defaultPort : Number(match[2]) };
}

function credentialsIn(url: URL): RedisOptions {
  return credentialsOf(url.username, url.password);
}

function credentialsOf(username: string, password = ''): RedisOptions {
  return {
    ...(username === '' ? {} : { username: decoded(username) }),
    ...(password === '' ? {} : { password: decoded(password) }),
  };
}

/** What is no percent-encoding stands for itself: a password may have a bare % in it, and URL lets it pass. */
function decoded(text: string): string {
  return text.replaceAll(/(?:%[0-9a-f]{2})+/gi, (encoded) => {
    try {
      return decodeURIComponent(encoded);
    } catch {
      return encoded;
    }
  });
}

function sentinelCredentials(parameters: URLSearchParams): RedisOptions {
  const [sentinelUsername, sentinelPassword] = [parameters.get('sentinelUsername'), parameters.get('sentinelPassword')];
  return {
    ...(sentinelUsername === null ? {} : { sentinelUsername }),
    ...(sentinelPassword === null ? {} : { sentinelPassword }),
  };
}

/** What cannot be a number is not repeated: it may be the end of a password that has a "/" in it. */
function databaseOf(url: string, text: string | null): RedisOptions {
  if (text === null || text === '') return {};
  if (!/^\d{1,9}$/.test(text))
    throw notAnAddress(
      url,
      'the database must be a number, such as 0 in redis://host:port/0 or unix:///path/to.sock?db=0; leave it ' +
        'out for database 0',
    );
  return { db: Number(text) };
}

function notAnAddress(url: string, cure: string): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError('CONFIG_INVALID', `"${redactUrl(url)}" is not the URL of a queue server; ${cure}`);
}
