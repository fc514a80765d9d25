import { expect, test } from 'vitest';
import { whyJob, whyUnknown, type JobSighting, type SeenWorker } from './why-job.ts';

const worker = (state: SeenWorker['state'], reason = 'it claims'): SeenWorker => ({ workerId: 'w-1', state, reason });
const WAITS: JobSighting = {
  jobId: 'a',
  queue: 'embed-x',
  lane: 'main',
  state: 'in-line',
  claims: 0,
  attempts: 0,
  stalls: 0,
  waitedMs: 61_000,
  position: { ahead: 4_000, of: 5_000 },
  needsInput: true,
  inputBytes: 100,
  isCancelAsked: false,
  isPaused: false,
  workers: [worker('ready')],
};

test.each<[string, Partial<JobSighting>, string]>([
  ['stands in line', {}, 'it waits in embed-x for 61 s: 4,000 jobs of 5,000 are before it, and one worker claims'],
  ['is next', { position: { ahead: 0, of: 1 } }, 'it is the next in line of 1 job'],
  ['is passed by others', { class: 'bulk' }, 'interactive jobs that come now go before it'],
  ['has no place yet', { state: 'unplaced' }, 'it gets its place in line with the next claim'],
  ['came back', { stalls: 2 }, 'it came back 2 times from workers that died'],
  ['is in a paused queue', { isPaused: true }, 'embed-x is paused; shoal queue resume --queue embed-x'],
  ['has nobody to run it', { workers: [] }, 'no worker serves embed-x; start one with shoal worker'],
  ['has no CPU worker', { workers: [], lane: 'cpu' }, 'the CPU lane of embed-x for 61 s: no CPU worker is alive'],
  [
    'has drained workers',
    { workers: [worker('drained')] },
    'the only worker is drained or leaving; shoal fleet resume',
  ],
  [
    'has braked workers',
    { workers: [worker('braked', 'results fill it')], memory: { usedShare: 0.4, unreadShare: 0.55 } },
    'workers hold back: results fill it (memory 40 %, unread 55 %)',
  ],
  [
    'has starting workers',
    { workers: [worker('starting', 'its executor was lost')] },
    'is not ready: its executor was lost',
  ],
  ['lost its input', { inputBytes: undefined }, 'its input is gone, so it will fail with INPUT_LOST'],
  ['was cancelled', { isCancelAsked: true }, 'somebody cancelled it'],
  ['is delayed', { state: 'delayed', delayMs: 5_000 }, 'may be claimed in 5.0 s'],
  ['is too new', { state: 'parked', version: 99 }, 'it is of version 99, which no worker that met it reads'],
  ['was handed over', { state: 'handed-over' }, 'handed over to the CPU lane'],
  [
    'runs',
    { state: 'running', runningMs: 3_200, lease: { holder: 'gpu-0', leftMs: 9_000 } },
    'gpu-0 of 1 live worker has it for 3.2 s, its lease lasts 9.0 s more',
  ],
  ['lost its worker', { state: 'running' }, 'nobody holds its lease any more: its worker died or was cut off'],
  [
    'completed',
    { state: 'completed', endedMs: 500, result: { bytes: 3_000, leftMs: 300_000, isTaken: false } },
    'it completed 0.5 s ago; its result (3.0 KB) is there, nobody has acknowledged it, and it stays for 5 min',
  ],
  [
    'was taken',
    { state: 'completed', result: { bytes: 96, leftMs: 4_000, isTaken: true } },
    'was fetched and acknowledged',
  ],
  ['has no result any more', { state: 'completed' }, 'its result is gone'],
  [
    'failed',
    { state: 'failed', failure: { code: 'OUT_OF_VRAM', message: 'too little' } },
    'with OUT_OF_VRAM: too little; shoal queue retry a --queue embed-x lets it run again',
  ],
  [
    'failed for good',
    { state: 'failed', failure: { code: 'JOB_INVALID', message: 'x' }, inputBytes: undefined },
    'its input went with it, so add it anew',
  ],
  ['is quarantined', { state: 'quarantined', lane: 'quarantine' }, 'shoal queue quarantine return a --queue embed-x'],
  ['is in no list', { state: 'lost' }, 'shoal queue repair --queue embed-x at once'],
  ['is only a result', { state: 'result-only' }, 'its record is gone'],
  ['is only an input', { state: 'input-only' }, 'there is an input and no job'],
])('a job that %s', (_, seen, told) => expect(whyJob({ ...WAITS, ...seen })).toContain(told));

test('an id that nobody knows is told with where it was looked for', () => {
  expect(whyUnknown('a', ['embed-x', 'similarity'])).toContain('looked at: embed-x, similarity');
  expect(whyUnknown('a', [])).toContain('there are no queues');
});
