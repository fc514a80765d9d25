// Who comes through a proxy that asks people itself (single sign-on): it tells in a header who it is. The header counts
// only in requests from addresses that the settings name, because anybody else can write one too.

import { BlockList, isIP } from 'node:net';
import type { IncomingMessage } from 'node:http';
import { ShoalError } from '@shoal/contract';
import type { Role } from './visitor.ts';

export interface ProxyOptions {
  /** The setting dashboardProxyHeader. */
  readonly header: string;
  /** The setting dashboardProxies: addresses and networks separated by commas. */
  readonly proxies: string | undefined;
  /** The setting dashboardOperators: names separated by commas, "*" for everybody. */
  readonly operators: string | undefined;
}

export interface ToldVisitor {
  readonly who: string;
  readonly role: Role;
}

const MOST_NAME_CHARACTERS = 256;

export class TrustedProxy {
  private readonly header: string;
  private readonly trusted: BlockList;
  private readonly operators: ReadonlySet<string>;

  /** Throws CONFIG_INVALID for addresses that are none, and where no address is named. */
  constructor({ header, proxies = '', operators = '' }: ProxyOptions) {
    this.header = header.toLowerCase();
    this.trusted = addressesIn(proxies);
    this.operators = new Set(wordsIn(operators));
  }

  /** Whether the request comes from one of the addresses. */
  isFrom(request: IncomingMessage): boolean {
    const address = (request.socket.remoteAddress ?? '').replace(/^::ffff:(?=\d+\.)/, '');
    const family = isIP(address);
    return family !== 0 && this.trusted.check(address, family === 4 ? 'ipv4' : 'ipv6');
  }

  /** Who it says that asks; undefined where it is no such proxy, or names nobody. */
  who(request: IncomingMessage): ToldVisitor | undefined {
    const told = request.headers[this.header];
    if (!this.isFrom(request) || typeof told !== 'string' || told.trim() === '') return undefined;
    const who = told.trim().slice(0, MOST_NAME_CHARACTERS);
    const isOperator = this.operators.has('*') || wordsIn(who).some((word) => this.operators.has(word));
    return { who, role: isOperator ? 'operator' : 'viewer' };
  }
}

function wordsIn(text: string): readonly string[] {
  return text.split(',').flatMap((word) => (word.trim() === '' ? [] : [word.trim()]));
}

function addressesIn(text: string): BlockList {
  const list = new BlockList();
  const words = wordsIn(text);
  if (words.length === 0)
    throw new ShoalError(
      'CONFIG_INVALID',
      'dashboardProxyHeader is set and dashboardProxies names no address: anybody could write that header. Name the ' +
        'addresses of the proxy, such as 10.0.3.7 or 10.0.0.0/8',
    );
  for (const word of words) {
    const [address = '', length] = word.split('/');
    const family = isIP(address);
    const bits = Number(length ?? (family === 4 ? 32 : 128));
    if (family === 0 || !Number.isInteger(bits) || bits < 0 || bits > (family === 4 ? 32 : 128))
      throw new ShoalError(
        'CONFIG_INVALID',
        `dashboardProxies: "${word}" is no address and no network such as 10.0.0.0/8`,
      );
    list.addSubnet(address, bits, family === 4 ? 'ipv4' : 'ipv6');
  }
  return list;
}
