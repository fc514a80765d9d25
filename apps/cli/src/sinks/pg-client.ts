// A client of pg, loaded when a table is asked for: of its parts the client alone, without the pool that nobody here needs.

import { createRequire } from 'node:module';
import type { Client, ClientConfig } from 'pg';

const load = createRequire(import.meta.url);

/** Not connected yet. */
export function newClient(options: ClientConfig): Client {
  const PgClient: typeof Client = load('pg/lib/client');
  return new PgClient(options);
}
