// What calls need of a queue, whether it is on one queue server or spread over cells; and the opening of it.

import { randomUUID } from 'node:crypto';
import type { ServingWorker, Waiting, CancelResult } from '@shoal/queue';
import type { Trace } from '@shoal/contract';
import { CellLines } from './cells/cell-lines.ts';
import type { ClientOptions } from './embedding.ts';
import type { Placing } from './job-request.ts';
import type { OpenJobs } from './open-jobs.ts';
import { QueueLine, type LineLimits, type LineTerms } from './queue-line.ts';
import type { NewRequest } from './request-record.ts';
import type { SubmittedLine } from './submitted.ts';

/** An id as callers write it, taken apart. */
export interface PlacedId {
  readonly id: string;
  /** The cell that it names. Undefined: none, or there are no cells. */
  readonly cell?: string | undefined;
}

export interface Line {
  readonly jobs: Pick<OpenJobs, 'abandon' | 'ask' | 'counts' | 'letGo' | 'release'>;
  readonly terms: LineLimits;
  readonly isClosed: boolean;
  readonly replyChannel: string;
  /** Jobs that a call has under way at a time where its caller does not say: so many for each cell that takes new work. */
  readonly usualInFlightJobs: number;
  /** Throws CELL_UNKNOWN for an id of a cell that is not in the list. */
  placeOf(id: string): PlacedId;
  /** As `submit` of submitted.ts; resolves with the name of the cell that has it, where there are cells. */
  submit(request: NewRequest, placing: Placing, signal: AbortSignal | undefined): Promise<string | undefined>;
  /**
   * Where a request is that was submitted; any place where it is nowhere. Throws CELL_UNKNOWN, and QUEUE_UNREACHABLE
   * where a cell that may have it is away.
   */
  find(requestId: string, cell: string | undefined): Promise<{ readonly line: SubmittedLine; readonly cell?: string }>;
  cancelRequests(requestIds: readonly string[]): Promise<CancelResult[]>;
  returnValues(jobIds: readonly string[]): Promise<(string | undefined)[]>;
  workers(): Promise<readonly ServingWorker[] | undefined>;
  readable(trace: Trace | undefined): Promise<Trace | undefined>;
  /** Rows of a job that all workers that claim take, as of some seconds ago. Never rejects. */
  mostJobRows(): Promise<number>;
  whyWaiting(): Promise<Waiting>;
  close(): Promise<void>;
}

/** Throws QUEUE_UNREACHABLE where no server answers, and CONFIG_INVALID. */
export function openLine(options: ClientOptions, terms: LineTerms): Promise<Line> {
  return options.cells === undefined ? QueueLine.open(options, terms) : CellLines.open(options, terms);
}

/** An id that a caller gave, or one made here, and what is known of where it may be. Throws CELL_UNKNOWN. */
export function placed(
  line: Pick<Line, 'placeOf'>,
  given: string | undefined,
): { readonly id: string; readonly placing: Placing } {
  if (given === undefined) return { id: randomUUID(), placing: { isNew: true } };
  const { id, cell } = line.placeOf(given);
  return { id, placing: { isNew: false, cell } };
}
