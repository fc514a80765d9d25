// The names of DESIGN §4.1 and §4.2, letter by letter: producers in other languages build the same ones.

import { describe, expect, test } from 'vitest';
import { termFields } from './job-terms.ts';
import {
  JOB_KEY_PARTS,
  QUEUE_KEY_NAMES,
  REPLY_CHANNEL,
  checkJobId,
  checkQueuedJobId,
  cpuQueue,
  isGeneratedJobId,
  isReservedJobId,
  keySpace,
  mainQueue,
  modelSlug,
  resultIdOf,
} from './keys.ts';

test('the queues of a model', () => {
  expect([mainQueue('minilm'), cpuQueue('minilm')]).toEqual(['embed-minilm', 'embed-minilm-cpu']);
  expect(modelSlug('BAAI/bge-small-en_v1.5')).toBe('baai--bge-small-en-v1-5');
  expect(modelSlug('BAAI/bge-small-en_v1.5@main')).toBe('baai--bge-small-en-v1-5');
});

test('every key of a job', () => {
  const keys = keySpace();
  const all = [
    keys.input('embed-minilm', 'a~1'),
    keys.output('embed-minilm', 'a~1'),
    keys.staged('embed-minilm', 'a~1', 'w:7'),
    keys.lock('embed-minilm', 'a~1'),
    keys.job('embed-minilm', 'a~1'),
    keys.workers('embed-minilm'),
    keys.reply('me'),
  ];
  expect(all).toEqual([
    '{shoal}:in:embed-minilm:a~1',
    '{shoal}:out:embed-minilm:a~1',
    '{shoal}:staged:embed-minilm:a~1:w:7',
    '{shoal}:embed-minilm:a~1:lock',
    '{shoal}:embed-minilm:a~1',
    '{shoal}:workers:embed-minilm',
    '{shoal}:reply:me',
  ]);
  expect(keySpace('{shoal.1}').reply('me')).toBe('{shoal.1}:reply:me');
  expect(keySpace('{shoal.1}').reply('me')).toMatch(REPLY_CHANNEL);
});

describe('job ids', () => {
  test.each(['a', 'tenant~42', 'x'.repeat(256), '1.5', '1e3', '0x10', 'ü', '12a'])('%s can be used', (jobId) => {
    expect(checkJobId(jobId)).toBe(jobId);
  });

  test.each([
    '',
    'x'.repeat(257),
    'a:b',
    ':',
    '0',
    '42',
    '-7',
    '0042',
    'marker',
    'wait',
    '123456789012345678901234567890',
  ])('"%s" cannot', (jobId) => {
    expect(() => checkJobId(jobId)).toThrow(expect.objectContaining({ code: 'JOB_INVALID' }));
  });

  test.each([
    ...QUEUE_KEY_NAMES,
    ...JOB_KEY_PARTS.map((part) => `a:b:${part}`),
    'metrics:completed:data',
    'de:x:y',
    'repeat:nightly',
    'repeat:nightly:lock',
  ])('%s is the name of a key of the queue itself', (jobId) => {
    expect(isReservedJobId(jobId)).toBe(true);
    expect(() => checkQueuedJobId(jobId)).toThrow('a name the queue keeps for itself');
  });

  test.each(['1', '9007199254740991', 'repeat:nightly:1732600000000', 'repeat:a:b:5'])(
    '%s is made by BullMQ: no producer chooses it, a worker takes it',
    (jobId) => {
      expect([isGeneratedJobId(jobId), isReservedJobId(jobId), checkQueuedJobId(jobId)]).toEqual([true, false, jobId]);
      expect(() => checkJobId(jobId)).toThrow('cannot be used');
      expect(resultIdOf(jobId, 1732600000123)).toBe(`${jobId}:1732600000123`);
    },
  );

  test.each(['0', '-7', '0042', 'repeat:nightly:1.5', '123456789012345678901234567890'])(
    '%s is neither chosen nor made by BullMQ',
    (jobId) => {
      expect(isGeneratedJobId(jobId)).toBe(false);
      expect(() => checkQueuedJobId(jobId)).toThrow('cannot be used');
    },
  );

  test('the result of a job with an id of its own lies under that id alone', () => {
    expect(resultIdOf('a~1', 1732600000123)).toBe('a~1');
  });

  test.each(['s\ud800', '\udc00s', 'a\ud83d-1'])(
    'one with half of a surrogate pair cannot, because the server would keep it under another name',
    (jobId) => {
      expect(() => checkJobId(jobId)).toThrow(
        expect.objectContaining({ code: 'JOB_INVALID', message: expect.stringContaining('half of a surrogate pair') }),
      );
    },
  );

  test('nor can such a tenant', () => {
    expect(termFields.tenant.safeParse('t\ud800').error?.issues[0]?.message).toContain('half of a surrogate pair');
    expect(termFields.tenant.parse('🐟')).toBe('🐟');
  });

  test('whole surrogate pairs can be used', () => {
    expect(checkJobId('fish-🐟')).toBe('fish-🐟');
  });

  test('the refusal shows at most 80 characters of it', () => {
    expect(() => checkJobId('x'.repeat(5_000))).toThrow(/^jobId "x{80}" cannot/);
  });
});
