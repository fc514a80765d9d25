// For tests: a queue server with a connection, and for each test a prefix of its own, with what the test opened there.

import { noLog, type WorkerFacts } from '@shoal/core';
import { Queue } from '../bullmq/package.ts';
import type { LaneDepth } from '../lanes/fleet.ts';
import { WorkerPresence, type PresenceOptions } from '../lanes/worker-presence.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import type { TestServer } from '../testing.ts';

/** What a worker of 0.1.0 tells. */
export const WORKER_FACTS: WorkerFacts = {
  device: 'cuda:0',
  precision: 'fp16',
  model: 'x@1',
  host: 'h',
  pid: 7,
  lanes: ['main'],
  isDrained: false,
  rates: { short: 1_000 },
  mix: { short: 1 },
  claims: 2,
  poolTokens: 300,
  tokensPerJob: 640,
};

/** A lane in which nothing is. */
export function emptyLane(queue: string): LaneDepth {
  return {
    queue,
    isPaused: false,
    waiting: 0,
    active: 0,
    delayed: 0,
    parked: {},
    handedOver: 0,
    failed: 0,
    cancelled: 0,
    oldestMs: 0,
    oldestWaitingMs: { interactive: 0, bulk: 0 },
  };
}

export class TestPlace {
  readonly server: TestServer;
  readonly connection: Redis;
  private readonly name: string;
  private readonly opened: { close(): Promise<unknown> }[] = [];
  private tests = 1;

  /** `name`: of the test file, for its prefixes. The server is stopped with it. */
  constructor(server: TestServer, name: string) {
    this.server = server;
    this.name = name;
    this.connection = openConnection({ url: server.url, name: 'test' });
  }

  /** Of this test. */
  get prefix(): string {
    return `{t-${this.name}-${this.tests}}`;
  }

  /** What everything that connects is told. */
  get address(): { readonly redisUrl: string; readonly prefix: string } {
    return { redisUrl: this.server.url, prefix: this.prefix };
  }

  /** A queue as plain BullMQ opens it. */
  queue(name: string): Queue {
    return this.keep(new Queue(name, { prefix: this.prefix, connection: this.connection }));
  }

  /** A worker that tells of itself, as one of 0.1.0 does unless `more` says otherwise, and claims nothing. */
  async show(queue: string, workerId: string, more: Partial<PresenceOptions> = {}): Promise<WorkerPresence> {
    const options = { ...this.address, queue, workerId, facts: () => WORKER_FACTS, log: noLog, ...more };
    const presence = await WorkerPresence.connect(options);
    this.keep({ close: () => presence.stop() });
    await presence.start();
    return presence;
  }

  /** Is closed with the test. */
  keep<One extends { close(): Promise<unknown> }>(one: One): One {
    this.opened.push(one);
    return one;
  }

  /** After each test: closes what it opened, the last first; the next one has another prefix. */
  async clear(): Promise<void> {
    for (const one of this.opened.splice(0).toReversed()) await one.close();
    this.tests++;
  }

  async stop(): Promise<void> {
    await closeConnection(this.connection);
    await this.server.stop();
  }
}
