import { randomBytes, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { closeConnection, openConnection, untilReady } from '@shoal/queue';
import { Network, listenOn, patchNetwork } from './network.ts';
import { patchTimeAndChance, real } from './patch.ts';
import { EPOCH_MS, World, enter, type RunEnd } from './world.ts';

patchTimeAndChance();
patchNetwork();

/** Runs a world to its end, outside of all microtasks. */
function inWorld<T>(
  seed: string,
  begin: (world: World) => T,
  isOver: (world: World) => boolean = () => false,
): Promise<{ world: World; given: T; end: RunEnd }> {
  return new Promise((resolve, reject) => {
    real.setImmediate(() => {
      const world = new World({ seed });
      enter(world);
      try {
        const given = begin(world);
        const end = world.run({ isOver: () => isOver(world), untilMs: 600_000, mostSteps: 10_000 });
        resolve({ world, given, end });
      } catch (error) {
        reject(error);
      } finally {
        enter(undefined);
        listenOn(undefined);
      }
    });
  });
}

const SEEDS = Array.from({ length: 20 }, (_, at) => String(at));

test('within a process timers ring by their time and immediates in their order, between processes in any', async () => {
  const orders = new Set<string>();
  for (const seed of SEEDS) {
    const { given: rang } = await inWorld(seed, (world) => {
      const ringing: string[] = [];
      for (const name of ['a', 'b']) {
        world.start(world.newProcess(name), () => {
          setTimeout(() => ringing.push(`${name}3`), 2);
          setTimeout(() => ringing.push(`${name}4`), 2);
          setTimeout(() => ringing.push(`${name}2`), 1);
          setImmediate(() => ringing.push(`${name}0`));
          setImmediate(() => ringing.push(`${name}1`));
        });
      }
      return ringing;
    });
    for (const name of ['a', 'b'])
      expect(rang.filter((one) => one.startsWith(name))).toEqual([0, 1, 2, 3, 4].map((nth) => `${name}${nth}`));
    orders.add(rang.join(' '));
  }
  expect(orders.size).toBeGreaterThan(5);
});

function clocks(): [wall: number, made: number, monotonic: number] {
  return [Date.now() - EPOCH_MS, Number(new Date()) - EPOCH_MS, performance.now()];
}

test('each process has a wall clock of its own, which may step, and a monotonic one, which does not', async () => {
  const { given } = await inWorld('1', (world) => {
    const read: [wall: number, made: number, monotonic: number][] = [];
    const process = world.newProcess('ahead', { wallOffsetMs: 5_000 });
    world.start(process, async () => {
      read.push(clocks());
      await sleep(1_000);
      read.push(clocks());
      process.wallOffsetMs -= 60_000;
      read.push(clocks());
    });
    return read;
  });
  const [first, second, third] = given.map(([wall, made, monotonic]) => [wall, made, Math.round(monotonic / 10) * 10]);
  expect([first, third]).toEqual([
    [5_000, 5_000, 0],
    [-54_000, -54_000, 1_000],
  ]);
  expect(second).toEqual([6_000, 6_000, 1_000]);
});

function chance(): unknown[] {
  return [Math.random(), randomUUID(), randomBytes(4).toString('hex'), crypto.randomUUID()];
}

test('chance follows from the seed, whatever asks for it', async () => {
  const drawn = async (seed: string) => {
    const { given } = await inWorld(seed, (world) => {
      const values: unknown[] = [];
      world.start(world.newProcess('a'), () => void values.push(...chance()));
      return values;
    });
    return given;
  };
  expect(await drawn('1')).toEqual(await drawn('1'));
  expect(await drawn('1')).not.toEqual(await drawn('2'));
  expect(new Set((await drawn('1')).map(String)).size).toBe(4);
  expect(chance()).not.toEqual(chance()); // outside of a world it is chance
});

test('a process that is killed does nothing any more, one that is stopped does it later', async () => {
  const { given, world } = await inWorld('1', (inside) => {
    const done: string[] = [];
    const [dead, stopped] = [inside.newProcess('dead'), inside.newProcess('stopped')];
    for (const process of [dead, stopped])
      inside.start(process, async () => {
        await sleep(10);
        done.push(`${process.name} ${Math.round(performance.now() / 100) * 100}`);
      });
    inside.at(inside.outside, 5, 'kill', () => inside.kill(dead));
    inside.at(inside.outside, 5, 'stop', () => inside.pause(stopped, 3_000));
    return done;
  });
  expect(given).toEqual(['stopped#2 3000']);
  expect(world.crashes).toEqual([]);
});

test('an error that nobody catches ends the process that it came up in', async () => {
  const { world } = await inWorld('1', (inside) => {
    inside.start(inside.newProcess('throws'), () => {
      setTimeout(() => {
        throw new Error('a');
      }, 1);
    });
    inside.start(inside.newProcess('rejects'), async () => {
      await sleep(5);
      throw new Error('b');
    });
  });
  expect(world.crashes.map(({ process, error }) => `${process} ${String(error)}`)).toEqual([
    'throws#1 Error: a',
    'rejects#2 Error: b',
  ]);
});

function earlyAndTooLate(world: World): void {
  world.at(world.outside, 1_000, 'early', () => undefined);
  world.at(world.outside, 700_000, 'too late', () => undefined);
}

test.each([
  [599_000, 'over'],
  [601_000, 'late'],
])(
  'what waits for the hour %i ms has it by the end of the run, whether or not something happens then: %s',
  async (ms, end) => {
    expect(await inWorld('1', earlyAndTooLate, ({ nowMs }) => nowMs >= ms)).toMatchObject({ end });
  },
);

/** Counts INCRs and answers everything else with OK. */
function counting(world: World): { network: Network; counted: () => number } {
  let count = 0;
  const network = new Network(
    world,
    world.newProcess('server'),
    (send) => ({
      receive: (bytes) => {
        const commands = bytes.toString('latin1').split(/(?=\*\d+\r\n)/);
        for (const command of commands) send(Buffer.from(/incr/i.test(command) ? `:${++count}\r\n` : '+OK\r\n'));
      },
      close: () => undefined,
    }),
    { latencyMs: 0.5 },
  );
  listenOn(network);
  return { network, counted: () => count };
}

const URL = 'redis://simulated:6379';

/** Three INCRs of the real client; `strike` comes before the third. */
function threeTimes(seed: string, strike: (network: Network) => void) {
  return inWorld(seed, (world) => {
    const { network, counted } = counting(world);
    const answers: number[] = [];
    world.start(world.newProcess('client'), async () => {
      const connection = openConnection({ url: URL, name: 'test' });
      await untilReady(connection, URL);
      answers.push(await connection.incr('a'), await connection.incr('a'));
      strike(network);
      answers.push(await connection.incr('a'));
      await closeConnection(connection);
    });
    return { answers, counted };
  });
}

test('the real client over the simulated network: the same bytes at the same times for the same seed', async () => {
  const hashes = await Promise.all(
    ['1', '1', '2'].map(async (seed) => (await threeTimes(seed, () => undefined)).world.trace.hash),
  );
  expect(hashes[0]).toBe(hashes[1]);
  expect(hashes[0]).not.toBe(hashes[2]);
});

test.each([
  ['is cut', (network: Network) => network.cutAll(), [1, 2, 3]],
  [
    'loses an answer after the effect',
    (network: Network) => network.links.forEach((link) => link.loseNextAnswer()),
    [1, 2, 4],
  ],
  ['is half open', (network: Network) => network.links.forEach((link) => link.halfOpen()), [1, 2, 3]],
])('a connection that %s: the client connects anew and asks again', async (_, strike, expected) => {
  const { given, world } = await threeTimes('3', strike);
  expect(given.answers).toEqual(expected);
  expect(given.counted()).toBe(expected[2]);
  expect(world.crashes).toEqual([]);
});

test('a connection that fell silent while nobody asked on it is made anew before somebody does', async () => {
  const { given, world } = await inWorld('1', (inside) => {
    const { network } = counting(inside);
    const waitedMs: number[] = [];
    inside.start(inside.newProcess('client'), async () => {
      const connection = openConnection({ url: URL, name: 'test' });
      await untilReady(connection, URL);
      network.links.forEach((link) => link.halfOpen());
      await sleep(60_000);
      const since = performance.now();
      await connection.incr('a');
      waitedMs.push(performance.now() - since);
      await closeConnection(connection);
    });
    return waitedMs;
  });
  expect(given).toEqual([expect.closeTo(0, -2)]); // within 50 ms
  expect(world.crashes).toEqual([]);
});
