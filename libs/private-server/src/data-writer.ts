// Which program wrote the private server's data, kept in their folder so that whoever moves the folder away moves this,
// too. An older program, or one of another brand, calls data that it cannot read damaged: so it is not started on them
// at all.
//
// Why: docs/decisions/command-and-setup.md#the-data-of-the-private-server-remember-who-wrote-them

import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { isOlder, series, type ServerName } from '@shoal/contract';

export interface DataWriter {
  readonly name: ServerName;
  readonly version: string;
}

/** Undefined when nothing was written yet. */
export function readDataWriter(data: string): DataWriter | undefined {
  try {
    const { name, version } = JSON.parse(readFileSync(join(data, 'writer.json'), 'utf8')) as Partial<DataWriter>;
    return (name === 'Valkey' || name === 'Redis') && typeof version === 'string' ? { name, version } : undefined;
  } catch {
    return undefined;
  }
}

export function writeDataWriter(data: string, { name, version }: DataWriter): void {
  const draft = join(data, `writer.json.${process.pid}`);
  writeFileSync(draft, JSON.stringify({ name, version }), { mode: 0o600 });
  renameSync(draft, join(data, 'writer.json'));
}

/**
 * Formats change with major and minor versions only. Valkey came out of Redis 7.2 and reads what that and earlier ones
 * wrote.
 */
export function canReadDataOf(writer: DataWriter | undefined, reader: DataWriter): boolean {
  if (writer === undefined) return true;
  if (writer.name === reader.name) return !isOlder(series(reader.version), series(writer.version));
  return reader.name === 'Valkey' && !isOlder('7.2.0', series(writer.version));
}
