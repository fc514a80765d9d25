// One look at every cell for the fleet page: whether it answers, what waits there and who serves it. A cell that is away
// is told as such; the page is about the home cell otherwise.

import { homeCell, readCells, type Logger } from '@shoal/core';
import { FleetSurvey, PerCell, type FleetSurveyed } from '@shoal/queue';

export interface CellReading {
  readonly name: string;
  readonly isHome: boolean;
  /** Whether it takes new work. */
  readonly write: boolean;
  /** Undefined where it does not answer. */
  readonly seen:
    | {
        readonly waiting: number;
        readonly active: number;
        readonly failed: number;
        readonly workers: number;
        readonly oldestMs: number;
      }
    | undefined;
}

export interface CellsReaderOptions {
  /** As the setting. */
  readonly cells: string;
  readonly redisUrl: string;
  readonly prefix: string;
  readonly log: Logger;
}

/** Who takes longer does not answer. */
const ANSWER_MS = 1_500;

export class CellsReader {
  private readonly surveys: PerCell<FleetSurvey>;
  private readonly home: string;

  /** Throws CONFIG_INVALID. */
  constructor({ cells, redisUrl, prefix, log }: CellsReaderOptions) {
    this.home = homeCell(readCells(cells), redisUrl, prefix).name;
    this.surveys = new PerCell({ cells, log }, ({ address, prefix: own = prefix }) =>
      FleetSurvey.open({ redisUrl: address, prefix: own, log }),
    );
  }

  /** Never rejects. */
  read(): Promise<readonly CellReading[]> {
    return Promise.all(
      this.surveys.all.map(async ({ cell: { name, write = true }, part }) => {
        const surveyed = await inTime(part.read());
        return { name, isHome: name === this.home, write, seen: surveyed && seenIn(surveyed) };
      }),
    );
  }

  async close(): Promise<void> {
    await this.surveys.close();
  }
}

function seenIn({ queues }: FleetSurveyed): CellReading['seen'] {
  const sum = (of: (queue: FleetSurveyed['queues'][number]) => number): number =>
    queues.reduce((total, queue) => total + of(queue), 0);
  return {
    waiting: sum(({ waiting }) => waiting.interactive + waiting.bulk),
    active: sum(({ jobs }) => jobs.active),
    failed: sum(({ jobs }) => jobs.failed),
    workers: new Set(queues.flatMap(({ live }) => live.map(({ workerId }) => workerId))).size,
    oldestMs: Math.max(
      0,
      ...queues.flatMap(({ oldestWaitingMs }) => [oldestWaitingMs.interactive, oldestWaitingMs.bulk]),
    ),
  };
}

async function inTime(reading: Promise<FleetSurveyed>): Promise<FleetSurveyed | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => (timer = setTimeout(resolve, ANSWER_MS, undefined)));
  return Promise.race([reading.catch(() => undefined), late]).finally(() => clearTimeout(timer));
}
