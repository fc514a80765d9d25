// The payload servers of a queue's workers at one look: which there are, how each fares as workers see it and as whoever
// asks does, and whether all workers have the same. For `shoal fleet status` and the fleet page. Pure.

import type { PayloadServerFacts, WorkerFacts } from '@shoal/core';
import type { PayloadsHere } from '../payload/payload-watch.ts';
import { claimingOf } from '../producer/serving-workers.ts';
import type { LiveWorker } from './fleet.ts';

export interface PayloadServerSeen {
  readonly name: string;
  readonly kind: 'server' | 'bucket' | 'folder';
  /** Ids of the workers that have it. */
  readonly workers: readonly string[];
  /** Those of them with whom it fails, and since when, epoch ms by the queue server's clock. */
  readonly failing: readonly { readonly workerId: string; readonly problem: string; readonly sinceMs?: number }[];
  /** `maxBytes` 0: no limit. */
  readonly memory?: PayloadServerFacts['memory'];
  /** As whoever asks sees it; undefined: it is not in the settings there, or they name none. */
  readonly here?: { readonly problem?: string; readonly where?: string };
}

/** Payload servers that some workers have. */
export interface PayloadSet {
  /** Empty: none. Undefined: these workers do not tell which. */
  readonly names: readonly string[] | undefined;
  readonly workers: readonly string[];
}

export interface PayloadsSeen {
  readonly servers: readonly PayloadServerSeen[];
  /** Of workers that claim, that of most workers first. All is well where there is one. */
  readonly sets: readonly PayloadSet[];
  /** What needs somebody, each a sentence without a full stop. */
  readonly troubles: readonly string[];
}

/** Undefined where neither workers nor whoever asks have any. `workers`: of one queue for embedding. */
export function payloadsSeen(workers: readonly LiveWorker[], here?: PayloadsHere): PayloadsSeen | undefined {
  const told = workers.flatMap(({ facts }) => toldBy(facts) ?? []);
  const names = [...new Set([...told, ...(here?.servers ?? [])].map(({ name }) => name))].toSorted();
  if (names.length === 0 && !workers.some(({ facts }) => facts?.payloads !== undefined) && here === undefined)
    return undefined;
  const servers = names.map((name) => serverSeen(name, workers, here));
  const sets = setsOf(workers);
  return { servers, sets, troubles: [...servers.flatMap(ofFailing), ...ofSets(sets), ...ofHere(sets, here)] };
}

/** Whatever a worker, or somebody else, has put there. */
function toldBy(facts: WorkerFacts | undefined): readonly PayloadServerFacts[] | undefined {
  const told: unknown = facts?.payloadServers;
  return Array.isArray(told)
    ? told.filter((one: PayloadServerFacts | null) => typeof one?.name === 'string')
    : undefined;
}

function serverSeen(name: string, workers: readonly LiveWorker[], here: PayloadsHere | undefined): PayloadServerSeen {
  const told = workers.flatMap(({ workerId, facts }) => {
    const found = toldBy(facts)?.find((one) => one.name === name);
    return found === undefined ? [] : [{ workerId, ...found }];
  });
  const looked = here?.servers.find((one) => one.name === name);
  const memory = looked?.memory ?? told.find((one) => one.memory !== undefined)?.memory;
  return {
    name,
    kind: name.startsWith('s3://') ? 'bucket' : name.startsWith('file:') ? 'folder' : 'server',
    workers: told.map(({ workerId }) => workerId),
    failing: told.flatMap(({ workerId, problem, sinceMs }) =>
      problem === undefined ? [] : [{ workerId, problem, ...(sinceMs !== undefined && { sinceMs }) }],
    ),
    ...(memory !== undefined && { memory }),
    ...(looked !== undefined && {
      here: {
        ...(looked.problem !== undefined && { problem: looked.problem }),
        ...(looked.where !== undefined && { where: looked.where }),
      },
    }),
  };
}

function setsOf(workers: readonly LiveWorker[]): readonly PayloadSet[] {
  const known = claimingOf(workers).filter(({ facts }) => facts !== undefined);
  const bySet = [...Map.groupBy(known, ({ facts }) => facts?.payloads)];
  return bySet
    .map(([id, all]): PayloadSet => {
      const [told] = all.flatMap(({ facts }) => {
        const servers = toldBy(facts);
        return servers === undefined ? [] : [servers];
      });
      const names = id === undefined ? [] : told?.map(({ name }) => name).toSorted();
      return { names, workers: all.map(({ workerId }) => workerId).toSorted() };
    })
    .toSorted((a, b) => b.workers.length - a.workers.length);
}

function ofFailing({ name, workers, failing, here }: PayloadServerSeen): string[] {
  const [first] = failing;
  if (first === undefined) {
    if (here?.problem === undefined) return [];
    const others = workers.length === 0 ? 'no worker has it' : 'workers see nothing wrong with it';
    return [`payload server ${name} ${here.problem}, seen from here; ${others}`];
  }
  const who =
    failing.length === workers.length && workers.length > 1
      ? 'all its workers'
      : listed(failing.map(({ workerId }) => workerId));
  return [
    `payload server ${name} ${first.problem}, as ${who} ${failing.length === 1 ? 'sees' : 'see'} it; what it would carry goes ` +
      'to the others, or by the queue server',
  ];
}

function ofSets(sets: readonly PayloadSet[]): string[] {
  if (sets.length < 2) return [];
  const told = sets.map(({ names, workers }) => {
    const [has, tell] = workers.length === 1 ? ['has', 'it does not'] : ['have', 'they do not'];
    if (names === undefined) return `${listed(workers)} ${has} others, which ${tell} tell`;
    return `${listed(workers)} ${has} ${names.length === 0 ? 'none' : listed(names)}`;
  });
  return [
    `payload servers differ: ${told.join('; ')}; until all have the same payloadServers, written alike, everything goes by ` +
      'the queue server',
  ];
}

function ofHere([set, ...others]: readonly PayloadSet[], here: PayloadsHere | undefined): string[] {
  if (here?.problem !== undefined) return [`payload servers cannot be looked at from here: ${here.problem}`];
  if (here === undefined || set?.names === undefined || others.length > 0) return [];
  if (
    set.names.join('\n') ===
    here.servers
      .map(({ name }) => name)
      .toSorted()
      .join('\n')
  )
    return [];
  return [
    `the payloadServers of the settings here are others than those of the workers (${set.names.length === 0 ? 'none' : listed(set.names)}): ` +
      'whoever asks with these settings is answered by the queue server',
  ];
}

const MOST_LISTED = 5;

function listed(names: readonly string[]): string {
  const more = names.length - MOST_LISTED;
  return more > 0 ? `${names.slice(0, MOST_LISTED).join(', ')} and ${more} more` : names.join(', ');
}
