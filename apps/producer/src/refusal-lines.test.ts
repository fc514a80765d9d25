import { afterEach, expect, test } from 'vitest';
import { ManualClock, RecordingLogger } from '@shoal/core/testing';
import { RefusalLines } from './refusal-lines.ts';
import { startApp, type AppUnderTest } from './testing/app-under-test.ts';

const TEXT = 'a text that nobody else may read';
const KEY = 'shoal_planted-key-99';
const apps: AppUnderTest[] = [];

afterEach(async () => {
  await Promise.all(apps.splice(0).map((app) => app.stop()));
});

test('a refused request is one line with its id, and neither its texts nor its key', async () => {
  const log = new RecordingLogger();
  const app = await startApp({ parts: { log } });
  apps.push(app);
  const headers = { 'x-request-id': 'asked-1', authorization: `Bearer ${KEY}` };
  await app.post({ model: 'minilm', input: [TEXT], [TEXT]: 1 }, headers);
  expect(log.lines).toEqual([
    {
      level: 'info',
      message: 'request refused',
      fields: {
        route: '/v1/embeddings',
        status: 400,
        code: 'unknown_parameter',
        requestId: 'asked-1',
        tenant: 'default',
      },
    },
  ]);
  await app.post({ model: 'minilm', input: [TEXT] }, headers);
  await app.post(`{"input": "${TEXT}`, headers);
  expect(log.lines).toHaveLength(2); // what was answered is no refusal
  expect(JSON.stringify(log.lines)).not.toMatch(new RegExp(`${TEXT}|${KEY}`));
});

test('a flood of refusals is two lines for each kind, and none is left uncounted', async () => {
  const [log, clock] = [new RecordingLogger(), new ManualClock()];
  const refusals = new RefusalLines(log, clock);
  for (let n = 0; n < 1_000; n++) refusals.add({ status: 429, code: 'rate_limit_exceeded' });
  refusals.add({ status: 400, code: 'invalid_json' });
  expect(log.lines).toHaveLength(2);
  await clock.advance(10_000);
  expect(log.lines.slice(2)).toEqual([
    {
      level: 'warn',
      message: 'requests refused, the last one of them',
      fields: { route: undefined, status: 429, code: 'rate_limit_exceeded', refused: 999 },
    },
  ]);
  expect(clock.pending).toBe(0);
  refusals.add({ status: 429, code: 'rate_limit_exceeded' });
  refusals.add({ status: 429, code: 'rate_limit_exceeded' });
  refusals.stop();
  expect(log.lines.slice(3).map(({ message }) => message)).toEqual(['request refused', 'request refused']);
  expect(clock.pending).toBe(0);
});

test('however many kinds there are, what is beyond is counted together', () => {
  const log = new RecordingLogger();
  const refusals = new RefusalLines(log, new ManualClock());
  for (let n = 0; n < 600; n++) refusals.add({ status: 400, code: `code-${n}` });
  refusals.stop();
  const lines = log.lines.map(({ fields }) => fields);
  expect(lines).toHaveLength(502);
  expect(lines.at(-1)).toMatchObject({ code: 'other', refused: 99 });
});
