// TLS towards the queue server: an own authority, a certificate of our own, another name than the host's; and what to
// do about each way in which a handshake fails. They travel as parameters of the URL, so that whoever has the URL has
// them: workers, executors, commands, HTTP, the dashboard and the SDK. Files are read when a connection is made.
//
// Why: docs/decisions/queue.md#tls-travels-in-the-url

import { readFileSync } from 'node:fs';
import { createSecureContext, type ConnectionOptions } from 'node:tls';
import { ShoalError } from '@shoal/contract';

export const TLS_PARAMETERS = ['ca', 'cert', 'key', 'serverName'] as const;

/** Throws CONFIG_INVALID where a file cannot be read or is not what it should be. */
export function tlsOptions(parameters: URLSearchParams): ConnectionOptions {
  const [ca, cert, key] = (['ca', 'cert', 'key'] as const).map((name) => contentOf(name, parameters.get(name)));
  if ((cert === undefined) !== (key === undefined))
    throw invalid('redisCert and redisKey belong together: give both, or none', undefined);
  const files = {
    ...(ca === undefined ? {} : { ca }),
    ...(cert === undefined ? {} : { cert }),
    ...(key === undefined ? {} : { key }),
  };
  try {
    createSecureContext(files);
  } catch (error) {
    const named = TLS_PARAMETERS.flatMap((name) => parameters.get(name) ?? []).join(', ');
    throw invalid(
      `redisCa, redisCert and redisKey (${named}) do not make a certificate: ${(error as Error).message}. They must be ` +
        'PEM, the key without a passphrase and that of the certificate',
      error,
    );
  }
  const serverName = parameters.get('serverName');
  return { ...files, ...(serverName === null ? {} : { servername: serverName }) };
}

function contentOf(name: string, path: string | null): Buffer | undefined {
  if (path === null) return undefined;
  try {
    const content = readFileSync(path);
    if (content.includes('-----BEGIN ')) return content;
  } catch (error) {
    throw invalid(`the file of ${settingOf(name)} cannot be read: ${(error as Error).message}`, error);
  }
  throw invalid(
    `the file of ${settingOf(name)}, ${path}, is not PEM: it has no line that begins with -----BEGIN`,
    undefined,
  );
}

function settingOf(parameter: string): string {
  return `redis${parameter[0]!.toUpperCase()}${parameter.slice(1)}`;
}

function invalid(message: string, cause: unknown): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError('CONFIG_INVALID', message, {}, cause);
}

const CURES: readonly (readonly [fault: RegExp, cure: string])[] = [
  [
    /SELF_SIGNED|UNABLE_TO_VERIFY|UNABLE_TO_GET_ISSUER|CERT_UNTRUSTED|unable to verify|self.signed/i,
    'Nobody that this machine trusts has signed its certificate: set redisCa (SHOAL_REDIS_CA) to the PEM file of the ' +
      'authority that did',
  ],
  [
    /ERR_TLS_CERT_ALTNAME_INVALID|does not match certificate/,
    'Its certificate is for another name: use that one in redisUrl, or set redisServerName (SHOAL_REDIS_SERVER_NAME) to it',
  ],
  [
    /CERT_HAS_EXPIRED|certificate has expired/,
    'Its certificate has expired: renew it, or set the clock of this machine',
  ],
  [/CERT_NOT_YET_VALID|not yet valid/, 'Its certificate is not valid yet: look at the clocks of both machines'],
  [
    /CERTIFICATE_REQUIRED|alert number (?:116|40|42|48)|handshake failure|bad certificate|unknown ca/i,
    'It asks for a certificate of ours that it trusts: set redisCert and redisKey (SHOAL_REDIS_CERT, SHOAL_REDIS_KEY), ' +
      'or let the server ask for none (tls-auth-clients no)',
  ],
  [
    /wrong version number|packet length too long|WRONG_VERSION_NUMBER|PACKET_LENGTH|http request/i,
    'What listens there speaks no TLS: write redis:// instead of rediss://, or use its TLS port',
  ],
  [
    /before secure TLS connection was established/,
    'It closed before TLS stood: is that its TLS port, and does it run?',
  ],
];

/** What to do about a handshake that failed; undefined for errors that are not about TLS. */
export function tlsCure(error: Error): string | undefined {
  const said = `${String(Reflect.get(error, 'code'))} ${error.message}`;
  return CURES.find(([fault]) => fault.test(said))?.[1];
}
