// Looks into the model of the server when a run is over, beside all connections: what is reserved must be what somebody
// has reserved it for.

import { keySpace } from '@shoal/contract';
import type { ModelServer } from '../server/model-server.ts';
import { PREFIX, QUEUE } from './site.ts';

/** `<q|o> <rows> <queued bytes> <owed bytes> <ms> <tenant>`, as libs/queue's admission keeps it. */
const RESERVATION = /^([qo]) (\d+) (\d+) (\d+) (\d+) (.*)$/;

/** Sums of admission that differ from what they are sums of, one line each. */
export function unevenRoom(model: ModelServer): string[] {
  const wanted = new Map<string, number>();
  const add = (field: string, amount: number): void => {
    wanted.set(field, (wanted.get(field) ?? 0) + amount);
  };
  for (const text of hash(model, keySpace(PREFIX).admitted(QUEUE)).values()) {
    const [, state, rows, queued, owed, , tenant] = RESERVATION.exec(text) ?? [];
    const bytes = Number(queued) + Number(owed);
    add(`rows ${QUEUE}`, Number(rows));
    add(`rows ${QUEUE} ${tenant}`, Number(rows));
    add('bytes', bytes);
    add(`bytes ${tenant}`, bytes);
    if (state === 'o') add('unread', Number(owed));
  }
  const found = hash(model, keySpace(PREFIX).load());
  const fields = new Set([...wanted.keys(), ...[...found.keys()].filter((field) => !field.startsWith('dims '))]);
  return [...fields].flatMap((field) => {
    const [is, ought] = [Number(found.get(field) ?? 0), wanted.get(field) ?? 0];
    return is === ought ? [] : [`room-uneven: ${field} is ${is}, its reservations make ${ought}`];
  });
}

/** A hash of the server, whole. */
function hash(model: ModelServer, key: string): Map<string, string> {
  const flat = ask(model, 'HGETALL', key);
  return new Map(flat.flatMap((field, at) => (at % 2 === 0 ? [[field, flat[at + 1] ?? ''] as const] : [])));
}

/** The strings of a flat reply of RESP2. */
function ask(model: ModelServer, ...words: readonly string[]): string[] {
  const pieces: Buffer[] = [];
  const session = model.connect((bytes) => pieces.push(Buffer.from(bytes)));
  const request = words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`).join('');
  session.receive(Buffer.from(`*${words.length}\r\n${request}`));
  session.close();
  const text = Buffer.concat(pieces).toString('latin1');
  return [...text.matchAll(/\$\d+\r\n([^\r]*)\r\n/g)].map((match) => match[1]!);
}
