// What ioredis does for each connection and this process need not do for each of thousands of worlds.

import { createRequire } from 'node:module';

const QUEUE = new URL('../../../queue/package.json', import.meta.url);

interface ClientDefaults {
  protocol: 2 | 3;
  enableReadyCheck: boolean;
  disableClientInfo: boolean;
}

type ScriptClass = new (lua: string, keys?: number | null, prefix?: string, isReadOnly?: boolean) => object;

let defaults: ClientDefaults | undefined;

/**
 * BullMQ defines some fifty scripts on each connection, and ioredis hashes each text once more. Shared they are the same:
 * what a socket knows of a script is kept by socket. To be called once, before a connection is made.
 */
export function shareScripts(): void {
  const load = createRequire(QUEUE);
  const module = load('ioredis/built/Script.js') as { default: ScriptClass };
  const Script = module.default;
  const made = new Map<string, Map<string, object>>();
  module.default = new Proxy(Script, {
    construct(target, args: ConstructorParameters<ScriptClass>) {
      const [lua, ...others] = args;
      const form = others.join(' ');
      const forms = made.get(lua) ?? new Map<string, object>();
      const known = forms.get(form);
      if (known !== undefined) return known;
      const script = new target(...args);
      made.set(lua, forms.set(form, script));
      return script;
    },
  });
  ({ DEFAULT_REDIS_OPTIONS: defaults } = load('ioredis/built/redis/RedisOptions.js') as {
    DEFAULT_REDIS_OPTIONS: ClientDefaults;
  });
}

/**
 * How connections begin from now on. Short: no protocol is asked for, no library is named, and nobody asks whether the
 * server is loading, as a client that is told to do without. Whole: as the product's connections do.
 */
export function handshake(isShort: boolean): void {
  if (defaults === undefined) return;
  defaults.protocol = isShort ? 2 : 3;
  defaults.enableReadyCheck = !isShort;
  defaults.disableClientInfo = isShort;
}
