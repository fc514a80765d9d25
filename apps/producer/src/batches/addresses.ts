// Which addresses a notice may go to: those of the internet. An address of this machine or of its network is refused,
// whatever name it hides behind, so that nobody has the server ask what he cannot reach himself. Names are looked up
// here once more when a connection is made, and the address that was looked at is the one that is connected to.

import { lookup as systemLookup, type LookupAddress } from 'node:dns';
import { BlockList, isIP, type LookupFunction } from 'node:net';

/** Everything that is not global unicast (IANA's special-purpose registries, RFC 6890). */
const PRIVATE_4: readonly (readonly [string, number])[] = [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 4],
  ['240.0.0.0', 4],
];
const PUBLIC_6 = new BlockList();
PUBLIC_6.addSubnet('2000::', 3, 'ipv6');
/** Of 2000::/3: documentation, benchmarks, and tunnels that carry an IPv4 address (Teredo, 6to4). */
const NOT_PUBLIC_6 = new BlockList();
for (const [net, bits] of [
  ['2001::', 23],
  ['2001:db8::', 32],
  ['2002::', 16],
  ['3fff::', 20],
] as const)
  NOT_PUBLIC_6.addSubnet(net, bits, 'ipv6');
const NOT_PUBLIC_4 = new BlockList();
for (const [net, bits] of PRIVATE_4) NOT_PUBLIC_4.addSubnet(net, bits, 'ipv4');

/** Whether an IP address is one of the internet. */
export function isPublic(address: string): boolean {
  const version = isIP(address);
  if (version === 4) return !NOT_PUBLIC_4.check(address, 'ipv4');
  if (version !== 6) return false;
  const [plain = ''] = address.split('%');
  return PUBLIC_6.check(plain, 'ipv6') && !NOT_PUBLIC_6.check(plain, 'ipv6');
}

/** What a name leads to that is no address of the internet. */
export class PrivateAddress extends Error {
  constructor(host: string) {
    super(`${host} is an address of this machine or of its network`);
    this.name = 'PrivateAddress';
  }
}

/** As Node looks up names, but for those of which any address is private: `isAllowed` says which are not. */
export function guardedLookup(isAllowed: (address: string) => boolean): LookupFunction {
  return (host, options, done) => {
    systemLookup(host, { ...options, all: true }, (error, found: LookupAddress[]) => {
      if (error !== null) return done(error, '');
      const [first] = found;
      if (first === undefined || !found.every(({ address }) => isAllowed(address)))
        return done(new PrivateAddress(host), '');
      if (options.all === true) return done(null, found);
      done(null, first.address, first.family);
    });
  };
}

/** The host of a URL as an IP address; undefined where it is a name. */
export function literalOf({ hostname }: URL): string | undefined {
  const plain = hostname.replace(/^\[(.*)\]$/, '$1');
  return isIP(plain) === 0 ? undefined : plain;
}
