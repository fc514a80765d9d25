// Reads histories from disk and puts them into one, by time. A last line that is unfinished is what a killed process
// leaves: it is left out and its file is named. Anything else that is no event is an error, because a check over half a
// history says nothing.

import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { problemOfEvent, type HistoryEvent } from './event.ts';

export interface ReadHistory {
  /** By time; those of one process in the order in which it wrote them. */
  readonly events: readonly HistoryEvent[];
  /** Files whose last line is unfinished. */
  readonly unfinished: readonly string[];
}

/** All files `*.jsonl` of a folder. Throws one error that names every line that is no event. */
export function readHistoryFolder(folder: string): ReadHistory {
  const files = readdirSync(folder)
    .filter((name) => name.endsWith('.jsonl'))
    .toSorted();
  return readHistory(files.map((name) => join(folder, name)));
}

/** Throws one error that names every line that is no event. */
export function readHistory(paths: readonly string[]): ReadHistory {
  const problems: string[] = [];
  const unfinished: string[] = [];
  const events = paths.flatMap((path) => {
    const text = readFileSync(path, 'utf8');
    const end = text.lastIndexOf('\n') + 1;
    if (end < text.length) unfinished.push(path);
    return text
      .slice(0, end)
      .split('\n')
      .slice(0, -1)
      .flatMap((line, at) => {
        const event = eventOf(line);
        if (typeof event !== 'string') return [event];
        problems.push(`${path}:${at + 1}: ${event}`);
        return [];
      });
  });
  if (problems.length > 0)
    throw new Error(`${problems.length} lines of the history are no events:\n${problems.slice(0, 20).join('\n')}`);
  return { events: events.toSorted((a, b) => a.at - b.at), unfinished }; // a stable sort keeps a process's own order
}

/** The event of a line, or what is wrong with it. */
function eventOf(line: string): HistoryEvent | string {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return 'is not JSON';
  }
  return problemOfEvent(value) ?? (value as HistoryEvent);
}
