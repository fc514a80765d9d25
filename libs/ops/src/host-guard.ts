// Which names an HTTP server of this project answers to. A web page that lets a name of its own lead to this machine
// (DNS rebinding) is refused by the name that its browser sends; who asks by a name of loopback, by what the server
// was told to listen on, or by a name of the setting `httpHosts` is not. A server that listens beyond loopback also
// answers to addresses and to its machine's own name, so that probes and containers reach it: no page can have those.
//
// Why: docs/decisions/command-and-setup.md#servers-answer-to-names-they-know

import type { IncomingMessage } from 'node:http';
import { BlockList, isIP } from 'node:net';
import { hostname } from 'node:os';

export interface HostGuardOptions {
  /** What the server listens on. */
  readonly host: string;
  /** The setting `httpHosts`: names separated by commas, `*.example.com` for all below one, `*` for all there are. */
  readonly hosts?: string | undefined;
}

export interface HostRefusal {
  readonly status: 400 | 403;
  readonly code: 'bad_request' | 'host_not_allowed';
  readonly message: string;
}

export type HostGuard = (
  request: Pick<IncomingMessage, 'httpVersion' | 'rawHeaders' | 'url'>,
) => HostRefusal | undefined;

const MOST_SHOWN = 100;
const loopback = new BlockList();
loopback.addSubnet('127.0.0.0', 8, 'ipv4');
loopback.addAddress('::1', 'ipv6');

/** Undefined for a request that may be answered. */
export function hostGuard({ host, hosts = '' }: HostGuardOptions): HostGuard {
  const given = hosts.split(',').flatMap((name) => plainName(name.trim()) ?? []);
  const isBeyondLoopback = !isLoopbackHost(host);
  const own = new Set([plainName(host), ...(isBeyondLoopback ? [hostname().toLowerCase()] : [])]);
  const isKnown = (name: string): boolean =>
    isLoopback(name) ||
    own.has(name) ||
    (isBeyondLoopback && isIP(name) !== 0) ||
    given.some((pattern) => matches(name, pattern));
  return ({ httpVersion, rawHeaders, url = '' }) => {
    const named = hostHeaders(rawHeaders);
    if (named.length > 1)
      return badRequest(`the request has ${named.length} Host headers; one says which server is meant`);
    // 1.0 knows no Host, and no browser speaks it
    if (named.length === 0)
      return httpVersion === '1.1' ? badRequest('the request has no Host header; HTTP/1.1 asks for one') : undefined;
    const asked = [...named, ...authorityOf(url)];
    for (const text of asked) {
      const name = plainName(text);
      if (name === undefined) return badRequest(`"${text.slice(0, MOST_SHOWN)}" is no name of a host`);
      if (!isKnown(name)) return notAllowed(name);
    }
    return undefined;
  };
}

/** Lower case, without port, brackets and the dot at the end; undefined for what is no name of a host. */
function plainName(text: string): string | undefined {
  const [, bracketed, plain] = /^(?:\[([0-9a-f:.]+)\]|([^\s:[\]/?#@\\]+))(?::\d{0,5})?$/i.exec(text) ?? [];
  const name = bracketed ?? plain?.replace(/\.$/, '') ?? (isIP(text) === 6 ? text : undefined);
  if (name === undefined || name === '' || (bracketed !== undefined && isIP(bracketed) !== 6)) return undefined;
  return name.toLowerCase();
}

/** Whether only this machine reaches who listens on it; any other name may lead anywhere. */
export function isLoopbackHost(host: string): boolean {
  return isLoopback(plainName(host) ?? host);
}

function isLoopback(name: string): boolean {
  switch (isIP(name)) {
    case 4:
      return name.startsWith('127.'); // asked with each request: a look into a BlockList took 2 % of its time
    case 6:
      return loopback.check(name, 'ipv6'); // addresses of IPv4 within IPv6 as well
    default:
      return name === 'localhost' || name.endsWith('.localhost'); // RFC 6761: never looked up
  }
}

function matches(name: string, pattern: string): boolean {
  return pattern === '*' || pattern === name || (pattern.startsWith('*.') && name.endsWith(pattern.slice(1)));
}

function hostHeaders(rawHeaders: readonly string[]): string[] {
  return rawHeaders.filter((_, at) => at % 2 === 1 && rawHeaders[at - 1]?.toLowerCase() === 'host');
}

/** Of a request line with a whole address, `GET http://name/path`. */
function authorityOf(url: string): string[] {
  const authority = /^[a-z][a-z0-9+.-]*:\/\/([^/?#]*)/i.exec(url)?.[1];
  return authority === undefined ? [] : [authority];
}

function badRequest(message: string): HostRefusal {
  return { status: 400, code: 'bad_request', message };
}

function notAllowed(name: string): HostRefusal {
  return {
    status: 403,
    code: 'host_not_allowed',
    message:
      `this server does not answer to the name "${name.slice(0, MOST_SHOWN)}", lest web pages reach it by names of ` +
      'their own; behind a proxy or for a name of this machine, list it in the setting httpHosts (SHOAL_HTTP_HOSTS)',
  };
}
