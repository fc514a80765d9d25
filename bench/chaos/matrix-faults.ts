// How each cell of the matrix is made: begun, left for some seconds, ended. What a fault takes away comes back by
// itself; a process that ends of it is started again by whoever does so in production.

import { setTimeout as sleep } from 'node:timers/promises';
import { sharedClockMs } from '@shoal/world';
import type { BadWire, Trouble } from './bad-wire.ts';
import type { CellName, FaultName, ProcessName } from './matrix-cells.ts';
import type { Clocked, OnDisk, Stage, StageKind } from './matrix-stage.ts';
import { stopFor, withoutDescriptors, withoutMemory } from './process-faults.ts';

/** Longer than a lease, so that claims are lost. */
export const FAULT_MS = 8_000;
const AWAY_MS = 1_000;
const CUTS = 3;
const MOST_TRIES = 500;
const THERE_WITHIN_MS = 180_000;
const HOURS = 2;
/** What a server that is killed may forget of what it acknowledged. */
const FORGOTTEN_MS = 2_000;
/** Room that is left. */
const SPARE_BYTES = 8 << 20;
const SERVER_SPARE_BYTES = 100_000;
const EXECUTORS = /^shoal:executor:/;
const NOT_EXECUTORS = /^(?!shoal:executor:)/;

type Made = 'http' | 'cli' | 'supervisor' | 'guard' | 'server' | 'replica' | 'sdk' | 'claimer' | 'executor';

export function stageOf(name: CellName): StageKind {
  const [who, fault] = name.split(':') as [ProcessName, FaultName];
  if (fault === 'ahead' || fault === 'behind') return 'clock';
  return fault === 'disk' || (fault === 'read-only' && who !== 'server') ? 'disk' : 'plain';
}

/** Of a private server. */
export function isOfPrivate(name: CellName): boolean {
  return /^(supervisor|guard):/.test(name);
}

/** Resolves when the fault is over. Throws when it cannot be made: then nothing was shown. */
export async function makeFault(stage: Stage, name: CellName): Promise<void> {
  const [who, fault] = name.split(':') as [Made, FaultName];
  await whenThere(stage, who);
  const end = stage.history.invoke('fault', '', {
    outcome: fault === 'ahead' || fault === 'behind' ? 'clock' : fault,
    target: who,
  });
  await carryOut(stage, who, fault);
  end('ok');
}

/** It may be about to start again, after the fault before. */
async function whenThere(stage: Stage, who: Made): Promise<void> {
  for (const startedMs = performance.now(); performance.now() - startedMs < THERE_WITHIN_MS; await sleep(100)) {
    const isConnected =
      ['server', 'supervisor', 'guard'].includes(who) ||
      wiresOf(stage, who).some((wire) => wire.has(connectionsOf(who)));
    if (findPid(stage, who) !== undefined && isConnected) return;
  }
  throw new Error(`there is no ${who} with a connection, for ${THERE_WITHIN_MS / 1_000} s`);
}

async function carryOut(stage: Stage, who: Made, fault: FaultName): Promise<void> {
  switch (fault) {
    case 'kill':
      return kill(stage, who);
    case 'stop':
      return stopFor(pidOf(stage, who), FAULT_MS);
    case 'ahead':
    case 'behind':
      return step(stage, who, fault === 'ahead' ? HOURS : -HOURS);
    case 'disk':
      return fillDisk(stage, who);
    case 'read-only':
      return who === 'server' ? followNobody(stage) : readOnly(stage, who);
    case 'descriptors':
      return withoutDescriptors(pidOf(stage, who), FAULT_MS);
    case 'memory':
      if (who === 'replica') return starveReplica(stage);
      if (who === 'sdk') return starveProducer(stage);
      return who === 'server' ? fillMemory(stage) : withoutMemory(pidOf(stage, who), SPARE_BYTES, FAULT_MS);
    case 'cut':
      return cut(stage, who);
    case 'half-open':
    case 'latency':
    case 'one-way':
      return spoil(stage, who, fault);
  }
}

async function kill(stage: Stage, who: Made): Promise<void> {
  switch (who) {
    case 'server':
      await stage.server.kill9();
      stage.history.observe('forget', '', { since: sharedClockMs() - FORGOTTEN_MS });
      await sleep(AWAY_MS);
      return stage.server.restart();
    case 'replica':
      await stage.replica!.kill9();
      await sleep(AWAY_MS);
      return stage.replica!.restart();
    case 'supervisor':
      process.kill(pidOf(stage, who), 'SIGKILL');
      return sleep(AWAY_MS);
    case 'guard': // and its supervisor, which alone would start another: the server has lost both
      for (const lost of [who, 'supervisor'] as const) process.kill(pidOf(stage, lost), 'SIGKILL');
      return sleep(AWAY_MS);
    case 'http':
    case 'cli':
      pidOf(stage, who);
      return stage[who]!.kill();
    case 'sdk':
      await stage.killProducer();
      await sleep(AWAY_MS);
      return stage.startProducer();
    case 'claimer':
      pidOf(stage, who);
      return stage.fleet.killWorker(0);
    case 'executor':
      pidOf(stage, who);
      return stage.fleet.killExecutor(0);
  }
}

/** The processes of a worker share a clock. */
async function step(stage: Stage, who: Made, hours: number): Promise<void> {
  const of = who === 'sdk' ? 'producer' : who === 'claimer' || who === 'executor' ? 'worker' : who;
  stage.setClock(of as Clocked, hours);
  await sleep(FAULT_MS);
  stage.setClock(of as Clocked, 0);
}

async function fillDisk({ disks }: Stage, who: Made): Promise<void> {
  const disk = disks![who as OnDisk];
  disk.fill();
  await sleep(FAULT_MS);
  disk.empty();
}

/** A file system takes no writes from a moment on when nobody has a file open for writing. */
async function readOnly({ disks, cli }: Stage, who: Made): Promise<void> {
  const disk = disks![who as OnDisk];
  const set = (isReadOnly: boolean): Promise<void> =>
    who === 'cli' ? cli!.between(() => disk.setReadOnly(isReadOnly)) : whenIdle(() => disk.setReadOnly(isReadOnly));
  await set(true);
  await sleep(FAULT_MS);
  await set(false);
}

/** Tries again for as long as a file is open for writing. */
async function whenIdle(change: () => void): Promise<void> {
  for (let left = MOST_TRIES; ; left--) {
    try {
      return change();
    } catch (error) {
      if (left === 0) throw error;
      await sleep(20);
    }
  }
}

/** It follows a server that is not there, and answers every write with READONLY. */
async function followNobody({ server }: Stage): Promise<void> {
  await server.command('REPLICAOF', '127.0.0.1', '1');
  await sleep(FAULT_MS);
  await server.command('REPLICAOF', 'NO', 'ONE');
}

async function fillMemory({ server }: Stage): Promise<void> {
  const used = Number(/used_memory:(\d+)/.exec(String(await server.command('INFO', 'memory')))?.[1]);
  await server.command('CONFIG', 'SET', 'maxmemory', used + SERVER_SPARE_BYTES);
  await sleep(FAULT_MS);
  await server.command('CONFIG', 'SET', 'maxmemory', 0);
}

/** A server that gets no memory ends; whoever keeps it starts it again. */
async function starveReplica(stage: Stage): Promise<void> {
  await withoutMemory(pidOf(stage, 'replica'), 0, FAULT_MS);
  await stage.replica!.restart();
}

async function starveProducer(stage: Stage): Promise<void> {
  await withoutMemory(pidOf(stage, 'sdk'), 0, FAULT_MS);
  if (!stage.hasProducer) await stage.startProducer();
}

async function cut(stage: Stage, who: Made): Promise<void> {
  for (let time = 0; time < CUTS; time++) {
    if (who === 'server') {
      await stage.server.command('CLIENT', 'KILL', 'TYPE', 'pubsub');
      await stage.server.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    } else if (who === 'replica') {
      await stage.server.command('CLIENT', 'KILL', 'TYPE', 'replica');
    } else {
      for (const wire of wiresOf(stage, who)) wire.cut(connectionsOf(who));
    }
    await sleep(AWAY_MS);
  }
}

async function spoil(stage: Stage, who: Made, trouble: Trouble): Promise<void> {
  const wires = wiresOf(stage, who);
  for (const wire of wires) wire.begin(trouble, connectionsOf(who));
  await sleep(FAULT_MS);
  for (const wire of wires) wire.end();
}

function wiresOf({ wires }: Stage, who: ProcessName): readonly BadWire[] {
  const { victim, other, producer, replica } = wires;
  if (who === 'server') return [victim, other, producer];
  return [
    who === 'sdk' ? producer : who === 'replica' ? replica : who === 'http' || who === 'cli' ? wires[who] : victim,
  ];
}

function connectionsOf(who: Made): RegExp {
  return who === 'executor' ? EXECUTORS : who === 'claimer' ? NOT_EXECUTORS : /^/;
}

function pidOf(stage: Stage, who: Made): number {
  const pid = findPid(stage, who);
  if (pid === undefined) throw new Error(`there is no ${who} that something could happen to`);
  return pid;
}

function findPid(stage: Stage, who: Made): number | undefined {
  const pid = {
    http: () => stage.http?.pid,
    cli: () => stage.cli?.pid,
    supervisor: () => stage.privateServer?.supervisorPid,
    guard: () => stage.privateServer?.guardPid,
    server: () => stage.server.pid,
    replica: () => stage.replica?.pid,
    sdk: () => stage.producerPid(),
    claimer: () => stage.fleet.workerPid(0),
    executor: () => stage.fleet.executorPid(0),
  }[who]();
  return pid === 0 ? undefined : pid;
}
