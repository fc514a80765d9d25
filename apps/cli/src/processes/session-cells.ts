// The cells of a command whose jobs are spread over them: with which it begins, and what is asked of all of them.
// A cell that is away, home or not, keeps no command from beginning as long as another answers.

import { setTimeout as sleep } from 'node:timers/promises';
import { homeCell, readCells, type Cell, type Settings } from '@shoal/core';
import { PerCell, closeConnection, openConnection, untilReady, type Redis } from '@shoal/queue';
import { say, type Terminal } from '../terminal.ts';
import { untilItAnswers } from './queue-connection.ts';

/** How long home is waited for once another cell has answered, and a cell before it is not asked. */
const PATIENCE_MS = 2_000;

/** Home, or one that answers where home does not. Throws what is wrong with home where none does, and CONFIG_INVALID. */
export async function beginningCell(
  terminal: Terminal,
  { cells: setting = '', redisUrl, prefix }: Pick<Settings, 'cells' | 'redisUrl' | 'prefix'>,
  isQuiet: boolean,
): Promise<Cell> {
  const cells = readCells(setting);
  const home = homeCell(cells, redisUrl, prefix);
  const others = cells.filter((cell) => cell !== home && cell.write !== false);
  const enough = new AbortController();
  const signal = AbortSignal.any([terminal.signal, enough.signal]);
  const onSlow = (line: string): void => (isQuiet ? undefined : say(terminal, line));
  const answering = async (cell: Cell, told?: typeof onSlow): Promise<Cell> => {
    await untilItAnswers({ redisUrl: cell.address, prefix: cell.prefix ?? prefix, signal, onSlow: told });
    return cell;
  };
  const atHome = answering(home, onSlow);
  const elsewhere = Promise.any(others.map((cell) => answering(cell))).then(async (cell) => {
    await sleep(PATIENCE_MS, undefined, { signal });
    return cell;
  });
  elsewhere.catch(() => undefined); // then home decides
  try {
    return await Promise.any([atHome, elsewhere]).catch(() => atHome);
  } finally {
    enough.abort();
  }
}

/** Asks all cells that take new work, as they are listed now. */
export class AskedCells {
  private readonly cells: PerCell<CellConnection>;

  /** Throws CONFIG_INVALID. */
  constructor(cells: string, prefix: string) {
    this.cells = new PerCell({ cells }, ({ address, prefix: own = prefix }) => new CellConnection(address, own));
  }

  /** What those say that answer. Rejects where none does. */
  async ask<Answer>(question: (connection: Redis, prefix: string) => Promise<Answer>): Promise<Answer[]> {
    const asked = this.cells.all
      .filter(({ cell }) => cell.write !== false)
      .map(async ({ part }) => question(await part.answering(), part.prefix));
    await Promise.any(asked);
    const told = await Promise.allSettled(asked);
    return told.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  }

  async close(): Promise<void> {
    await this.cells.close();
  }
}

class CellConnection {
  readonly prefix: string;
  private readonly connection: Redis;
  private readonly opened: Promise<void>;

  constructor(address: string, prefix: string) {
    this.prefix = prefix;
    this.connection = openConnection({ url: address, prefix, name: 'shoal-cli' });
    this.connection.on('error', () => undefined); // the client tells of it
    this.opened = untilReady(this.connection, address, { waitMs: PATIENCE_MS });
    this.opened.catch(() => undefined);
  }

  /** Rejects while it does not answer. */
  async answering(): Promise<Redis> {
    await this.opened.catch(() => undefined);
    if (this.connection.status !== 'ready') throw new Error('it does not answer');
    return this.connection;
  }

  async close(): Promise<void> {
    await closeConnection(this.connection);
  }
}
