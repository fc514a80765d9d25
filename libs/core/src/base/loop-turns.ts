// Long work in pieces, one piece in each turn of the event loop whoever it is for. setImmediate alone gives every
// waiter a piece in the same turn: 256 requests that each tokenize for 8 ms would hold it for two seconds, health
// checks included. Turns go round by whom the work is for: first come first served, a tenant's text waited behind the
// answers of 256 requests of another, which are three pieces each.

import { invariant, mainTenant } from '@shoal/contract';

/** Who waits for a turn, by whom the work is for, in the order in which these are next; none is empty. */
const lines = new Map<string, (() => void)[]>();

/**
 * Resolves in a turn of the event loop in which nobody else's call does. Those of one tenant come in the order in which
 * they asked, those of several one of each after the other; users of a tenant share its turns. `tenant`: whom the work
 * is for; left out, nobody's.
 */
export function loopTurn(tenant = ''): Promise<void> {
  return new Promise((resolve) => {
    const whose = mainTenant(tenant);
    const line = lines.get(whose);
    if (line === undefined) lines.set(whose, [resolve]);
    else line.push(resolve);
    if (line === undefined && lines.size === 1) setImmediate(next);
  });
}

function next(): void {
  const [first] = lines;
  invariant(first !== undefined, 'a turn is asked for only while somebody waits');
  const [tenant, line] = first;
  const goOn = line.shift();
  lines.delete(tenant);
  if (line.length > 0) lines.set(tenant, line); // behind the others
  if (lines.size > 0) setImmediate(next);
  goOn?.();
}
