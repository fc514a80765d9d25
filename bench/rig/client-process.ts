// A client of a bench in a process of its own, as another program would be: what it waits for is not its neighbour's
// event loop. Started by `startClient`; offers jobs when told to, and says how long each took.

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Load, type LoadOptions } from './rig.ts';

type ClientOptions = Omit<LoadOptions, 'isReading' | 'onEnded'>;
interface Offer {
  readonly jobsPerSecond: number;
  readonly seconds: number;
}

export interface Client {
  /** Latencies, ms. */
  offer(jobsPerSecond: number, seconds: number): Promise<number[]>;
  close(): Promise<void>;
}

export async function startClient(options: ClientOptions): Promise<Client> {
  const child = fork(fileURLToPath(import.meta.url), [JSON.stringify(options)], { stdio: ['ignore', 2, 2, 'ipc'] });
  const answer = async (): Promise<unknown> => {
    const [message] = (await Promise.race([once(child, 'message'), once(child, 'exit').then(() => [undefined])])) as [
      unknown,
    ];
    if (message === undefined) throw new Error('a client ended before it answered');
    return message;
  };
  await answer();
  return {
    offer: async (jobsPerSecond, seconds) => {
      child.send({ jobsPerSecond, seconds } satisfies Offer);
      return (await answer()) as number[];
    },
    close: async () => {
      const gone = once(child, 'exit');
      child.disconnect();
      await gone;
    },
  };
}

if (process.send !== undefined && process.argv[1] === fileURLToPath(import.meta.url)) {
  const load = await Load.connect(JSON.parse(process.argv[2]!) as ClientOptions);
  process.on('disconnect', () => void load.close().then(() => process.exit(0)));
  process.on('message', ({ jobsPerSecond, seconds }: Offer) => {
    const from = load.ended.length;
    void load.offer(jobsPerSecond, seconds).then(() => process.send?.(load.ended.slice(from).map(({ ms }) => ms)));
  });
  process.send('ready');
}
