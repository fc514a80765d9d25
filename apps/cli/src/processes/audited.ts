// A change made by hand is noted on the queue server, with who made it. What could not be noted was done all the same:
// the person is told.

import { AuditLog, whoIsHere, type NewAuditEntry } from '@shoal/queue';
import { say, type Terminal } from '../terminal.ts';

export interface AuditPlace {
  readonly redisUrl: string;
  readonly prefix: string;
}

export async function audited(
  terminal: Terminal,
  { redisUrl, prefix }: AuditPlace,
  entry: Omit<NewAuditEntry, 'who' | 'program'>,
): Promise<void> {
  try {
    const audit = await AuditLog.connect({ redisUrl, prefix });
    try {
      await audit.write({ ...entry, who: whoIsHere(terminal.environment), program: 'shoal' });
    } finally {
      await audit.close();
    }
  } catch (error) {
    const problem = error instanceof Error ? error.message : String(error);
    say(terminal, `this was done and is not in the audit: ${problem}`);
  }
}

/** How many ended in which way, for the details of an entry. */
export function countedBy(outcomes: readonly string[]): Readonly<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const outcome of outcomes) counts[outcome] = (counts[outcome] ?? 0) + 1;
  return counts;
}
