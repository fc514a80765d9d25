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
  /** As bytes. Where it asks for what chance orders or decides, its commands are those of `SETTLED`. */
  readonly text: string;
  /** It goes through a table by `pairs`. */
  readonly usesPairs: boolean;
}

const CHANCE = /['"](?:SMEMBERS|HGETALL|HKEYS|HVALS|[SH]?SCAN|ZRANDMEMBER|MEMORY)['"]/i;

/**
 * A server hands out sets and large hashes in an order of its own, and pages of SCAN; ZRANDMEMBER is chance, and what
 * MEMORY USAGE counts are its structures. Here all is in order and on one page, the first members are the random ones,
 * and a key takes 100 bytes.
 */
const SETTLED = `local redis = (function()
  local ORDERED = { SMEMBERS = 1, HKEYS = 1, HVALS = 1, HGETALL = 2 }
  local SCANNED = { SCAN = 1, SSCAN = 1, HSCAN = 2 }
  local function inOrder(list, step)
    local heads, tails, sorted = {}, {}, {}
    for at = 1, #list, step do
      heads[#heads + 1] = list[at]
      tails[list[at]] = list[at + 1]
    end
    table.sort(heads)
    for at, head in ipairs(heads) do
      sorted[#sorted + 1] = head
      if step == 2 then sorted[#sorted + 1] = tails[head] end
    end
    return sorted
  end
  local function settled(call)
    return function(...)
      local args = { ... }
      local reply = call(...)
      local name = type(args[1]) == 'string' and string.upper(args[1])
      if name == 'MEMORY' and type(reply) == 'number' then return 100 end
      if type(reply) ~= 'table' or reply.err then return reply end
      if ORDERED[name] then return inOrder(reply, ORDERED[name]) end
      if name == 'ZRANDMEMBER' then return call('ZRANGE', args[2], 0, math.abs(tonumber(args[3])) - 1) end
      if not SCANNED[name] then return reply end
      args[name == 'SCAN' and 2 or 3] = '0'
      args[#args + 1] = 'COUNT'
      args[#args + 1] = '1000000'
      local page = call(unpack(args))
      return { page[1], inOrder(page[2], SCANNED[name]) }
    end
  end
  return {
    call = settled(redis.call),
    pcall = settled(redis.pcall),
    error_reply = redis.error_reply,
    status_reply = redis.status_reply,
    sha1hex = redis.sha1hex,
  }
end)()
`;

export async function allScripts(): Promise<ReadonlyMap<string, NamedScript>> {
  const found = [...(await ownScripts()), ...bullScripts()].map(({ name, lua }): [string, NamedScript] => {
    const text = Buffer.from(lua).toString('latin1');
    return [name, { name, text: CHANCE.test(lua) ? settled(text) : text, usesPairs: /\bpairs\(/.test(lua) }];
  });
  return new Map(found);
}

/** Behind the line of flags, if it has one. */
function settled(text: string): string {
  const from = text.startsWith('#!') ? text.indexOf('\n') + 1 : 0;
  return text.slice(0, from) + SETTLED + text.slice(from);
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
