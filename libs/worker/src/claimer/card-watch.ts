// What the driver says now and then of the card that a worker runs on, for people who look at the fleet. Nothing is
// decided by it; a card that tells nothing, and a device that is no card, are told of as nothing.

import type { CardFacts, Logger } from '@shoal/core';
import type { DeviceReading, DevicesRead } from '@shoal/ops';

export interface CardWatchOptions {
  /** Index, UUID or MIG id, as nvidia-smi knows it; undefined: no card. */
  readonly card: string | undefined;
  readonly log: Logger;
  /** For tests. Default: nvidia-smi. */
  readonly read?: (card: string) => Promise<DevicesRead>;
  readonly everyMs?: number;
}

/** A run of the tool takes 20 ms of the machine's time. */
const EVERY_MS = 10_000;

export class CardWatch {
  private readonly options: CardWatchOptions;
  private timer: NodeJS.Timeout | undefined;
  private reading: Promise<void> | undefined;
  private last: CardFacts | undefined;

  private constructor(options: CardWatchOptions) {
    this.options = options;
  }

  static start(options: CardWatchOptions): CardWatch {
    const watch = new CardWatch(options);
    if (options.card === undefined) return watch;
    const { everyMs = EVERY_MS } = options;
    watch.timer = setInterval(() => watch.look(), everyMs);
    watch.timer.unref();
    watch.look();
    return watch;
  }

  /** As of the last look; undefined where nothing is known. */
  facts(): CardFacts | undefined {
    return this.last;
  }

  /** Safe to call twice. */
  async stop(): Promise<void> {
    clearInterval(this.timer);
    await this.reading;
  }

  private look(): void {
    this.reading ??= this.read().finally(() => (this.reading = undefined));
  }

  private async read(): Promise<void> {
    const { card, log, read = readCard } = this.options;
    try {
      const found = await read(card ?? '');
      this.last = found.ok && found.devices[0] !== undefined ? factsOf(found.devices[0]) : undefined;
    } catch (error) {
      log.debug({ err: error }, 'the card could not be looked at');
    }
  }
}

/** Loaded only where there is a card. */
async function readCard(card: string): Promise<DevicesRead> {
  const { cardReader } = await import('@shoal/ops');
  return cardReader(card)();
}

function factsOf(reading: DeviceReading): CardFacts {
  const { name, uuid, totalBytes, usedBytes, utilization, temperatureCelsius, powerWatts } = reading;
  return { name, uuid, totalBytes, usedBytes, utilization, temperatureCelsius, powerWatts };
}
