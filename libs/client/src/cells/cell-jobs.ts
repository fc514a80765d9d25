// The open jobs of a client with cells: each is asked of one cell, whose OpenJobs sees it through, and of another when
// that one cannot. Chooses no cell itself and knows nothing of servers.
//
// The way of a job here:
//   *to place*   its cell is looked for where its id may be known, else chosen
//   *asked*      one cell has it; delivered, failed or abandoned there it is so here
// From *asked* it goes back to *to place* when its cell is away and did not take it, was away for longer than is waited
// for, or refuses it. Each cell is tried once.

import { ShoalError, isShoalError, type ErrorCode } from '@shoal/contract';
import { announcedOn, closedError, type Asked, type Delivery, type JobRequest } from '../job-request.ts';
import type { CellLine } from './cell-line.ts';

export interface CellJobsParts {
  /** The cell that a job is asked of next. Rejects with why it is asked of none. */
  readonly place: (request: JobRequest, tried: ReadonlyMap<string, unknown>) => Promise<CellLine>;
  /** Whether some cell answers that it may be asked of instead. */
  readonly hasOther: (request: JobRequest, tried: ReadonlyMap<string, unknown>) => boolean;
}

interface Route {
  readonly request: JobRequest;
  readonly delivery: PromiseWithResolvers<Delivery>;
  /** Cells that could not, with what each said. */
  readonly tried: Map<string, unknown>;
  at: { readonly cell: CellLine; readonly asked: Asked } | undefined;
  isOver: boolean;
}

/** What another cell may be able to do. */
const ELSEWHERE: ReadonlySet<ErrorCode> = new Set([
  'ADMISSION_REFUSED',
  'NOT_SERVED',
  'QUEUE_DAMAGED',
  'QUEUE_FULL',
  'QUEUE_REFUSES_WRITES',
  'QUEUE_UNREACHABLE',
]);
/** Jobs of which it is remembered which cell delivered them, once they were released. */
const MOST_REMEMBERED = 16_384;

export class CellJobs {
  private readonly parts: CellJobsParts;
  private readonly routes = new Map<Asked, Route>();
  private readonly deliveredBy = new WeakMap<Delivery, CellLine>();
  /** Where open jobs are, by id. */
  private readonly placed = new Map<string, CellLine>();
  /** Delivered and not released. */
  private readonly held = new Map<string, CellLine>();
  private readonly remembered = new Map<string, CellLine>();
  private isClosed = false;

  constructor(parts: CellJobsParts) {
    this.parts = parts;
  }

  ask<Request extends JobRequest>(request: Request): Asked<Request> {
    const delivery = Promise.withResolvers<Delivery>();
    const asked: Asked<Request> = { request, delivery: delivery.promise };
    const route: Route = { request, delivery, tried: new Map(), at: undefined, isOver: false };
    if (this.isClosed) {
      delivery.reject(closedError());
      return asked;
    }
    this.routes.set(asked, route);
    void this.follow(route).finally(() => this.routes.delete(asked));
    return asked;
  }

  letGo(delivery: Delivery): void {
    this.deliveredBy.get(delivery)?.line?.jobs.letGo(delivery);
  }

  release(jobIds: readonly string[]): void {
    for (const [cell, ids] of this.byCell(jobIds)) cell.line?.jobs.release(ids);
    for (const jobId of jobIds) {
      const cell = this.held.get(jobId);
      this.held.delete(jobId);
      if (cell !== undefined) this.remembered.set(jobId, cell);
      const [oldest] = this.remembered.keys();
      if (this.remembered.size > MOST_REMEMBERED && oldest !== undefined) this.remembered.delete(oldest);
    }
  }

  async abandon(asked: readonly Asked[], error: ShoalError): Promise<void> {
    const routes = asked.flatMap((one) => this.routes.get(one) ?? []);
    for (const route of routes) this.end(route, () => route.delivery.reject(error));
    await Promise.all(
      [...Map.groupBy(routes, ({ at }) => at?.cell)].map(([cell, its]) =>
        cell?.line?.jobs.abandon(
          its.flatMap(({ at }) => at?.asked ?? []),
          error,
        ),
      ),
    );
  }

  /** What returned the jobs that were delivered, in order; undefined where nobody remembers. */
  async returnValues(jobIds: readonly string[]): Promise<(string | undefined)[]> {
    const values = new Map<string, string | undefined>();
    await Promise.all(
      [...this.byCell(jobIds)].map(async ([cell, ids]) => {
        const found = (await cell.line?.returnValues(ids)) ?? [];
        for (const [at, id] of ids.entries()) values.set(id, found[at]);
      }),
    );
    return jobIds.map((jobId) => values.get(jobId));
  }

  /** A cell does not answer: what it has not taken yet is asked of others, where there are any. */
  moveOn(cell: CellLine): void {
    for (const route of this.routes.values()) {
      const { at, request } = route;
      if (at?.cell !== cell || cell.line?.jobs.isLetIn(request.jobId) !== false) continue;
      if (this.parts.hasOther(request, new Map([...route.tried, [cell.name, undefined]])))
        void cell.line.jobs.abandon([at.asked], isAway(cell.name));
    }
  }

  /** The cell in which an open job of this id is. */
  cellOf(jobId: string): CellLine | undefined {
    return this.placed.get(jobId);
  }

  /** What was asked of no cell yet is given up; the cells' own jobs are closed with their lines. */
  close(): void {
    this.isClosed = true;
    for (const route of this.routes.values())
      if (route.at === undefined) this.end(route, () => route.delivery.reject(closedError()));
  }

  private async follow(route: Route): Promise<void> {
    while (!route.isOver) {
      try {
        const cell = await this.parts.place(route.request, route.tried);
        if (cell.line === undefined) throw isAway(cell.name);
        if (route.isOver) return;
        const asked = cell.line.jobs.ask(announcedOn(cell.line.replyChannel, route.request));
        route.at = { cell, asked };
        this.placed.set(route.request.jobId, cell);
        cell.wasSent(1);
        const delivery = await asked.delivery;
        this.end(route, () => this.deliver(route, cell, delivery));
      } catch (error) {
        if (!this.mayGoOn(route, error)) this.end(route, () => route.delivery.reject(error));
      }
    }
  }

  private deliver({ request, delivery }: Route, cell: CellLine, found: Delivery): void {
    this.deliveredBy.set(found, cell);
    this.held.set(request.jobId, cell);
    delivery.resolve(found);
  }

  private mayGoOn(route: Route, error: unknown): boolean {
    const { at, request, tried } = route;
    if (this.isClosed || at === undefined || !isShoalError(error) || !ELSEWHERE.has(error.code)) return false;
    tried.set(at.cell.name, error);
    at.cell.refused(error.code);
    route.at = undefined;
    this.placed.delete(request.jobId);
    return this.parts.hasOther(request, tried);
  }

  private end(route: Route, how: () => void): void {
    if (route.isOver) return;
    route.isOver = true;
    this.placed.delete(route.request.jobId);
    how();
  }

  private byCell(jobIds: readonly string[]): Map<CellLine, string[]> {
    const byCell = new Map<CellLine, string[]>();
    for (const jobId of jobIds) {
      const cell = this.held.get(jobId) ?? this.remembered.get(jobId);
      if (cell === undefined) continue;
      const ids = byCell.get(cell);
      if (ids === undefined) byCell.set(cell, [jobId]);
      else ids.push(jobId);
    }
    return byCell;
  }
}

export function isAway(name: string): ShoalError<'QUEUE_UNREACHABLE'> {
  return new ShoalError('QUEUE_UNREACHABLE', `the cell "${name}" does not answer; what it has is kept`, { cell: name });
}
