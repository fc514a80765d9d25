// Which queue server a client was given.

import { checkCells, homeCell, readCells, type Cell } from '@shoal/core';
import type { ServerAddress } from '@shoal/queue';
import type { ClientOptions } from './embedding.ts';

/** By URL, or as a connection whose settings are taken; one of the two is there. */
export function serverOf({ redisUrl, connection }: Pick<ClientOptions, 'redisUrl' | 'connection'>): ServerAddress {
  return redisUrl ?? connection ?? '';
}

/** The cells that a client was given, as they are listed now; none where it has one server. Throws CONFIG_INVALID. */
export function cellsOf({ cells }: Pick<ClientOptions, 'cells'>): readonly Cell[] {
  if (cells === undefined) return [];
  return typeof cells === 'string' ? readCells(cells) : checkCells(cells, 'cells');
}

/** With cells: the options of whatever is not spread over them. Throws CONFIG_INVALID. */
export function atHome(options: ClientOptions): ClientOptions {
  if (options.cells === undefined) return options;
  const { address, prefix = options.prefix } = homeCell(cellsOf(options), options.redisUrl, options.prefix);
  return { ...options, redisUrl: address, ...(prefix !== undefined && { prefix }) };
}
