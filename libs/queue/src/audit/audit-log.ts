// Who did what by hand: a capped stream beside the queues, written by every command that changes something and by the
// dashboard's actions. The time of an entry is the server's. It names jobs and workers, never what is in them, and
// whatever looks like a password or a key is hidden before it is written. Decides nothing: a change that could not be
// noted was made all the same, and whoever made it is told.

import { hostname, userInfo } from 'node:os';
import { DEFAULT_PREFIX, keySpace } from '@shoal/contract';
import { redactText, type Logger } from '@shoal/core';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { runScriptOnce } from '../redis/script.ts';
import { serverTime } from '../redis/server-time.ts';
import { translated } from '../redis/translated.ts';
import { WRITE_AUDIT } from './lua/scripts.generated.ts';

/** What is to be noted. */
export interface NewAuditEntry {
  /** user@host, or the name of a key of the dashboard or HTTP. */
  readonly who: string;
  /** "shoal", "dashboard", "http". */
  readonly program: string;
  /** The command or action, such as "queue pause". */
  readonly what: string;
  readonly queue?: string | undefined;
  /** Of jobs, workers or keys; some of many are kept. */
  readonly ids?: readonly string[] | undefined;
  /** How many it was about. Left out: as many as there are ids. */
  readonly count?: number | undefined;
  /** Counts and choices, such as {"retried": 3}. */
  readonly details?: Readonly<Record<string, string | number | boolean>> | undefined;
}

export interface AuditEntry extends NewAuditEntry {
  /** Epoch ms by the server's clock. */
  readonly atMs: number;
  readonly ids: readonly string[];
  readonly count: number;
}

export interface AuditLogOptions {
  readonly redisUrl: string;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  readonly log?: Logger | undefined;
}

export interface AuditQuestion {
  /** Only entries of the last so many ms, by the server's clock; left out: all that are kept. */
  readonly lastMs?: number | undefined;
  /** The newest so many. */
  readonly most?: number | undefined;
}

/** Years of a quiet fleet; some 3 MB. */
const KEPT_ENTRIES = 10_000;
const MOST_IDS = 20;
const MOST_CHARACTERS = 300;
const MOST_READ = 1_000;

export class AuditLog {
  private readonly connection: Redis;
  private readonly prefix: string;
  private readonly log: Logger | undefined;

  private constructor(connection: Redis, { prefix = DEFAULT_PREFIX, log }: AuditLogOptions) {
    this.connection = connection;
    this.prefix = prefix;
    this.log = log;
  }

  /** Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
  static async connect(options: AuditLogOptions): Promise<AuditLog> {
    const { redisUrl: url, prefix, log } = options;
    return new AuditLog(await connected({ url, prefix, name: 'shoal:audit', log }), options);
  }

  /** Notes it on the server and in the log. Throws QUEUE_UNREACHABLE or QUEUE_REFUSES_WRITES; nothing is tried again. */
  write(entry: NewAuditEntry): Promise<void> {
    return writeAudit(this.connection, this.prefix, entry, this.log);
  }

  /** The newest first. Entries of another version that cannot be read are left out. Throws QUEUE_UNREACHABLE. */
  async read({ lastMs, most = MOST_READ }: AuditQuestion = {}): Promise<AuditEntry[]> {
    return translated(async () => {
      const key = keySpace(this.prefix).audit();
      const first =
        lastMs === undefined ? '-' : String(Math.max(0, Math.floor((await serverTime(this.connection)) - lastMs)));
      const entries = await this.connection.xrevrange(key, '+', first, 'COUNT', most);
      return entries.flatMap(([id, fields]) => entryIn(id, fields));
    });
  }

  /** Safe to call twice. */
  close(): Promise<void> {
    return closeConnection(this.connection);
  }
}

/** The same over a connection that somebody has. */
export async function writeAudit(connection: Redis, prefix: string, entry: NewAuditEntry, log?: Logger): Promise<void> {
  const kept = bounded(entry);
  log?.info({ audit: kept }, 'changed by hand');
  const key = keySpace(prefix).audit();
  await translated(() => runScriptOnce(connection, WRITE_AUDIT, [key, KEPT_ENTRIES, JSON.stringify(kept)]));
}

/** user@host of this process; of the person behind sudo, where it tells. */
export function whoIsHere(environment: Readonly<Record<string, string | undefined>>): string {
  return `${environment['SUDO_USER'] ?? userName()}@${hostname()}`;
}

/** A container may run under a number that no user has. */
function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return `uid ${process.getuid?.() ?? '?'}`;
  }
}

function short(text: string): string {
  return redactText(text).slice(0, MOST_CHARACTERS);
}

/** Whatever it was made of, it is small and hides what it should not have had. */
function bounded({ who, program, what, queue, ids = [], count = ids.length, details = {} }: NewAuditEntry): object {
  return {
    who: short(who),
    program: short(program),
    what: short(what),
    ...(queue === undefined ? {} : { queue: short(queue) }),
    ids: ids.slice(0, MOST_IDS).map(short),
    count,
    details: Object.fromEntries(
      Object.entries(details).map(([name, value]) => [short(name), typeof value === 'string' ? short(value) : value]),
    ),
  };
}

function entryIn(id: string, fields: readonly string[]): AuditEntry[] {
  try {
    const found: unknown = JSON.parse(fields[fields.indexOf('entry') + 1] ?? '');
    if (typeof found !== 'object' || found === null) return [];
    const { who, program, what, ids, count } = found as Record<string, unknown>;
    const isWhole =
      [who, program, what].every((one) => typeof one === 'string') && Array.isArray(ids) && typeof count === 'number';
    return isWhole ? [{ ...(found as Omit<AuditEntry, 'atMs'>), atMs: Number(id.split('-')[0]) }] : [];
  } catch {
    return [];
  }
}
