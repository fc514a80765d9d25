// Events joined to calls: from when to when a call may have had its effect, and whether it had one.

import type { EventFacts, EventOp, HistoryEvent } from './event.ts';

/**
 * One call. Its effect, if it had one, lies between its two events; with an answer that was lost there is no end, for a
 * command may be repeated after a reconnect. What came before what is asked of the places of events in the history, how
 * long something took of their times: a simulation has many events in one ms.
 */
export interface Call extends EventFacts {
  readonly op: EventOp;
  readonly id: string;
  readonly process: string;
  /** ms; `end` is Infinity where the answer was lost. */
  readonly start: number;
  readonly end: number;
  /** Places of its events in the history; `to` is Infinity where the answer was lost. */
  readonly from: number;
  readonly to: number;
  readonly kind: 'ok' | 'fail' | 'unknown';
  /** What was written of it: the violation that names it shows them. */
  readonly events: readonly HistoryEvent[];
}

interface Placed {
  readonly event: HistoryEvent;
  readonly place: number;
}

/** Calls in the order of their starts. Throws on an end whose invoke is not there: the history is not whole. */
export function callsOf(events: readonly HistoryEvent[]): Call[] {
  const open = new Map<string, Placed>();
  const calls: Call[] = [];
  for (const [place, event] of events.entries()) {
    if (event.call === undefined) {
      calls.push(observation({ event, place }, events));
      continue;
    }
    const key = `${event.process} ${event.call}`;
    if (event.kind === 'invoke') {
      if (open.has(key)) throw new Error(`${event.process} begins its call ${event.call} twice`);
      open.set(key, { event, place });
      continue;
    }
    const invoke = open.get(key);
    if (invoke === undefined) throw new Error(`${event.process} ends its call ${event.call}, which it did not begin`);
    open.delete(key);
    calls.push(joined(invoke, { event, place }));
  }
  for (const invoke of open.values()) calls.push(joined(invoke, undefined));
  return calls.sort((a, b) => a.from - b.from || a.to - b.to);
}

function observation({ event, place }: Placed, events: readonly HistoryEvent[]): Call {
  const { at, since, kind } = event;
  const from = since === undefined ? place : firstFrom(events, since, place);
  const isFailure = kind === 'fail';
  return { ...event, start: since ?? at, end: at, from, to: place, kind: isFailure ? 'fail' : 'ok', events: [event] };
}

/** The place of the first event at `ms` or later, of those before `place`. */
function firstFrom(events: readonly HistoryEvent[], ms: number, place: number): number {
  let [low, high] = [0, place];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events[middle]!.at < ms) low = middle + 1;
    else high = middle;
  }
  return low;
}

function joined(invoke: Placed, end: Placed | undefined): Call {
  const isKnown = end !== undefined && end.event.kind !== 'unknown';
  return {
    ...invoke.event,
    ...end?.event,
    start: invoke.event.at,
    end: isKnown ? end.event.at : Infinity,
    from: invoke.place,
    to: isKnown ? end.place : Infinity,
    kind: isKnown ? (end.event.kind as 'ok' | 'fail') : 'unknown',
    events: end === undefined ? [invoke.event] : [invoke.event, end.event],
  };
}

/** It had its effect, or may have had it. */
export function mayHaveHappened(call: Call): boolean {
  return call.kind !== 'fail';
}
