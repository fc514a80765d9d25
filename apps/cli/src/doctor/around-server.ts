// What `shoal doctor` reads of a queue server that answers, beyond whether it is safe: how it fares, every queue with its
// workers, the payload servers, and buckets of parts. Reads only, but for some bytes that it puts on each of those; what a part cannot be
// read of is a finding by itself.

import { statfs } from 'node:fs/promises';
import { partsQueue } from '@shoal/contract';
import { redactMessage, type Settings } from '@shoal/core';
import { Fleet, bucketOutputs, knownQueues, readAdmission, readServerHealth, type Redis } from '@shoal/queue';
import type { Finding } from '@shoal/worker';
import { checkFleet, type QueueSeen } from './fleet-checks.ts';
import { checkPartBuckets } from './part-checks.ts';
import { checkPayloadServers } from './payload-checks.ts';
import { checkServerHealth, type ServerChecked } from './server-checks.ts';

export interface AroundServer {
  readonly findings: readonly Finding[];
  readonly queues: readonly QueueSeen[];
  /** INFO; undefined where it was refused. */
  readonly info: string | undefined;
}

export interface ServerPlace {
  readonly redisUrl: string;
  readonly connection: Redis;
  readonly settings: Settings;
  readonly version: string;
  readonly isPrivate: boolean;
}

/** More are counted and not looked into. */
const MOST_QUEUES = 50;

export async function lookAround(place: ServerPlace): Promise<AroundServer> {
  const [health, fleet, info] = await Promise.all([
    attempt('queue server', () => healthFindings(place)),
    attempt('queues', () => readQueues(place)),
    place.connection.info().catch(() => undefined),
  ]);
  const queues = 'value' in fleet ? fleet.value.queues : [];
  const found = 'value' in fleet ? checkFleet({ ...fleet.value, version: place.version }) : [fleet.problem];
  const beside = await attempt('payload servers', () => checkPayloadServers(place.settings.payloadServers, queues));
  const ofParts = await attempt('parts of files', () => partFindings(place, queues));
  const findings = [
    ...('value' in health ? health.value : [health.problem]),
    ...found,
    ...('value' in beside ? beside.value : [beside.problem]),
    ...('value' in ofParts ? ofParts.value : [ofParts.problem]),
  ];
  return { findings, queues, info };
}

/** Whether the server runs on this machine, by its address. */
export function isHere(redisUrl: string): boolean {
  if (redisUrl.startsWith('unix:')) return true;
  const host = URL.canParse(redisUrl) ? new URL(redisUrl).hostname : '';
  return /^(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(host);
}

async function healthFindings({ redisUrl, connection, settings, isPrivate }: ServerPlace): Promise<Finding[]> {
  const { model, prefix } = settings;
  const [health, { unreadBytes }] = await Promise.all([
    readServerHealth(connection),
    readAdmission(connection, { prefix, queue: model }),
  ]);
  const here = isHere(redisUrl);
  const { folder } = health;
  const disk = here && folder !== undefined ? await statfs(folder).catch(() => undefined) : undefined;
  const server: ServerChecked = {
    ...health,
    unreadBytes,
    isHere: here,
    freeDiskBytes: disk === undefined ? undefined : disk.bavail * disk.bsize,
    isTls: redisUrl.startsWith('rediss'),
    hasPassword: /\/\/[^/?#]*:[^/?#]+@/.test(redisUrl) || settings.redisPasswordFile !== undefined,
    isPrivate,
  };
  return checkServerHealth(server);
}

async function partFindings({ connection, settings }: ServerPlace, queues: readonly QueueSeen[]): Promise<Finding[]> {
  const { prefix, partFolders } = settings;
  const lanes = queues.map(({ queue }) => queue).filter((queue) => queue.startsWith(partsQueue('')));
  const outputs = await Promise.all(lanes.map((queue) => bucketOutputs(connection, { prefix, queue })));
  return checkPartBuckets(partFolders, queues, outputs.flat());
}

async function readQueues({
  redisUrl,
  connection,
  settings: { prefix },
}: ServerPlace): Promise<{ readonly queues: readonly QueueSeen[]; readonly isWhole: boolean }> {
  const names = await knownQueues(connection, prefix);
  const queues: QueueSeen[] = [];
  for (const queue of names.slice(0, MOST_QUEUES)) {
    const fleet = await Fleet.connect({ redisUrl, prefix, queue });
    try {
      queues.push({ queue, view: await fleet.read() });
    } finally {
      await fleet.close();
    }
  }
  return { queues, isWhole: names.length <= MOST_QUEUES };
}

async function attempt<Value>(
  about: string,
  read: () => Promise<Value>,
): Promise<{ readonly value: Value } | { readonly problem: Finding }> {
  try {
    return { value: await read() };
  } catch (error) {
    return { problem: { about, state: 'broken', found: redactMessage(error), cure: 'see the line' } };
  }
}
