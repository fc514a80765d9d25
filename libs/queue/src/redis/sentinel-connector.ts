// How a connection finds the master that Sentinels name, and leaves it when they name another. ioredis asks before
// every attempt to connect; but a master that was replaced while it lived goes on taking writes for up to ten seconds,
// until a Sentinel demotes it, and whatever it acknowledges then is lost. So every Sentinel is listened to while a
// connection stands. ioredis's own detector does that too, but leaves the errors of its listeners without anybody to
// hear them.
//
// Why: docs/decisions/queue.md#sentinels-are-listened-to

import {
  Redis,
  SentinelConnector,
  type RedisOptions,
  type SentinelAddress,
  type SentinelConnectionOptions,
} from 'ioredis';
import { DEAF_MS, askNowAndThen } from './ask-now-and-then.ts';

const CHANNEL = '+switch-master';
/** A Sentinel that is away is tried again so often; the others go on telling. */
const RETRY_MS = 2_000;

export class WatchingSentinelConnector extends SentinelConnector {
  #watchers: Redis[] = [];
  #left: unknown;

  constructor(options: unknown) {
    super(options as SentinelConnectionOptions);
  }

  override async connect(
    report: Parameters<SentinelConnector['connect']>[0],
  ): ReturnType<SentinelConnector['connect']> {
    const stream = await super.connect(report);
    this.#stopWatching();
    this.#watchers = (this.options.sentinels ?? []).map((sentinel) => this.#watch(sentinel));
    stream.once('close', () => this.#stopWatching());
    return stream;
  }

  /** Every reply that says "not here" asks for it; once for each socket is enough. */
  override disconnect(): void {
    this.#stopWatching();
    if (this.stream !== undefined && this.stream === this.#left && !this.connecting) return;
    this.#left = this.stream;
    super.disconnect();
  }

  #watch({ host = 'localhost', port = 26_379 }: Partial<SentinelAddress>): Redis {
    const { sentinelUsername: username, sentinelPassword: password, sentinelTLS: tls, name } = this.options;
    const options: RedisOptions & { replyMapping: 'legacy' } = {
      host,
      port,
      replyMapping: 'legacy',
      enableReadyCheck: false,
      autoResubscribe: false,
      maxRetriesPerRequest: null,
      socketTimeout: DEAF_MS,
      retryStrategy: () => RETRY_MS,
    };
    if (username) options.username = username;
    if (password) options.password = password;
    if (tls) options.tls = tls;
    const watcher = new Redis(options);
    watcher.on('error', () => undefined); // the others go on telling
    askNowAndThen(watcher);
    watcher.on('ready', () => void watcher.subscribe(CHANNEL).catch(() => undefined));
    // "<master name> <old host> <old port> <new host> <new port>". One that is not watched any more may have been slow to
    // say it: what is looked for then is the new master, and ioredis would take `disconnect` for the end of it.
    watcher.on('message', (_channel: string, text: string) => {
      if (text.startsWith(`${name} `) && this.#watchers.includes(watcher)) this.disconnect();
    });
    return watcher;
  }

  #stopWatching(): void {
    for (const watcher of this.#watchers.splice(0)) watcher.disconnect();
  }
}
