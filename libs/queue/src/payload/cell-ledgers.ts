// The ledgers of parts of other cells, for an executor that runs a part of theirs now and then. A cell that does not answer in
// time is told as QUEUE_UNREACHABLE: whether a pointer was committed is not known then, so nothing that it may point to is
// removed, and whoever has the part next finds it.

import { ShoalError, keySpace } from '@shoal/contract';
import type { OtherCell } from '@shoal/core';
import { OpenCells, type OpenCellsOptions } from './open-cells.ts';
import { PartLedger, type PartLedgerOptions } from './part-ledger.ts';

export interface CellLedgersOptions
  extends Omit<PartLedgerOptions, 'redisUrl'>, Pick<OpenCellsOptions<PartLedger>, 'answerMs' | 'restMs'> {}

type AnyLedger = Pick<PartLedger, 'pointer' | 'commit' | 'enter' | 'entries' | 'entriesOf' | 'keyOf'>;

export class CellLedgers {
  private readonly options: CellLedgersOptions;
  private readonly open: OpenCells<PartLedger>;

  constructor(options: CellLedgersOptions) {
    const { answerMs, restMs, log } = options;
    this.options = options;
    this.open = new OpenCells({
      connect: ({ address: redisUrl, prefix = options.prefix }) => PartLedger.connect({ ...options, redisUrl, prefix }),
      log,
      answerMs,
      restMs,
    });
  }

  of(cell: OtherCell): AnyLedger {
    const { prefix, queue } = this.options;
    return {
      keyOf: (jobId) => keySpace(cell.prefix ?? prefix).output(queue, jobId),
      pointer: (jobId) => this.ask(cell, (ledger) => ledger.pointer(jobId)),
      commit: (part) => this.ask(cell, (ledger) => ledger.commit(part)),
      enter: (run, number, entry) => this.ask(cell, (ledger) => ledger.enter(run, number, entry)),
      entries: (run) => this.ask(cell, (ledger) => ledger.entries(run)),
      entriesOf: (run, numbers) => this.ask(cell, (ledger) => ledger.entriesOf(run, numbers)),
    };
  }

  stop(): Promise<void> {
    return this.open.stop();
  }

  private async ask<Answer>(cell: OtherCell, ask: (ledger: PartLedger) => Promise<Answer>): Promise<Answer> {
    const found = await this.open.asked(cell, ask);
    if (found !== undefined) return found.answer;
    throw new ShoalError('QUEUE_UNREACHABLE', `the cell ${cell.name} does not answer for a part of its own`);
  }
}
