// All boards for Grafana, and the files that tools/write-docs.ts makes of them in infra/grafana.

import { FLEET_BOARD } from './fleet-board.ts';
import { HTTP_BOARD } from './http-board.ts';
import { boardFile, type Board } from './panel.ts';
import { QUEUE_BOARD } from './queue-board.ts';
import { WORKER_BOARD } from './worker-board.ts';

export const BOARDS: readonly Board[] = [FLEET_BOARD, QUEUE_BOARD, WORKER_BOARD, HTTP_BOARD];

/** File name in infra/grafana, and what stands in it. */
export function boardFiles(): readonly { readonly name: string; readonly content: string }[] {
  return BOARDS.map((board) => ({ name: `${board.uid}.json`, content: boardFile(board) }));
}
