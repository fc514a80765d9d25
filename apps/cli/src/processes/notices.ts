// What the client tells its log, as lines for the person who waits for a command: a payload server or a cell that failed
// and is back, a list of cells that cannot be used, workers with other payload servers. What concerns jobs by the
// thousand is said once.

import { redactMessage, type Logger } from '@shoal/core';
import { say, type Terminal } from '../terminal.ts';

/** Of these a command tells by itself: the queue server that is lost (WaitingNotice), the queue that is full. */
const TOLD_OTHERWISE = ['connection', 'retryAfterMs'];

/** Says all but debug lines, and nothing where `isQuiet`. */
export function noticesOf(terminal: Pick<Terminal, 'stderr'>, { isQuiet }: { readonly isQuiet: boolean }): Logger {
  const ofJobs = new Set<string>();
  const tell = (fields: object, message: string): void => {
    if (isQuiet || TOLD_OTHERWISE.some((name) => name in fields)) return;
    if ('jobId' in fields) {
      if (ofJobs.has(message)) return;
      ofJobs.add(message);
    }
    say(terminal, `${message}${inBrackets(fields)}`);
  };
  return { debug: () => undefined, info: tell, warn: tell, error: tell };
}

function inBrackets(fields: object): string {
  const facts = Object.entries(fields).map(([name, value]: [string, unknown]) => `${wordsOf(name)}: ${shown(value)}`);
  return facts.length === 0 ? '' : ` (${facts.join('; ')})`;
}

/** `payloadServers` is "payload servers". */
function wordsOf(name: string): string {
  return name === 'err' ? 'error' : name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
}

function shown(value: unknown): string {
  if (Array.isArray(value)) return value.map(shown).join(', ');
  if (value instanceof Error) return redactMessage(value);
  return typeof value === 'string' ? value : JSON.stringify(value);
}
