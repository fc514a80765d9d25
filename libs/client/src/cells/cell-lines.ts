// A queue that is spread over cells, as calls see it: which cell gets a job, where a request is, what is known of all of
// them together. The list may change while it is open: a cell that comes is opened, one that leaves is closed once
// nothing is open there.
//
// Why: docs/decisions/cells.md

import { randomUUID } from 'node:crypto';
import {
  DEFAULT_PREFIX,
  ROWS_EVERY_WORKER_TAKES,
  ShoalError,
  isShoalError,
  keySpace,
  type Trace,
} from '@shoal/contract';
import { placeOfCell, type Cell } from '@shoal/core';
import { CellList, chooseCell, sameCells, type CancelResult, type ServingWorker, type Waiting } from '@shoal/queue';
import type { ClientCounts, ClientOptions } from '../embedding.ts';
import { announcedOn, closedError, type JobRequest, type Placing, type RowsRequest } from '../job-request.ts';
import type { PlacedId } from '../line.ts';
import { IN_FLIGHT_JOBS, QueueLine, type LineLimits, type LineTerms } from '../queue-line.ts';
import { recordedIds, type NewRequest } from '../request-record.ts';
import type { SubmittedLine } from '../submitted.ts';
import { CellJobs, isAway } from './cell-jobs.ts';
import { CellLine, answerWithin } from './cell-line.ts';
import { IdsLookedFor } from './ids-looked-for.ts';

/** Between two looks at each cell. */
const LOOK_EVERY_MS = 500;
/** How long others are waited for at the start once one cell has answered. */
const START_MS = 2_000;
/**
 * So many new jobs behind each other go to one cell, at most a share of what is open there: what is added in one turn of the
 * event loop is one call of a script for each cell, and a few jobs spread over all of them are a call for each job.
 */
const RUN = { jobs: 16, share: 1 / 8 };
/** Of a call over any number of cells: it holds the rows of so many jobs in memory. */
const MOST_IN_FLIGHT_JOBS = 256;
/** How long a cell may take for any answer. */
const AWAY_AFTER_MS = 1_000;

export class CellLines {
  readonly jobs: CellJobs & { counts(): ClientCounts };
  readonly terms: LineLimits;
  readonly replyChannel: string;
  isClosed = false;
  private readonly list: CellList;
  private readonly awayAfterMs: number;
  private readonly open: (cell: Cell) => CellLine;
  private lines: readonly CellLine[];
  private leaving: readonly CellLine[] = [];
  private readonly looks: NodeJS.Timeout;
  private readonly lookedFor = new IdsLookedFor((jobIds) => this.cellsOf(jobIds));
  private readonly submitting = new Set<{ readonly cell: CellLine; readonly moveOn: () => void }>();
  /** Of jobs in cells that left. */
  private left: ClientCounts | undefined;
  /** Where the next new jobs go. */
  private run: { readonly cell: CellLine; left: number } | undefined;

  private constructor(list: CellList, options: ClientOptions, terms: LineTerms & { readonly replyName: string }) {
    const { prefix = DEFAULT_PREFIX, log, giveUpAfterMs = 60_000, whenFull = 'wait', onHeldBack, onWaiting } = options;
    this.list = list;
    this.awayAfterMs = options.cellAwayAfterMs ?? AWAY_AFTER_MS;
    this.terms = { giveUpAfterMs, whenFull, onHeldBack };
    this.replyChannel = keySpace(prefix).reply(terms.replyName);
    this.open = (cell) =>
      new CellLine(cell, {
        log,
        awayAfterMs: this.awayAfterMs,
        onAway: (line) => this.moveOn(line),
        open: ({ name, address, prefix: own = prefix }) =>
          QueueLine.open(
            {
              ...options,
              redisUrl: address,
              prefix: own,
              connection: undefined,
              cells: undefined,
              ...(onWaiting && { onWaiting: (waiting) => onWaiting(waiting && inCell(name, waiting)) }),
            },
            terms,
          ),
      });
    this.lines = list.cells.map(this.open);
    this.jobs = Object.assign(
      new CellJobs({
        place: (request, tried) => this.place(request, tried),
        hasOther: (request, tried) => this.candidates(request.placing, tried).length > 0,
      }),
      { counts: () => this.counts() },
    );
    list.onChange((cells) => {
      this.changed(cells);
      void tellSame(cells, options);
    });
    this.looks = setInterval(() => this.look(), LOOK_EVERY_MS);
  }

  /** Resolves once a cell answers. Throws what is wrong with the first where none does, and CONFIG_INVALID. */
  static async open(options: ClientOptions, terms: LineTerms): Promise<CellLines> {
    const { cells = [], log } = options;
    const replyName = terms.replyName ?? `${terms.name}-${randomUUID()}`;
    const lines = new CellLines(new CellList({ cells, log }), options, { ...terms, replyName });
    const looks = lines.lines.map((line) => line.look());
    const twice = sameCells(lines.list.cells, options.prefix ?? DEFAULT_PREFIX);
    await Promise.race([Promise.all(looks), lines.someAnswer(looks).then(() => answerWithin(START_MS, allOf(looks)))]);
    const problems = lines.lines.flatMap(({ problem }) => problem ?? []);
    const invalid = problems.find((problem) => isShoalError(problem, 'CONFIG_INVALID'));
    const same = await twice;
    if (invalid === undefined && same.length === 0 && lines.lines.some(({ isReachable }) => isReachable)) return lines;
    await lines.close();
    throw invalid ?? (same.length > 0 ? new ShoalError('CONFIG_INVALID', `cells: ${same.join('; ')}`) : problems[0]);
  }

  get usualInFlightJobs(): number {
    const taking = this.lines.filter(({ takesWork }) => takesWork).length;
    return Math.min(MOST_IN_FLIGHT_JOBS, IN_FLIGHT_JOBS * Math.max(1, taking));
  }

  /** An id of a cell ends with `@` and its name; nothing else of it may have an `@`. */
  placeOf(id: string): PlacedId {
    const at = id.lastIndexOf('@');
    if (at < 0) return { id };
    const cell = id.slice(at + 1);
    if (this.lines.every(({ name }) => name !== cell)) throw cellUnknown(id, cell, this.lines);
    return { id: id.slice(0, at), cell };
  }

  async submit(request: NewRequest, placing: Placing, signal: AbortSignal | undefined): Promise<string> {
    const tried = new Map<string, unknown>();
    for (;;) {
      const known = placing.isNew || placing.cell !== undefined ? undefined : await this.cellWith(request.requestId);
      const choose = (): CellLine => this.choose(request.requestId, placing, tried);
      const cell = known ?? (await this.chosen(placing, tried, choose));
      try {
        return await this.submitTo(cell, request, { signal, isPinned: (known?.name ?? placing.cell) === cell.name });
      } catch (error) {
        tried.set(cell.name, error);
        const isElsewhere = isShoalError(error, 'QUEUE_UNREACHABLE') || isShoalError(error, 'ADMISSION_REFUSED');
        if (!isElsewhere || known !== undefined || this.candidates(placing, tried).length === 0) throw error;
      }
    }
  }

  async find(
    requestId: string,
    cell: string | undefined,
  ): Promise<{ readonly line: SubmittedLine; readonly cell?: string }> {
    if (cell !== undefined) {
      const named = this.lines.find(({ name }) => name === cell);
      if (named === undefined) throw cellUnknown(requestId, cell, this.lines);
      if (named.line === undefined || !named.isReachable) throw isAway(cell);
      return { line: named.line, cell };
    }
    const found = await this.cellWith(requestId);
    if (found?.line !== undefined) return { line: found.line, cell: found.name };
    const away = this.lines.find(({ isReachable }) => !isReachable);
    if (away !== undefined) throw isAway(away.name); // it may be there
    return { line: this.lines[0]!.line! };
  }

  /** Ids may name their cells. Throws CELL_UNKNOWN, and QUEUE_UNREACHABLE where a cell is away that may have one. */
  async cancelRequests(requestIds: readonly string[]): Promise<CancelResult[]> {
    const placed = requestIds.map((requestId) => {
      const tenant = requestId.slice(0, requestId.indexOf('~') + 1);
      const { id, cell } = this.placeOf(requestId.slice(tenant.length));
      return { requestId: `${tenant}${id}`, cell };
    });
    const all = await Promise.all(
      this.lines.map(async ({ name, line, isReachable }) => {
        const ids = placed.flatMap(({ requestId, cell }) => (cell === undefined || cell === name ? [requestId] : []));
        if (ids.length === 0) return [];
        return isReachable && line !== undefined ? line.cancelRequests(ids) : isAway(name);
      }),
    );
    const results = all.flatMap((one) => (one instanceof ShoalError ? [] : one));
    const away = all.find((one) => one instanceof ShoalError);
    if (away !== undefined && results.every(({ outcome }) => outcome === 'unknown')) throw away;
    return results;
  }

  returnValues(jobIds: readonly string[]): Promise<(string | undefined)[]> {
    return this.jobs.returnValues(jobIds);
  }

  async workers(): Promise<readonly ServingWorker[] | undefined> {
    const found = await Promise.all(this.reachable().map(({ line }) => line?.workers()));
    return found.every((some) => some === undefined) ? undefined : found.flatMap((some) => some ?? []);
  }

  async readable(trace: Trace | undefined): Promise<Trace | undefined> {
    if (trace === undefined) return undefined;
    const read = await Promise.all(this.reachable().map(({ line }) => line?.readable(trace)));
    return read.every((one) => one !== undefined) ? trace : undefined;
  }

  /** What a job may have wherever it is placed: new work passes by a cell in which nobody claims. */
  async mostJobRows(): Promise<number> {
    const taken = await Promise.all(this.reachable().map(({ line }) => line?.takenRows()));
    const most = taken.flatMap((rows) => rows ?? []);
    return most.length === 0 ? ROWS_EVERY_WORKER_TAKES : Math.min(...most);
  }

  /** Of the cell in which most is open; of one that is away first. */
  async whyWaiting(): Promise<Waiting> {
    const busy = [...this.lines, ...this.leaving].flatMap(({ name, line, isReachable }) =>
      line === undefined ? [] : [{ name, line, isReachable, open: line.jobs.standing().open }],
    );
    const [most] = busy.toSorted(
      (a, b) => Number(b.open > 0 && !b.isReachable) - Number(a.open > 0 && !a.isReachable) || b.open - a.open,
    );
    if (most === undefined) throw isAway(this.lines[0]?.name ?? '');
    return inCell(most.name, await most.line.whyWaiting());
  }

  async close(): Promise<void> {
    this.isClosed = true;
    clearInterval(this.looks);
    this.list.close();
    this.jobs.close();
    await Promise.all([...this.lines, ...this.leaving].map((line) => line.close()));
  }

  // ---- which cell -----------------------------------------------------------------------------------------------

  private async place(request: JobRequest, tried: ReadonlyMap<string, unknown>): Promise<CellLine> {
    const { jobId, placing } = request;
    const open = this.jobs.cellOf(jobId);
    if (open !== undefined && !tried.has(open.name)) return open;
    if (placing?.isNew !== true && placing?.cell === undefined) {
      const found = await this.lookedFor.find(jobId);
      if (found !== undefined && !tried.has(found.name)) return found;
      const meanwhile = this.jobs.cellOf(jobId);
      if (meanwhile !== undefined && !tried.has(meanwhile.name)) return meanwhile;
    }
    return this.chosen(placing, tried, () =>
      placing?.isNew === true && tried.size === 0 ? this.chooseNew(jobId, placing) : this.choose(jobId, placing, tried),
    );
  }

  /** Where only cells that the list has had for a moment could be chosen, their first answer is waited for. */
  private async chosen(
    placing: Placing | undefined,
    tried: ReadonlyMap<string, unknown>,
    choose: () => CellLine,
  ): Promise<CellLine> {
    try {
      return choose();
    } catch (error) {
      const opening = this.listed(placing, tried).filter(({ line }) => line === undefined);
      if (this.isClosed || opening.length === 0) throw error;
      await answerWithin(START_MS, Promise.race(opening.map((line) => line.look())));
      return choose();
    }
  }

  private chooseNew(jobId: string, placing: Placing): CellLine {
    const { run } = this;
    if (run !== undefined && run.left > 0 && this.candidates(placing, new Map()).includes(run.cell)) {
      run.left--;
      return run.cell;
    }
    const cell = this.choose(jobId, placing, new Map());
    this.run = { cell, left: Math.min(RUN.jobs, Math.floor(cell.load.open * RUN.share)) - 1 };
    return cell;
  }

  /** Cells that answer and may be asked. */
  private candidates(placing: Placing | undefined, tried: ReadonlyMap<string, unknown>): CellLine[] {
    const { cell } = placing ?? {};
    return this.reachable().filter(
      (line) => !tried.has(line.name) && (cell === undefined ? line.takesWork : line.name === cell),
    );
  }

  /** Cells that may be asked, whether they answer or not. */
  private listed(placing: Placing | undefined, tried: ReadonlyMap<string, unknown>): CellLine[] {
    const { cell } = placing ?? {};
    return this.lines.filter(
      (line) => !tried.has(line.name) && (cell === undefined ? line.cell.write !== false : line.name === cell),
    );
  }

  /** Where none answers, one that may come back: its jobs wait for it. */
  private choose(id: string, placing: Placing | undefined, tried: ReadonlyMap<string, unknown>): CellLine {
    if (this.isClosed) throw closedError();
    const answering = this.candidates(placing, tried);
    const { cell } = placing ?? {};
    const from =
      answering.length > 0 ? answering : this.listed(placing, tried).filter(({ line }) => line !== undefined);
    const name = chooseCell(
      from.map(({ load }) => load),
      id,
    );
    const chosen = from.find((line) => line.name === name);
    if (chosen !== undefined) return chosen;
    throw [...tried.values()].at(-1) ?? isAway(cell ?? this.lines.map((line) => line.name).join('", "'));
  }

  /** The cell that has each of these ids, if any that answers does. */
  private async cellsOf(jobIds: readonly string[]): Promise<(CellLine | undefined)[]> {
    const asked = this.reachable();
    const has = await Promise.all(
      asked.map(({ line }) => line && answerWithin(this.awayAfterMs, line.producer.known(jobIds))),
    );
    return jobIds.map((_, at) => asked.find((__, which) => has[which]?.[at] === true));
  }

  /** The cell that has the record of a request; of several one that has all of its jobs, or their results. */
  private async cellWith(requestId: string): Promise<CellLine | undefined> {
    const found = await Promise.all(
      this.reachable().map(async (cell) => {
        const text = await answerWithin(this.awayAfterMs, cell.line!.producer.records.read(requestId));
        return text === undefined ? [] : [{ cell, jobIds: recordedIds(text) }];
      }),
    );
    const [only, ...others] = found.flat();
    if (others.length === 0 || only === undefined) return only?.cell;
    const whole = await Promise.all(
      [only, ...others].map(async ({ cell, jobIds }) => {
        const has = await answerWithin(this.awayAfterMs, cell.line!.producer.known(jobIds));
        return has?.every(Boolean) === true ? [cell] : [];
      }),
    );
    return whole.flat()[0] ?? only.cell;
  }

  private reachable(): CellLine[] {
    return this.lines.filter(({ isReachable }) => isReachable);
  }

  // ---- submitting -----------------------------------------------------------------------------------------------

  /** Whole to one cell. Where that does not answer, and it may go elsewhere, it is left there to be taken back. */
  private async submitTo(
    cell: CellLine,
    request: NewRequest,
    { signal, isPinned }: { readonly signal: AbortSignal | undefined; readonly isPinned: boolean },
  ): Promise<string> {
    if (cell.line === undefined) throw isAway(cell.name);
    cell.wasSent(request.requests.length);
    const moving = new AbortController();
    const away = Promise.withResolvers<never>();
    away.promise.catch(() => undefined);
    const moveOn = (): void => {
      away.reject(isAway(cell.name));
      moving.abort();
    };
    const one = { cell, moveOn };
    if (!isPinned) this.submitting.add(one);
    const work = cell.line.submit(
      repliedIn(cell.line, request),
      undefined,
      signal === undefined ? moving.signal : AbortSignal.any([signal, moving.signal]),
    );
    work.catch(() => undefined);
    try {
      await Promise.race([work, away.promise]);
      return cell.name;
    } finally {
      this.submitting.delete(one);
    }
  }

  // ---- the cells ------------------------------------------------------------------------------------------------

  private moveOn(cell: CellLine): void {
    this.jobs.moveOn(cell);
    if (this.reachable().some((other) => other.takesWork))
      for (const one of this.submitting) if (one.cell === cell) one.moveOn();
  }

  private look(): void {
    for (const line of [...this.lines, ...this.leaving]) void line.look();
    const idle = this.leaving.filter((line) => line.line === undefined || line.isIdle);
    if (idle.length === 0) return;
    this.leaving = this.leaving.filter((line) => !idle.includes(line));
    for (const line of idle) {
      this.left = sum([this.left, line.line?.jobs.counts()]);
      void line.close();
    }
  }

  private changed(cells: readonly Cell[]): void {
    const before = this.lines;
    this.lines = cells.map((cell) => {
      const same = before.find((line) => placeOfCell(line.cell) === placeOfCell(cell));
      if (same !== undefined) same.cell = cell;
      return same ?? this.open(cell);
    });
    this.leaving = [...this.leaving, ...before.filter((line) => !this.lines.includes(line))];
    this.look();
  }

  /** Resolves when one of them answers; never, where none does. */
  private async someAnswer(looks: readonly Promise<void>[]): Promise<void> {
    await Promise.any(
      looks.map((look, at) =>
        look.then(() => {
          if (this.lines[at]?.isReachable !== true) throw new Error('away');
        }),
      ),
    ).catch(() => new Promise<never>(() => undefined));
  }

  private counts(): ClientCounts {
    return sum([this.left, ...[...this.lines, ...this.leaving].map(({ line }) => line?.jobs.counts())]);
  }
}

/** A submitted request whose jobs are announced where the line to its cell listens, below the prefix of that. */
function repliedIn({ replyChannel }: QueueLine, request: NewRequest): NewRequest {
  const announced = (one: RowsRequest): RowsRequest => announcedOn(replyChannel, one);
  const { requests, cutAs } = request;
  return { ...request, requests: requests.map(announced), cutAs: async (parts) => (await cutAs(parts)).map(announced) };
}

/** A list that came while it is used is not refused: what is open towards its cells would have nowhere to go. */
async function tellSame(cells: readonly Cell[], { prefix = DEFAULT_PREFIX, log }: ClientOptions): Promise<void> {
  const problems = await sameCells(cells, prefix);
  if (problems.length > 0) log?.warn({ problems }, 'the list of cells has a server twice; it is used all the same');
}

function allOf(looks: readonly Promise<void>[]): Promise<void> {
  return Promise.all(looks).then(() => undefined);
}

function sum(counts: readonly (ClientCounts | undefined)[]): ClientCounts {
  const total = { added: 0, known: 0, ready: 0, delivered: 0, failed: 0, askedAgain: 0, addedAgain: 0, lookedUp: 0 };
  for (const one of counts)
    for (const name of Object.keys(total) as (keyof ClientCounts)[]) total[name] += one?.[name] ?? 0;
  return total;
}

function inCell(name: string, waiting: Waiting): Waiting {
  return { ...waiting, message: `in the cell "${name}": ${waiting.message}` };
}

function cellUnknown(id: string, cell: string, lines: readonly CellLine[]): ShoalError<'CELL_UNKNOWN'> {
  const names = lines.map(({ name }) => `"${name}"`).join(', ');
  return new ShoalError(
    'CELL_UNKNOWN',
    `"${id}" is in the cell "${cell}", which is not in the list of cells (${names}). If it was taken off the list, put ` +
      'it back with "write": false until nothing there is asked for any more; if the "@" is part of an id of your own, ' +
      'choose one without',
    { id, cell, cells: lines.map(({ name }) => name) },
  );
}
