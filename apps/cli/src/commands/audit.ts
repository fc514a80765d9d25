// `shoal audit`: who did what by hand, the newest last. Reads only.

import { AuditLog, type AuditEntry } from '@shoal/queue';
import { withRunningServer } from '../processes/running-queue.ts';
import { print, say, type Terminal } from '../terminal.ts';

export interface AuditFlags {
  readonly json?: boolean;
  readonly quiet?: boolean;
  /** Milliseconds. */
  readonly since?: number;
  readonly most?: number;
}

const MOST = 100;

export async function audit(terminal: Terminal, flags: AuditFlags): Promise<void> {
  await withRunningServer(terminal, flags, async (place) => {
    const log = await AuditLog.connect(place);
    try {
      const most = flags.most ?? MOST;
      const entries = (await log.read({ lastMs: flags.since, most })).toReversed();
      if (flags.json === true)
        for (const entry of entries)
          await print(terminal, `${JSON.stringify({ at: new Date(entry.atMs).toISOString(), ...entry })}\n`);
      else for (const entry of entries) await print(terminal, `${lineOf(entry)}\n`);
      if (flags.quiet === true || flags.json === true) return;
      if (entries.length === 0) say(terminal, 'nothing was done by hand');
      if (entries.length === most) say(terminal, `the newest ${most} are shown; --most N shows more`);
    } finally {
      await log.close();
    }
  });
}

export function lineOf({ atMs, who, program, what, queue, ids, count, details = {} }: AuditEntry): string {
  const more = count > ids.length ? `${ids.length === 0 ? '' : ', '}${count - ids.length} more` : '';
  const about = ids.length + count === 0 ? '' : ` [${ids.join(', ')}${more}]`;
  const told = Object.entries(details).map(([name, value]) => ` ${name}=${value}`);
  const at = new Date(atMs).toISOString().replace(/\.\d+Z$/, 'Z');
  return `${at}  ${who}  ${program}: ${what}${queue === undefined ? '' : ` on ${queue}`}${about}${told.join('')}`;
}
