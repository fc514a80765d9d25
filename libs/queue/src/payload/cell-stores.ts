// Payload stores of other cells, for an executor that runs jobs of theirs now and then. A job that cannot be read or written
// in time is left to its own cell, whose lease for it runs out.

import { ShoalError } from '@shoal/contract';
import type { CommitRequest, CommitResult, InputRead, OtherCell, PayloadStore, WantedPayload } from '@shoal/core';
import { OpenCells, type OpenCellsOptions } from './open-cells.ts';
import { RedisPayloadStore, type PayloadStoreOptions } from './payload-store.ts';

export interface CellStoresOptions
  extends Omit<PayloadStoreOptions, 'redisUrl'>, Pick<OpenCellsOptions<RedisPayloadStore>, 'answerMs' | 'restMs'> {}

type ReadsAndCommits = Pick<PayloadStore, 'read' | 'commit'>;

export class CellStores {
  private readonly open: OpenCells<RedisPayloadStore>;

  constructor({ answerMs, restMs, ...options }: CellStoresOptions) {
    this.open = new OpenCells({
      connect: ({ address: redisUrl, prefix = options.prefix }) =>
        RedisPayloadStore.connect({ ...options, redisUrl, prefix, keepsPayloads: true }),
      log: options.log,
      answerMs,
      restMs,
    });
  }

  of(cell: OtherCell): ReadsAndCommits {
    return {
      read: (jobs) => this.read(cell, jobs),
      commit: (requests, options) => this.commit(cell, requests, options),
    };
  }

  stop(): Promise<void> {
    return this.open.stop();
  }

  private async read(cell: OtherCell, jobs: readonly WantedPayload[]): Promise<readonly InputRead[]> {
    const found = await this.open.asked(cell, (store) => store.read(jobs));
    if (found !== undefined) return found.answer;
    throw new ShoalError('QUEUE_UNREACHABLE', `the cell ${cell.name} does not give the inputs of its jobs`);
  }

  /** What is written is a copy: an answer that is not waited for any more may still be on its way. */
  private async commit(
    cell: OtherCell,
    requests: readonly CommitRequest[],
    options: { readonly isUrgent?: boolean } | undefined,
  ): Promise<readonly CommitResult[]> {
    const copies = requests.map((request) => ({ ...request, result: Buffer.from(request.result) }));
    const found = await this.open.asked(cell, (store) => store.commit(copies, options));
    return found?.answer ?? requests.map(() => 'lease-lost');
  }
}
