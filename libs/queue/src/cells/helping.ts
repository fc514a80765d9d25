// Which other cell a worker helps that has nothing to do at home, and claims bulk of it. It looks at a few cells at a
// time, and helps where jobs waited at two looks in a row, most of them for each worker: a job that the cell's own
// workers take within a moment needs nobody. Where all workers of a cell are gone, jobs that they had claimed count as
// well: the help finds that their leases ran out.
//
// It helps nobody whose workers run another revision of the model, know jobs that this one does not, or have other
// payload servers, or for parts of files folders that it does not have: what it would compute is not what that cell was
// asked for. Nor does it claim where somebody paused
// the queue or drained all workers. A worker on the CPU helps where no other device serves. What BullMQ gives it all the
// same, where jobs are due that were delayed, goes back unspent.
//
// Why: docs/decisions/cells.md#a-worker-that-is-idle-claims-bulk-of-other-cells

import { INTERACTIVE_ROWS, isWithin } from '@shoal/contract';
import {
  placeOfCell,
  type Announcement,
  type Cell,
  type RawClaim,
  type SettleResult,
  type Settlement,
  type WorkerFacts,
} from '@shoal/core';
import { CellList } from './cell-list.ts';
import type { CellNeed } from './cell-need.ts';
import { HelpedCell, type BulkSource, type HelpedCellOptions } from './helped-cell.ts';

export interface HelpingOptions extends Pick<HelpedCellOptions, 'prefix' | 'queue' | 'log'> {
  /** As the setting. */
  readonly cells: string;
  /** Name of the cell that this worker belongs to. */
  readonly home: string;
  /** What this worker tells of itself. */
  readonly own: Pick<WorkerFacts, 'model' | 'jobVersion' | 'maxJobRows' | 'payloads' | 'device' | 'partFolders'>;
  /** Whether it may run a job that it claimed. Default: bulk with an input that it can read. */
  readonly mayRun?: ((claim: RawClaim) => boolean) | undefined;
  /** When what it may not run can be claimed again, so that it does not stand before what it may. Default 0: at once. */
  readonly unfitDelayMs?: number | undefined;
  readonly open: (cell: Cell) => BulkSource;
  /** Before a cell is claimed from. Throws what keeps this worker from that. */
  readonly enter?: HelpedCellOptions['enter'];
  /** So many jobs were claimed in a cell. */
  readonly onHelped?: ((cell: string, jobs: number) => void) | undefined;
  /** For tests: how often the file of cells is read, and how long a cell that is not needed stays open. */
  readonly everyMs?: number | undefined;
  readonly restMs?: number | undefined;
}

/** What a worker did for others. */
export interface Helped {
  readonly cell: string;
  /** Jobs claimed there since it started, and those of them that it has now. */
  readonly jobs: number;
  readonly held: number;
}

/** Of a job that workers take who do not say how many. */
const LEAST_ROWS = 256;
/** Cells that are looked at in one turn. */
const LOOKS = 4;
const REST_MS = 30_000;

export class Helping {
  private readonly options: HelpingOptions;
  private readonly list: CellList;
  /** By name and place. */
  private readonly cells = new Map<string, HelpedCell>();
  /** Of the claims that are held, the cell of each job. */
  private readonly cellOf = new Map<string, { readonly token: string; readonly cell: HelpedCell }>();
  /** Cells in which jobs waited when they were looked at last. */
  private readonly waited = new WeakSet<HelpedCell>();
  private readonly lostListeners: ((jobId: string) => void)[] = [];
  private readonly cancelListeners: ((jobIds: readonly string[]) => void)[] = [];
  private readonly before = new Map<string, number>();
  private readonly tidying: NodeJS.Timeout;
  private isOver = false;
  private isDrained = false;

  /** Throws CONFIG_INVALID. */
  constructor(options: HelpingOptions) {
    const { cells, log, everyMs, restMs = REST_MS } = options;
    this.options = options;
    this.list = new CellList({ cells, log, everyMs });
    this.list.onChange(() => void this.tidy());
    this.tidying = setInterval(() => void this.tidy(), restMs / 4).unref();
  }

  /** What it did since it started, of cells that it claimed from. */
  get helped(): readonly Helped[] {
    const names = new Set([...this.before.keys(), ...[...this.cells.values()].map(({ other }) => other.name)]);
    return [...names].flatMap((cell) => {
      const parts = [...this.cells.values()].filter(({ other }) => other.name === cell);
      const jobs = parts.reduce((sum, part) => sum + part.jobs, this.before.get(cell) ?? 0);
      return jobs === 0 ? [] : [{ cell, jobs, held: parts.reduce((sum, part) => sum + part.holds, 0) }];
    });
  }

  /** Whether a job of this id is held that is another cell's. */
  has(jobId: string): boolean {
    return this.cellOf.has(jobId);
  }

  onLeaseLost(listener: (jobId: string) => void): void {
    this.lostListeners.push(listener);
  }

  onCancelled(listener: (jobIds: readonly string[]) => void): void {
    this.cancelListeners.push(listener);
  }

  /** Claims nothing while it is drained. */
  drain(isDrained: boolean): void {
    this.isDrained = isDrained;
  }

  /** Up to `limit` bulk jobs of the cell that needs it most, or none. One call at a time; never rejects. */
  async claim(limit: number): Promise<readonly RawClaim[]> {
    if (this.isOver || this.isDrained) return [];
    const due = shuffled(this.others().filter((cell) => cell.isDue)).slice(0, LOOKS);
    const looked = await Promise.all(due.map(async (cell) => ({ cell, need: await cell.look() })));
    const needy = looked.flatMap(({ cell, need }) =>
      need !== undefined && this.isNeeded(cell, need) ? [{ cell, need }] : [],
    );
    const [most] = needy.toSorted((a, b) => weightOf(b.need) - weightOf(a.need));
    if (most === undefined || this.isOver || this.isDrained) return [];
    const { cell } = most;
    const came = await cell.claim(limit);
    const { mayRun = (claim: RawClaim) => isForHelp(claim, this.options.own.payloads) } = this.options;
    const claims = came.filter(mayRun);
    if (claims.length < came.length) await this.giveBack(cell, came, claims);
    if (claims.length > 0) this.options.onHelped?.(cell.other.name, claims.length);
    for (const { jobId, token } of claims) this.cellOf.set(jobId, { token, cell });
    return claims;
  }

  async settle(claim: RawClaim, settlement: Settlement, announcement?: Announcement): Promise<SettleResult> {
    const cell = this.cellWith(claim);
    if (cell === undefined) return 'lease-lost';
    try {
      return await cell.settle(claim, settlement, announcement);
    } finally {
      if (this.cellOf.get(claim.jobId)?.token === claim.token) this.cellOf.delete(claim.jobId);
    }
  }

  async stopClaiming(): Promise<void> {
    this.isOver = true;
    await Promise.all([...this.cells.values()].map((cell) => cell.stopClaiming()));
  }

  /** Closes everything. Safe to call early or twice. */
  async stop(): Promise<void> {
    this.isOver = true;
    clearInterval(this.tidying);
    this.list.close();
    await Promise.all([...this.cells.values()].map((cell) => cell.close()));
    this.cellOf.clear();
  }

  private async giveBack(cell: HelpedCell, came: readonly RawClaim[], kept: readonly RawClaim[]): Promise<void> {
    const unfit = came.filter((claim) => !kept.includes(claim));
    if (kept.length === 0) cell.hadNothing();
    cell.jobs -= unfit.length;
    await cell.giveBack(unfit, 'it is for the workers of its own cell', this.options.unfitDelayMs);
  }

  private cellWith({ cell, token, jobId }: RawClaim): HelpedCell | undefined {
    const known = this.cellOf.get(jobId);
    if (known?.token === token) return known.cell;
    return cell && this.cells.get(placeOfCell(cell));
  }

  private isNeeded(cell: HelpedCell, need: CellNeed): boolean {
    const { waiting, active, claiming, isHeldBack } = need;
    const isBereft = claiming.length === 0 && active > 0;
    const isWaiting = waiting > 0 || isBereft;
    if (isHeldBack || !isWaiting || !this.fits(claiming)) {
      this.waited.delete(cell);
      cell.hadNothing();
      return false;
    }
    const waitedBefore = this.waited.has(cell);
    this.waited.add(cell);
    return waitedBefore;
  }

  /** Whether it would compute what those workers compute. */
  private fits(claiming: CellNeed['claiming']): boolean {
    const { model, jobVersion = 1, maxJobRows = LEAST_ROWS, payloads, device, partFolders } = this.options.own;
    const isCpu = isCpuDevice(device);
    return claiming.every(
      (facts) =>
        facts !== undefined &&
        facts.model === model &&
        (facts.jobVersion ?? 1) <= jobVersion &&
        (facts.maxJobRows ?? LEAST_ROWS) <= maxJobRows &&
        facts.payloads === payloads &&
        (partFolders === undefined || hasAll(partFolders, facts.partFolders)) &&
        (!isCpu || isCpuDevice(facts.device)),
    );
  }

  /** As they are listed now, without home. */
  private others(): HelpedCell[] {
    return this.list.cells
      .filter(({ name }) => name !== this.options.home)
      .map((cell) => {
        const known = this.cells.get(placeOfCell(cell));
        if (known !== undefined) return known;
        const opened = this.opened(cell);
        this.cells.set(placeOfCell(cell), opened);
        return opened;
      });
  }

  private opened(cell: Cell): HelpedCell {
    const { prefix, queue, open, enter, log } = this.options;
    const helped: HelpedCell = new HelpedCell({
      cell,
      prefix: cell.prefix ?? prefix,
      queue,
      open,
      enter,
      log,
      onLeaseLost: (jobId) => {
        if (this.cellOf.get(jobId)?.cell === helped) for (const listener of this.lostListeners) listener(jobId);
      },
      onCancelled: (jobIds) => {
        const its = jobIds.filter((jobId) => this.cellOf.get(jobId)?.cell === helped);
        if (its.length > 0) for (const listener of this.cancelListeners) listener(its);
      },
    });
    return helped;
  }

  /** Cells that left the list are closed when nothing of them is held, others rest when nobody needed them for a while. */
  private async tidy(): Promise<void> {
    const { restMs = REST_MS } = this.options;
    const listed = new Set(this.list.cells.map(placeOfCell));
    for (const [key, cell] of this.cells) {
      if (cell.holds > 0) continue;
      if (!listed.has(key)) {
        this.cells.delete(key);
        const { name } = cell.other;
        if (cell.jobs > 0) this.before.set(name, (this.before.get(name) ?? 0) + cell.jobs);
        await cell.close();
      } else if (cell.idleMs > restMs) await cell.rest();
    }
  }
}

/** Bulk, with an input that this worker can read. */
function isForHelp({ data }: RawClaim, payloads: string | undefined): boolean {
  const job: { readonly [Field in 'class' | 'texts' | 'input' | 'payloads']?: unknown } = Object(data);
  const input: { readonly rows?: unknown; readonly store?: unknown } = Object(job.input);
  if (input.store !== undefined && job.payloads !== payloads) return false;
  const rows = Array.isArray(job.texts) ? job.texts.length : input.rows;
  return job.class === 'bulk' || (job.class !== 'interactive' && Number(rows) > INTERACTIVE_ROWS);
}

/** Who takes parts and tells no folders may have any. */
function hasAll(own: readonly string[], told: readonly string[] | undefined): boolean {
  return told?.every((folder) => isWithin(folder, own)) ?? false;
}

function weightOf({ waiting, claiming }: CellNeed): number {
  return (waiting + 1) / (claiming.length === 0 ? 0.01 : claiming.length);
}

function isCpuDevice(device: string): boolean {
  return device.split(':')[0] === 'cpu';
}

function shuffled<One>(all: readonly One[]): One[] {
  return all
    .map((one) => [Math.random(), one] as const)
    .toSorted(([a], [b]) => a - b)
    .map(([, one]) => one);
}
