import { describe, expect, test } from 'vitest';
import type { PayloadServerFacts, WorkerFacts } from '@shoal/core';
import { WORKER_FACTS } from '../testing.ts';
import type { LiveWorker } from './fleet.ts';
import { payloadsSeen } from './payloads-seen.ts';

const worker = (workerId: string, facts: Partial<WorkerFacts> | undefined): LiveWorker => ({
  workerId,
  lanes: ['main'],
  facts: facts && { ...WORKER_FACTS, ...facts },
  isDrained: facts?.isDrained === true,
  isLeaving: false,
  state: 'ready',
  reason: 'it claims',
});
const has = (workerId: string, servers: readonly PayloadServerFacts[], more: Partial<WorkerFacts> = {}): LiveWorker =>
  worker(workerId, { payloads: servers.map(({ name }) => name).join(), payloadServers: servers, ...more });

const FULL = { name: 'a:6379', problem: 'takes no body (OOM)', sinceMs: 5 };
const [A, B] = [{ name: 'a:6379', memory: { usedBytes: 1, maxBytes: 2 } }, { name: 's3://b/x' }];

test('nothing is seen where nobody has any', () => {
  expect(payloadsSeen([worker('one', {}), worker('two', undefined)])).toBeUndefined();
});

test('each server is told of once, with who has it, what it holds, and how it fares with workers and from here', () => {
  const here = {
    servers: [
      { ...A, problem: undefined },
      { ...B, problem: 'gives nothing (403)', where: 'region x' },
    ],
  };
  const seen = payloadsSeen([has('one', [A, B]), has('two', [FULL, B])], here);
  expect(seen?.servers).toEqual([
    {
      name: 'a:6379',
      kind: 'server',
      workers: ['one', 'two'],
      failing: [{ workerId: 'two', problem: 'takes no body (OOM)', sinceMs: 5 }],
      memory: { usedBytes: 1, maxBytes: 2 },
      here: {},
    },
    {
      name: 's3://b/x',
      kind: 'bucket',
      workers: ['one', 'two'],
      failing: [],
      here: { problem: 'gives nothing (403)', where: 'region x' },
    },
  ]);
  expect(seen?.troubles).toEqual([
    expect.stringMatching(/^payload server a:6379 takes no body \(OOM\), as two sees it; /),
    'payload server s3://b/x gives nothing (403), seen from here; workers see nothing wrong with it',
  ]);
});

function troubles(
  workers: readonly LiveWorker[],
  here?: Parameters<typeof payloadsSeen>[1],
): readonly string[] | undefined {
  return payloadsSeen(workers, here)?.troubles;
}

describe('troubles', () => {
  test('none where all is well; drained workers and those that tell nothing do not count', () => {
    const well = [has('one', [A, B]), has('two', [B, A], { payloads: 'a:6379,s3://b/x' })];
    expect(troubles(well, { servers: [B, A] })).toEqual([]);
    expect(troubles([...well, worker('drained', { isDrained: true }), worker('silent', undefined)])).toEqual([]);
  });

  test('a server that fails with all', () => {
    expect(troubles([has('one', [FULL]), has('two', [FULL])])).toEqual([
      expect.stringContaining('takes no body (OOM), as all its workers see it'),
    ]);
  });

  test('workers that have others, or none, or do not tell which', () => {
    const told = troubles([
      has('one', [A, B]),
      has('two', [A, B]),
      worker('three', {}),
      worker('old', { payloads: 'f' }),
    ]);
    expect(told).toEqual([
      'payload servers differ: one, two have a:6379, s3://b/x; three has none; old has others, which it does not tell; until ' +
        'all have the same payloadServers, written alike, everything goes by the queue server',
    ]);
  });

  test('settings here that are others than those of the workers, or that cannot be used', () => {
    expect(troubles([has('one', [A, B])], { servers: [A] })).toEqual([
      expect.stringMatching(/settings here are others than those of the workers \(a:6379, s3:\/\/b\/x\)/),
    ]);
    expect(troubles([worker('one', {})], { servers: [A] })).toEqual([expect.stringContaining('workers (none)')]);
    expect(troubles([has('one', [A])], { servers: [], problem: 'no region' })).toEqual([
      'payload servers cannot be looked at from here: no region',
    ]);
  });
});
