// The texts of all scripts that run on the queue server: the product's own and BullMQ's, by their names.

import { readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ownScripts, type ServerScript } from '../own-scripts.ts';

const QUEUE = fileURLToPath(new URL('../../../../queue/', import.meta.url));

export interface NamedScript {
  /** "upkeep/sweep-step", "bullmq.moveToActive". */
  readonly name: string;
  /** As bytes; the hour is the list TIME_KEY, see below. */
  readonly text: string;
  readonly tellsTimes: boolean;
  readonly isUnordered: boolean;
  readonly usesPairs: boolean;
}

/**
 * A real server's clock cannot be set, so scripts of both servers read the hour here: `redis.call('TIME')` is rewritten to
 * the list under this key, which holds seconds and microseconds.
 */
export const TIME_KEY = '!time';
const TIME = /\b(redis\.p?call|rcall)\(\s*['"]TIME['"]\s*\)/g;

export async function allScripts(): Promise<ReadonlyMap<string, NamedScript>> {
  const found = [...(await ownScripts()), ...bullScripts()].map(({ name, lua }): [string, NamedScript] => [
    name,
    {
      name,
      text: Buffer.from(lua).toString('latin1').replaceAll(TIME, `$1('LRANGE', '${TIME_KEY}', 0, -1)`),
      tellsTimes: /PTTL|PEXPIRETIME/.test(lua),
      isUnordered: /SMEMBERS|SCAN|HGETALL|HKEYS|HVALS|ZRANDMEMBER/i.test(lua),
      usesPairs: /\bpairs\(/.test(lua),
    },
  ]);
  return new Map(found);
}

function bullScripts(): ServerScript[] {
  const require = createRequire(join(QUEUE, 'package.json'));
  const folder = join(dirname(require.resolve('bullmq')), 'scripts');
  return readdirSync(folder)
    .filter((file) => file.endsWith('.js') && file !== 'index.js')
    .flatMap((file) => {
      const module = require(join(folder, file)) as Record<string, { name?: string; content?: string }>;
      return Object.values(module).flatMap(({ name, content }) =>
        name === undefined || content === undefined ? [] : [{ name: `bullmq.${name}`, lua: content }],
      );
    });
}
