// What happened in a run over cells, written down and judged: each cell by what its own server tells and by what was done
// to it alone, so that nothing that another one forgot excuses it; and requests, which lie in some cell, by their callers.

import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { keySpace, mainQueue } from '@shoal/contract';
import { HistoryWriter, Recorder, sharedClockMs } from '@shoal/world';
import { FORGOTTEN_MS } from './faults.ts';
import { judgeHistory, type Judged } from './judge-history.ts';
import { MODEL } from './load.ts';
import { connectRaw } from './producer-parts.ts';
import { QueueWitness } from './queue-witness.ts';

interface Side {
  readonly folder: string;
  readonly faults: Recorder;
}

export class CellsHistory {
  private readonly folder: string;
  private readonly mayForget: boolean;
  private readonly requests: Side;
  private readonly cells: (Side & { readonly witness: QueueWitness })[] = [];

  /** `mayForget`: whether a server that is killed may forget what it acknowledged. */
  constructor(folder: string, mayForget: boolean) {
    this.folder = folder;
    this.mayForget = mayForget;
    this.requests = this.open('requests');
  }

  /** Reads from now on what this cell's server tells. */
  async watch({ name, url }: { readonly name: string; readonly url: string }): Promise<void> {
    const side = this.open(name);
    const recorder = new Recorder(name, new HistoryWriter(join(side.folder, 'server.jsonl')));
    const queue = keySpace().job(mainQueue(MODEL), '').slice(0, -1);
    const witness = new QueueWitness(await connectRaw(url), queue, recorder);
    witness.start();
    this.cells.push({ ...side, witness });
  }

  /** Of one process that calls. */
  caller(name: string): Recorder {
    return new Recorder(name, new HistoryWriter(join(this.requests.folder, `${name}.jsonl`)));
  }

  /** Something is broken from now until what is returned is called; of one cell, or of all. */
  fault(kind: string, cell: number | undefined): () => void {
    const ends = this.sidesOf(cell).map(({ faults }) => faults.invoke('fault', '', { outcome: kind }));
    return () => {
      for (const end of ends) end('ok');
    };
  }

  /** A cell was killed, and may have forgotten what it acknowledged last; or everything. */
  forgets(cell: number, what: 'last' | 'all'): void {
    if (!this.mayForget) return;
    const since = what === 'all' ? 0 : sharedClockMs() - FORGOTTEN_MS;
    for (const { faults } of this.sidesOf(cell)) faults.observe('forget', '', { since });
  }

  /** Nothing is to be expected any more, and all servers are there. */
  async judge(settleMs: number): Promise<Omit<Judged, 'unfinished'> & { readonly gaps: number }> {
    await Promise.all(this.cells.map(({ witness }) => witness.stop()));
    const sides = [this.requests, ...this.cells];
    for (const { faults } of sides) faults.observe('rest', '');
    const judged = sides.map(({ folder }) => judgeHistory(folder, { settleMs }));
    const sum = (key: 'events' | 'ids' | 'violations' | 'undecided' | 'tookMs'): number =>
      judged.reduce((total, one) => total + one[key], 0);
    return {
      events: sum('events'),
      ids: sum('ids'),
      violations: sum('violations'),
      undecided: sum('undecided'),
      gaps: this.cells.reduce((total, { witness }) => total + witness.gaps, 0),
      tookMs: sum('tookMs'),
    };
  }

  private sidesOf(cell: number | undefined): readonly Side[] {
    return [this.requests, ...(cell === undefined ? this.cells : [this.cells[cell]!])];
  }

  private open(name: string): Side {
    const folder = join(this.folder, name);
    mkdirSync(folder, { recursive: true });
    return { folder, faults: new Recorder('run', new HistoryWriter(join(folder, 'run.jsonl'))) };
  }
}
