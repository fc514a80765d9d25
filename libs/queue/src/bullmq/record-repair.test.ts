import { expect, test } from 'vitest';
import { damageIn, damageSentence, isGone, type JobFields } from './record-repair.ts';

function fields(values: Readonly<Record<string, string>>): JobFields {
  return Object.fromEntries(Object.entries(values).map(([field, value]) => [field, Buffer.from(value)]));
}

const whole = { name: 'embed', data: '{"v":1}', opts: '{"attempts":0}', timestamp: '1', ats: '1', atm: '0' };

test('a record that can be read has no damage, whatever it asks for', () => {
  expect(damageIn(fields(whole))).toEqual([]);
  expect(damageIn(fields({ ...whole, data: 'null', progress: '"half"', parent: '{"id":"a"}', stc: '3' }))).toEqual([]);
  expect(damageSentence([])).toBeUndefined();
});

test('every field that BullMQ parses gets a stand-in, and what it held is told', () => {
  const damage = damageIn(
    fields({ ...whole, data: '{', opts: '[', progress: 'x', parent: '"id"', parentKey: '{t}:embed-x:mum' }),
  );
  expect(damage.map(({ field, standIn }) => [field, standIn])).toEqual([
    ['data', '{}'],
    ['opts', '{}'],
    ['progress', '0'],
    ['parent', '{"id":"mum","queueKey":"{t}:embed-x"}'],
  ]);
  expect(damageSentence(damage)).toMatch(
    new RegExp(
      '"data" is not JSON.*"parent" is "id", not an object.*' +
        'fields "damaged:data", "damaged:opts", "damaged:progress", "damaged:parent"',
    ),
  );
});

test('a counter that is no number begins at 0 again, which is no reason to fail', () => {
  const damage = damageIn(fields({ ...whole, atm: 'many', stc: '-1' }));
  expect(damage.map(({ field, standIn }) => [field, standIn])).toEqual([
    ['atm', '0'],
    ['stc', '0'],
  ]);
  expect(damageSentence(damage)).toBeUndefined();
});

test('what BullMQ leaves where a record was deleted is no record', () => {
  const orphan = fields({ pb: 'worker', processedOn: '1', ats: '1' } as never);
  expect(isGone(orphan)).toBe(true);
  expect(damageIn(orphan).map(({ field }) => field)).toEqual(['name', 'data', 'opts', 'timestamp']);
  expect(damageSentence(damageIn(orphan))).toMatch(/its record is gone.*Add the job again/);
});
