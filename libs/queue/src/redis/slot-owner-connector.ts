// How a connection finds its node of a cluster. All keys of a prefix share its hash tag, so they lie in one slot, on
// one node: a plain connection to the node that owns it does all that one to a single server does (WATCH, MULTI, SCAN,
// blocking reads), which a cluster client does not. Asks for the owner before every attempt to connect, so a connection
// that broke in a failover finds the new one. Knows nothing of what is sent.
//
// Why: docs/decisions/queue.md#a-cluster-is-reached-by-a-plain-connection-to-one-node

import { connect as connectTcp } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect as connectTls } from 'node:tls';
import { backoffMs, type Backoff, type BufferPool } from '@shoal/core/base';
import { AbstractConnector, Redis, type RedisOptions } from 'ioredis';
import { connectPooled } from './large-replies.ts';

export interface Node {
  readonly host: string;
  readonly port: number;
}

type NodeStream = ReturnType<typeof connectTcp> | ReturnType<typeof connectTls>;
type Report = (event: string, error: Error) => void;

/** A node that does not answer in this time is passed over. */
const ANSWER_MS = 2_000;
const RETRY: Backoff = { firstMs: 50, mostMs: 1_000 };

/** A class, because ioredis wants to construct it: one connector for each connection, duplicates included. */
export function slotOwnerConnector(
  seeds: readonly Node[],
  tag: string,
  pool?: BufferPool,
): NonNullable<RedisOptions['Connector']> {
  return class extends SlotOwnerConnector {
    constructor(options: unknown) {
      super(options as RedisOptions, seeds, tag, pool);
    }
  };
}

class SlotOwnerConnector extends AbstractConnector {
  readonly #options: RedisOptions;
  readonly #seeds: readonly Node[];
  readonly #tag: string;
  readonly #pool: BufferPool | undefined;
  /** Seeds first; what nodes said of each other after them. */
  #nodes: readonly Node[];
  #asked: Redis | undefined;
  #left: unknown;

  constructor(options: RedisOptions, seeds: readonly Node[], tag: string, pool: BufferPool | undefined) {
    super(options.disconnectTimeout ?? ANSWER_MS);
    this.#options = options;
    this.#seeds = seeds;
    this.#nodes = seeds;
    this.#tag = tag;
    this.#pool = pool;
  }

  /** Never rejects unless it was told to disconnect: ioredis would not try again. */
  async connect(report: Report): Promise<NodeStream> {
    this.connecting = true;
    for (let attempt = 0; ; attempt++) {
      const owner = await this.#findOwner(report);
      if (!this.connecting) throw new Error('Connection is closed.');
      if (owner !== undefined) return this.#open(owner);
      await sleep(backoffMs(attempt, RETRY));
    }
  }

  /** Every reply that says "not here" asks for it; once for each socket is enough. */
  override disconnect(): void {
    this.#asked?.disconnect();
    if (this.stream !== undefined && this.stream === this.#left && !this.connecting) return;
    this.#left = this.stream;
    super.disconnect();
  }

  /** A node that was the owner and came back as a replica is left again. */
  override check(info: { readonly role?: string }): boolean {
    return info.role === undefined || info.role === 'master';
  }

  #open({ host, port }: Node): NodeStream {
    const { tls } = this.#options;
    const stream = tls
      ? connectTls({ ...tls, host, port })
      : this.#pool
        ? connectPooled({ host, port }, this.#pool)
        : connectTcp({ host, port });
    stream.once('error', (error: Error) => (this.firstError = error));
    this.stream = stream;
    return stream;
  }

  async #findOwner(report: Report): Promise<Node | undefined> {
    let problem = new Error('no node of the cluster says who has the keys');
    for (const node of this.#nodes) {
      if (!this.connecting) return undefined;
      try {
        const { owner, nodes } = await this.#ask(node);
        this.#nodes = unique([...this.#seeds, ...nodes]);
        if (owner !== undefined) return owner;
      } catch (error) {
        if (error instanceof Error) problem = error;
      }
    }
    if (this.connecting) report('error', problem);
    return undefined;
  }

  async #ask(node: Node): Promise<{ owner: Node | undefined; nodes: Node[] }> {
    const { username, password, tls } = this.#options;
    const asked = new Redis({
      ...node,
      retryStrategy: () => null,
      enableReadyCheck: false,
      maxRetriesPerRequest: 0,
      connectTimeout: ANSWER_MS,
      commandTimeout: ANSWER_MS,
      replyMapping: 'legacy',
      ...(username ? { username } : {}),
      ...(password ? { password } : {}),
      ...(tls ? { tls } : {}),
    });
    let fault: Error | undefined;
    asked.on('error', (error: Error) => (fault = error));
    this.#asked = asked;
    try {
      const [slot, ranges] = await Promise.all([asked.cluster('KEYSLOT', this.#tag), asked.cluster('SLOTS')]);
      return ownerIn(ranges, Number(slot), node.host);
    } catch (error) {
      throw fault ?? error; // "Connection is closed." says less
    } finally {
      this.#asked = undefined;
      asked.disconnect();
    }
  }
}

/**
 * `ranges`: the reply of CLUSTER SLOTS, a list of [first, last, [host, port, …], replicas …]; the first node is the
 * master.
 */
export function ownerIn(ranges: unknown, slot: number, askedHost: string): { owner: Node | undefined; nodes: Node[] } {
  const nodes: Node[] = [];
  let owner: Node | undefined;
  for (const range of Array.isArray(ranges) ? (ranges as unknown[]) : []) {
    const [first, last, ...members] = Array.isArray(range) ? (range as unknown[]) : [];
    const known = members.flatMap((member) => nodeIn(member, askedHost));
    nodes.push(...known);
    if (Number(first) <= slot && slot <= Number(last)) owner = known[0];
  }
  return { owner, nodes };
}

/** A node that does not know its own name says nothing or "?": it is the one that was asked. */
function nodeIn(member: unknown, askedHost: string): Node[] {
  const [host, port] = Array.isArray(member) ? (member as unknown[]) : [];
  if (typeof port !== 'number' || port === 0) return [];
  return [{ host: typeof host === 'string' && host !== '' && host !== '?' ? host : askedHost, port }];
}

function unique(nodes: readonly Node[]): Node[] {
  return [...new Map(nodes.map((node) => [`${node.host}:${node.port}`, node])).values()];
}
