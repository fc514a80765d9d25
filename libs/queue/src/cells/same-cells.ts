// Whether two cells of a list are one: the same database of the same server under one prefix, by two of its names, which
// nobody sees by looking at the list (localhost and 127.0.0.1, a host and its alias). What waits there would be counted
// twice, and an id would be in both. Asks each server for the id that it gave itself when it started; one that does not
// answer or tell is taken for another.

import { setTimeout as sleep } from 'node:timers/promises';
import type { Cell } from '@shoal/core';
import { closeConnection, openConnection, untilReady } from '../redis/connection.ts';

const ANSWER_MS = 2_000;

/** In words, one sentence for each cell that another before it is; none where each is a server of its own. */
export async function sameCells(cells: readonly Cell[], commonPrefix: string): Promise<string[]> {
  const places = await Promise.all(cells.map((cell) => identityOf(cell, cell.prefix ?? commonPrefix)));
  return cells.flatMap(({ name }, at) => {
    const first = places[at] === undefined ? at : places.indexOf(places[at]);
    if (first === at) return [];
    const known = cells[first]!.name;
    return [`"${known}" and "${name}" are the same server, by two names of it: take one of them off the list`];
  });
}

async function identityOf({ address }: Cell, prefix: string): Promise<string | undefined> {
  const connection = openConnection({ url: address, prefix, name: 'shoal-cells' });
  connection.on('error', () => undefined); // it is away: others say so
  try {
    return await Promise.race([asked(), sleep(ANSWER_MS, undefined, { ref: false })]);
  } finally {
    await closeConnection(connection);
  }

  async function asked(): Promise<string | undefined> {
    try {
      await untilReady(connection, address, { waitMs: ANSWER_MS });
      const [, runId] = /^run_id:(?!0+\s)(\w+)/m.exec(await connection.info('server')) ?? [];
      return runId === undefined ? undefined : `${runId} ${connection.options.db ?? 0} ${prefix}`;
    } catch {
      return undefined;
    }
  }
}
