// Which queues there are: looked for when somebody looks at them, one search at a time, and one that fails is made up for
// by the next.

import type { FastifyInstance } from 'fastify';
import { ShoalError } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { mainLanes, type BoardQueue } from '@shoal/queue';

export interface QueueNamesParts {
  readonly find: () => Promise<readonly BoardQueue[]>;
  /** Told what was found. */
  readonly show: (found: readonly BoardQueue[]) => void;
  readonly log: Logger;
}

/**
 * Finding queues walks over all keys of the server in small steps: at most once in so long, and a twentieth of the
 * time.
 */
const FIND_EVERY_MS = 1_000;
const FIND_SHARE = 20;

export class QueueNames {
  private readonly parts: QueueNamesParts;
  private notBeforeMs = 0;
  private search: Promise<void> | undefined;
  private names: readonly string[] = [];

  constructor(parts: QueueNamesParts) {
    this.parts = parts;
  }

  /** Looks before requests to paths that begin so are answered. */
  findWhenAsked(app: FastifyInstance, path: string): void {
    app.addHook('preHandler', async ({ url }) => {
      if (url.startsWith(path)) await this.now();
    });
  }

  /** All of them, lanes and quarantines too, as of a second ago. */
  async now(): Promise<readonly string[]> {
    if (performance.now() >= this.notBeforeMs) await (this.search ??= this.find());
    return this.names;
  }

  /** The name of a main lane that is there. Throws USAGE for another. */
  async known(queue: string): Promise<string> {
    const known = mainLanes(await this.now());
    if (known.includes(queue)) return queue;
    const there = known.length === 0 ? 'there is none' : `there are ${known.join(', ')}`;
    throw new ShoalError('USAGE', `there is no queue "${queue.slice(0, 80)}"; ${there}`);
  }

  private async find(): Promise<void> {
    const { find, show, log } = this.parts;
    const startedMs = performance.now();
    try {
      const found = await find();
      this.names = found.map(({ name }) => name);
      show(found);
    } catch (error) {
      log.debug({ err: error }, 'queues could not be looked for');
    }
    this.notBeforeMs = performance.now() + Math.max(FIND_EVERY_MS, FIND_SHARE * (performance.now() - startedMs));
    this.search = undefined;
  }
}
