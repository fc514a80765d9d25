// Connections to the lane of parts of a model, opened when a batch is first large enough to be cut into parts. With cells
// these are parts of the home cell: the lists of runs and the workers that have the folders are looked for there alone.

import { partsQueue } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { Canceller, JobProducer, liveWorkers, type AdmissionLimits } from '@shoal/queue';
import { PartLedger, closeConnection, openConnection, untilReady } from '@shoal/queue/payload';

export interface PartClientsOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly limits: Partial<AdmissionLimits>;
  readonly log: Logger;
}

/** What is asked of the lane of one model. */
export interface PartLane {
  readonly producer: Pick<JobProducer, 'add' | 'endings' | 'workers'>;
  readonly ledger: Pick<PartLedger, 'pointer' | 'entriesOf'>;
  readonly canceller: Pick<Canceller, 'cancel'>;
}

interface OpenLane {
  readonly producer: JobProducer;
  readonly ledger: PartLedger;
  readonly canceller: Canceller;
}

export class PartClients {
  private readonly options: PartClientsOptions;
  private readonly opened = new Map<string, Promise<OpenLane>>();

  constructor(options: PartClientsOptions) {
    this.options = options;
  }

  /** Whether somebody takes parts of this model: a lane without workers is not entered among the queues. QUEUE_UNREACHABLE. */
  async isServed(model: string): Promise<boolean> {
    const { redisUrl: url, prefix } = this.options;
    const connection = openConnection({ url, prefix, name: 'shoal-parts' });
    try {
      await untilReady(connection, url);
      return (await liveWorkers(connection, partsQueue(model), prefix)).length > 0;
    } finally {
      await closeConnection(connection);
    }
  }

  /** Rejects with QUEUE_UNREACHABLE; asked again, it is tried again. */
  laneOf(model: string): Promise<PartLane> {
    const known = this.opened.get(model);
    if (known !== undefined) return known;
    const opening = this.open(partsQueue(model));
    this.opened.set(model, opening);
    opening.catch(() => this.opened.delete(model));
    return opening;
  }

  async close(): Promise<void> {
    const lanes = await Promise.all([...this.opened.values()].map((one) => one.catch(() => undefined)));
    await Promise.all(lanes.map((lane) => lane && closeLane(lane)));
  }

  private async open(queue: string): Promise<OpenLane> {
    const { limits, ...place } = this.options;
    const lane: Partial<{ -readonly [Key in keyof OpenLane]: OpenLane[Key] }> = {};
    try {
      lane.producer = await JobProducer.connect({ ...place, queue, limits });
      lane.ledger = await PartLedger.connect({ ...place, queue });
      lane.canceller = await Canceller.connect({ ...place, queue });
      return lane as OpenLane;
    } catch (error) {
      await closeLane(lane);
      throw error;
    }
  }
}

async function closeLane({ producer, ledger, canceller }: Partial<OpenLane>): Promise<void> {
  await Promise.all([producer?.close(), ledger?.stop(), canceller?.close()]);
}
