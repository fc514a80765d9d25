// Signs of life between a service and the command that forked it, over their channel: a process that lives and does
// nothing (stopped by SIGSTOP, frozen, spinning) ends for nobody, so that nobody would replace it. What it says comes
// from the thread that does its work; the device has a watch of its own (ExecutorWatch).
//
// Time is counted in looks, not by the clock: whoever was asleep himself has heard what came meanwhile before he looks
// for the second time, and takes nobody for silent.

import type { ChildProcess } from 'node:child_process';
import { processClock, type Clock } from '@shoal/core/base';

const SIGN_EVERY_MS = 5_000;
/** Half a minute: a collection of garbage or a starved machine is over by then. */
const MOST_MISSED = 6;
export const SILENT_FOR = `${(SIGN_EVERY_MS * MOST_MISSED) / 1_000} s`;

/** An argument of a service: whoever forked it tells a person why it is unfit, so that it need not say so as well. */
export const PARENT_TELLS = '--parent-tells';

export interface SignsOfLife {
  readonly kind: 'alive';
}

/** Tells the parent, when there is one, from now on. Returns what ends that. */
export function giveSigns(): () => void {
  giveSign();
  const timer = setInterval(giveSign, SIGN_EVERY_MS);
  timer.unref();
  return () => clearInterval(timer);
}

/** A parent that is gone does not want to know. */
function giveSign(): void {
  if (process.connected) process.send?.({ kind: 'alive' } satisfies SignsOfLife, undefined, {}, () => undefined);
}

export interface SignsTerms {
  readonly clock?: Clock;
  readonly everyMs?: number;
}

/** Calls `onSilent`, once, when a child that has said something says nothing any more for half a minute. */
export function watchSigns(
  child: ChildProcess,
  onSilent: () => void,
  { clock = processClock, everyMs = SIGN_EVERY_MS }: SignsTerms = {},
): void {
  let missed = 0;
  let cancel: (() => void) | undefined;
  const look = (): void => {
    if (missed++ === MOST_MISSED) onSilent();
    else cancel = clock.after(everyMs, look);
  };
  child.on('message', () => {
    missed = 0;
    cancel ??= clock.after(everyMs, look);
  });
  child.once('exit', () => cancel?.());
}
