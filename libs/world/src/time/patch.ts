// Replaces every source of time and chance that product code and its libraries have, once for this process and before
// any of them is loaded: timers, clocks, random numbers, and what names this machine and process. Where no world is
// entered they are what they were. What is left alone: queueMicrotask and process.nextTick, which are the same in every
// run, and everything that really waits for something outside (files, threads, name look-ups); a scenario has none.

import { createRequire, syncBuiltinESMExports } from 'node:module';
import { presentWorld, type Process } from './world.ts';
import { SimulatedImmediate, SimulatedTimer } from './timers.ts';

type Ring = (...args: unknown[]) => void;

const load = createRequire(import.meta.url);

/** As they were, for whoever stands outside of the world. */
export const real = {
  setTimeout: globalThis.setTimeout,
  setImmediate: globalThis.setImmediate,
  nowMs: performance.now.bind(performance),
};

let isPatched = false;

/** To be called before product code is loaded. Calling it again does nothing. */
export function patchTimeAndChance(): void {
  if (isPatched) return;
  isPatched = true;
  patchTimers();
  patchClocks();
  patchChance();
  patchNames();
  syncBuiltinESMExports();
}

function timerOf(repeats: boolean, otherwise: Call) {
  return (ring: Ring, delayMs?: number, ...args: unknown[]): unknown => {
    const world = presentWorld();
    if (world === undefined) return Reflect.apply(otherwise, globalThis, [ring, delayMs, ...args]);
    return new SimulatedTimer(world, () => ring(...args), Number(delayMs ?? 1), repeats);
  };
}

function clearing(otherwise: (timer: never) => void) {
  return (given: unknown): void => {
    if (given instanceof SimulatedTimer || given instanceof SimulatedImmediate) given.close();
    else otherwise(given as never);
  };
}

function patchTimers(): void {
  const { setTimeout: later, setInterval: again, setImmediate: soon, clearTimeout: forget } = globalThis;
  const { clearImmediate: forgetSoon } = globalThis;
  const immediate = (ring: Ring, ...args: unknown[]): unknown => {
    const world = presentWorld();
    if (world === undefined) return Reflect.apply(soon, globalThis, [ring, ...args]);
    return new SimulatedImmediate(world, () => ring(...args));
  };
  const patched = {
    setTimeout: timerOf(false, later),
    setInterval: timerOf(true, again),
    setImmediate: immediate,
    clearTimeout: clearing(forget),
    clearInterval: clearing(forget),
    clearImmediate: clearing(forgetSoon),
  };
  Object.assign(globalThis, patched);
  Object.assign(load('node:timers') as object, patched);
  patchTimerPromises();
}

interface Waiting {
  readonly signal?: AbortSignal | undefined;
}

function patchTimerPromises(): void {
  const promises = load('node:timers/promises') as Record<'setTimeout' | 'setImmediate', unknown>;
  const { setTimeout: later, setImmediate: soon } = promises;
  promises.setTimeout = (delayMs?: number, value?: unknown, options: Waiting = {}): unknown =>
    presentWorld() === undefined
      ? Reflect.apply(later as () => unknown, undefined, [delayMs, value, options])
      : waiting(options, (resolve) => {
          const timer = setTimeout(resolve, delayMs, value);
          return () => clearTimeout(timer);
        });
  promises.setImmediate = (value?: unknown, options: Waiting = {}): unknown =>
    presentWorld() === undefined
      ? Reflect.apply(soon as () => unknown, undefined, [value, options])
      : waiting(options, (resolve) => {
          const timer = setImmediate(resolve, value);
          return () => clearImmediate(timer);
        });
}

function waiting({ signal }: Waiting, begin: (resolve: (value: unknown) => void) => () => void): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const aborted = (): void =>
      reject(Object.assign(new Error('The operation was aborted'), { name: 'AbortError', code: 'ABORT_ERR' }));
    if (signal?.aborted === true) return aborted();
    const cancel = begin((value) => {
      signal?.removeEventListener('abort', stop);
      resolve(value);
    });
    const stop = (): void => {
      cancel();
      aborted();
    };
    signal?.addEventListener('abort', stop, { once: true });
  });
}

function monotonicMs(): number {
  const world = presentWorld();
  return world === undefined ? real.nowMs() : world.nowMs - world.current.startedMs;
}

function patchClocks(): void {
  const RealDate = globalThis.Date;
  const wallMs = (): number => {
    const world = presentWorld();
    return world === undefined ? RealDate.now() : world.wallMs(world.current);
  };
  // called without `new` it gives a text, as Date does
  const SimulatedDate = new Proxy(RealDate, {
    construct: (target, args, newTarget) =>
      Reflect.construct(target, args.length === 0 ? [wallMs()] : args, newTarget) as object,
    apply: () => new RealDate(wallMs()).toString(),
    get: (target, key, receiver) => (key === 'now' ? wallMs : (Reflect.get(target, key, receiver) as unknown)),
  });
  globalThis.Date = SimulatedDate;
  performance.now = monotonicMs;
  const hrtime = process.hrtime.bind(process);
  const nanos = (): bigint =>
    presentWorld() === undefined ? hrtime.bigint() : BigInt(Math.round(monotonicMs() * 1_000_000));
  process.hrtime = Object.assign(
    (since?: [number, number]): [number, number] => {
      const passed = nanos() - (since === undefined ? 0n : BigInt(since[0]) * 1_000_000_000n + BigInt(since[1]));
      return [Number(passed / 1_000_000_000n), Number(passed % 1_000_000_000n)];
    },
    { bigint: nanos },
  );
}

function patchChance(): void {
  const { random } = Math;
  Math.random = () => chooser()?.random.next() ?? random();
  const crypto = load('node:crypto') as Record<string, Call>;
  const simulated = {
    randomUUID: () => {
      const bytes = Buffer.alloc(16);
      return fill(bytes) ? uuidOf(bytes) : undefined;
    },
    randomBytes: (size: number, answer?: (error: null, bytes: Buffer) => void) => {
      const bytes = Buffer.alloc(size);
      if (!fill(bytes)) return undefined;
      if (answer !== undefined) setImmediate(answer, null, bytes);
      return bytes;
    },
    randomInt: (...args: number[]) => {
      const [from, to] = args.length === 1 ? [0, args[0]!] : [args[0]!, args[1]!];
      return chooser()?.random.whole(from, to);
    },
    randomFillSync: (bytes: Uint8Array) => (fill(bytes) ? bytes : undefined),
  };
  for (const [name, replace] of Object.entries(simulated)) crypto[name] = either(crypto[name]!, replace);
  const web = globalThis.crypto;
  const getRandomValues = either(web.getRandomValues.bind(web), simulated.randomFillSync);
  for (const [name, value] of Object.entries({ randomUUID: crypto['randomUUID'], getRandomValues }))
    Object.defineProperty(web, name, { value, configurable: true, writable: true });
}

type Call = (...args: never[]) => unknown;

/** The simulated call where there is a world; it gives nothing elsewhere. */
function either(otherwise: Call, replace: Call): Call {
  return (...args) => Reflect.apply(replace, undefined, args) ?? Reflect.apply(otherwise, undefined, args);
}

/** Whether chance filled them. */
function fill(bytes: Uint8Array): boolean {
  const process = chooser();
  process?.random.fill(bytes);
  return process !== undefined;
}

/** Whose chance decides: the process whose step it is. */
function chooser(): Process | undefined {
  return presentWorld()?.current;
}

function uuidOf(bytes: Buffer): string {
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = bytes.toString('hex');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}

/** What would tell one machine from another. */
function patchNames(): void {
  const os = load('node:os') as { hostname: () => string };
  const { hostname } = os;
  os.hostname = () => (presentWorld() === undefined ? hostname() : 'simulated-host');
  const { pid } = process;
  Object.defineProperty(process, 'pid', {
    get: () => (presentWorld() === undefined ? pid : FIRST_PID + presentWorld()!.current.id),
    configurable: true,
  });
  const fs = load('node:fs') as Record<'readFileSync' | 'readlinkSync', (path: unknown, ...args: never[]) => unknown>;
  const { readFileSync, readlinkSync } = fs;
  fs.readFileSync = (path, ...args) => fileOfProc(path) ?? readFileSync(path, ...args);
  fs.readlinkSync = (path, ...args) => fileOfProc(path) ?? readlinkSync(path, ...args);
}

const FIRST_PID = 10_000;

/** What /proc says in a world: one boot of one machine, and its processes. Nothing for what lies elsewhere. */
function fileOfProc(path: unknown): string | undefined {
  const world = presentWorld();
  if (world === undefined || typeof path !== 'string' || !path.startsWith('/proc/')) return undefined;
  if (path === '/proc/sys/kernel/random/boot_id') return 'simulated-boot';
  if (path === '/proc/self/ns/pid') return 'pid:[1]';
  const [, pid] = /^\/proc\/(\d+)\/stat$/.exec(path) ?? [];
  const process = pid === undefined ? undefined : world.processOf(Number(pid) - FIRST_PID);
  if (process?.isAlive !== true) throw Object.assign(new Error(`ENOENT: ${path}`), { code: 'ENOENT' });
  const startedTicks = Math.round(process.startedMs / 10);
  return `${pid} (node) S ${'0 '.repeat(18)}${startedTicks} 0`;
}
