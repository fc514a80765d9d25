// Which starts of a worker live, known on the server by what their lock tokens begin with: each says so every two
// seconds. A successor sees by it that its predecessor is gone where no pid can be looked up, in another container or on
// another machine, and a worker whose name somebody chose sees that another of that name lives.
//
// A start that said nothing (a worker of an earlier version) is neither alive nor over: its leases decide.
//
// Why: docs/decisions/claiming-and-order.md#lock-tokens-name-the-process

import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalError, keySpace } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { isAlive, placeOfPids } from '@shoal/fetch';
import type { Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { SHOW_START } from './lua/scripts.generated.ts';

export interface WorkerStartOptions {
  readonly connection: Redis;
  readonly prefix: string;
  /** A lane. */
  readonly queue: string;
  readonly name: string;
  /** What the lock tokens of this process begin with; see tokenPrefixOf. */
  readonly start: string;
  /** Called at the start, and while claims of a predecessor may come free; told which lock tokens are of one. */
  readonly onLook: (isOver: (token: string) => boolean) => Promise<void>;
  readonly signal: AbortSignal;
  readonly log: Logger;
}

const LIFE_MS = 6_000;
const RENEWAL_MS = 2_000;
/** Longer than any lease: what is over is told from what never said anything for as long as there can be a lock. */
const KEPT_MS = 3_600_000;
/** As long a life as only somebody with another clock can have written. */
const LONGEST_LIFE_MS = 60_000;
/** Claims of a predecessor that was killed just now come free within its life: looked for so long. */
const LOOK_FOR_MS = LIFE_MS + 2 * RENEWAL_MS;
const LOOK_AGAIN_MS = 500;

/** For how many ms another start still lives, by the server's clock; negative: since when it is over. */
type Others = ReadonlyMap<string, number>;

export class WorkerStart {
  private readonly options: WorkerStartOptions;
  private others: Others = new Map();
  private timer: NodeJS.Timeout | undefined;
  private showing: Promise<void> = Promise.resolve();
  private sinceMs = 0;

  constructor(options: WorkerStartOptions) {
    this.options = options;
  }

  /**
   * Resolves once the start is known to others and claims of predecessors are given back. A name that somebody chose is
   * for one worker: then it waits until no other start of it lives, and throws CONFIG_INVALID for one that says again
   * that it does; nothing is left of ours then.
   */
  async enter(isNameChosen: boolean): Promise<void> {
    await this.show();
    if (isNameChosen) await this.untilAlone();
    this.sinceMs = performance.now();
    await this.look();
  }

  private async untilAlone(): Promise<void> {
    const first = new Map(this.living());
    if (first.size === 0) return;
    const { name, signal, log } = this.options;
    log.info({ name }, 'waiting for a worker of this name, which died just now or lives');
    const began = performance.now();
    for (let alive = this.living(); alive.size > 0; alive = this.living()) {
      const passedMs = performance.now() - began;
      const twin = [...alive].find(
        ([start, leftMs]) => isNearAndAlive(start) || leftMs > (first.get(start) ?? 0) - passedMs + LOOK_AGAIN_MS,
      );
      if (twin !== undefined) {
        await this.leave();
        throw twinLives(this.options, twin[0]);
      }
      await sleep(LOOK_AGAIN_MS, undefined, { signal });
      await this.show();
    }
  }

  /** Renews what `enter` said, until the signal. */
  begin(): void {
    this.timer = setInterval(() => {
      this.showing = this.show()
        .then(() => (performance.now() - this.sinceMs < LOOK_FOR_MS ? this.look() : undefined))
        .catch((error: unknown) => this.reportFault(error));
    }, RENEWAL_MS);
  }

  /** Safe to call early or twice. */
  stop(): void {
    clearInterval(this.timer);
  }

  /** Nobody has to wait for our life to end: what we had is given back. */
  async leave(): Promise<void> {
    this.stop();
    const { connection, prefix, queue, start } = this.options;
    if (connection.status !== 'ready') return;
    await connection.zrem(keySpace(prefix).starts(queue), start).catch(() => undefined);
  }

  async settled(): Promise<void> {
    await this.showing;
  }

  /** Whether the process that made this lock token had our name and is gone. */
  private isOver(token: string): boolean {
    const start = startOf(token);
    if (start === undefined || start.split('~')[0] !== this.options.name || start === this.options.start) return false;
    if (isNear(start)) return !isNearAndAlive(start);
    return (this.others.get(start) ?? 0) < 0;
  }

  private async look(): Promise<void> {
    await this.options.onLook((token) => this.isOver(token));
  }

  private living(): Others {
    return new Map(
      [...this.others].filter(
        ([start, leftMs]) => (isNear(start) ? isNearAndAlive(start) : leftMs >= 0) && leftMs <= LONGEST_LIFE_MS,
      ),
    );
  }

  private async show(): Promise<void> {
    const { connection, prefix, queue, name, start, signal } = this.options;
    const call = [keySpace(prefix).starts(queue), start, `${name}~`, LIFE_MS, KEPT_MS];
    const [reply] = await runScript(connection, SHOW_START, [call], { signal });
    const told = (reply as unknown[]).map(String);
    this.others = new Map(told.flatMap((one, at) => (at % 2 === 0 ? [[one, Number(told[at + 1])] as const] : [])));
  }

  private reportFault(error: unknown): void {
    if (!this.options.signal.aborted)
      this.options.log.debug({ err: error }, 'that this start of the worker lives could not be said, trying again');
  }
}

/** Name, place, pid and start time; what BullMQ adds to a token comes after them. */
function startOf(token: string): string | undefined {
  const parts = token.split('~');
  return parts.length < 4 ? undefined : parts.slice(0, 4).join('~');
}

/** Whether its pid can be looked up here. */
function isNear(start: string): boolean {
  return start.split('~')[1] === placeOfPids();
}

function isNearAndAlive(start: string): boolean {
  const [, , pid, startTime = ''] = start.split('~');
  return isNear(start) && isAlive({ pid: Number(pid), startTime });
}

function twinLives({ name, queue }: WorkerStartOptions, twin: string): ShoalError<'CONFIG_INVALID'> {
  const where = isNear(twin) ? `its pid is ${twin.split('~')[2]}` : 'in another container or on another machine';
  return new ShoalError(
    'CONFIG_INVALID',
    `a worker named "${name}" serves ${queue} already and lives (${where}). Two of one name would take each other's ` +
      'claims for those of a predecessor: stop that one, or give this one a name of its own (--worker-name, ' +
      'SHOAL_WORKER_NAME; without it the name is that of host and device)',
    { name, queue },
  );
}
