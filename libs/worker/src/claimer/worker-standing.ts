// Knows in which state this worker is and since when; core's worker-state.ts has the words. What it goes by is told by
// whoever looks at the fleet, by the meter, and by whoever ends the worker.

import { standingOf, type LoadMeter, type WorkerFacts, type WorkerStanding } from '@shoal/core';

export interface StandingTracks {
  readonly meter: Pick<LoadMeter, 'hasExecutor' | 'lastLoss' | 'brake' | 'load'>;
  /** Epoch ms by the server's clock. */
  readonly serverNowMs: () => number;
}

export class Standing {
  private readonly parts: StandingTracks;
  private last: (WorkerStanding & { readonly sinceMs: number }) | undefined;
  isDrained = false;
  isPaused = false;
  isStopping = false;

  constructor(parts: StandingTracks) {
    this.parts = parts;
  }

  told(): NonNullable<WorkerFacts['standing']> {
    const { meter, serverNowMs } = this.parts;
    const { isDrained, isPaused, isStopping } = this;
    const standing = standingOf({
      notReady: meter.hasExecutor ? undefined : notReady(meter.lastLoss),
      isStopping,
      isDrained,
      claims: meter.load().claims,
      isPaused,
      brake: meter.brake,
    });
    const sinceMs = this.last?.state === standing.state ? this.last.sinceMs : Math.round(serverNowMs());
    this.last = { ...standing, sinceMs };
    return this.last;
  }
}

function notReady(loss: string | undefined): string {
  return loss === undefined ? 'its executor is starting' : `its executor was lost (${loss}), the next is starting`;
}
