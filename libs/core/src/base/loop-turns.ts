// Long work in pieces, one piece in each turn of the event loop whoever it is for. setImmediate alone gives every
// waiter a piece in the same turn: 256 requests that each tokenize for 8 ms would hold it for two seconds, health
// checks included.

import { setImmediate as nextTurn } from 'node:timers/promises';

let last: Promise<unknown> = Promise.resolve();

/** Resolves in a turn of the event loop in which nobody else's call does. First come, first served. */
export function loopTurn(): Promise<void> {
  const mine = last.then(() => nextTurn());
  last = mine;
  return mine;
}
