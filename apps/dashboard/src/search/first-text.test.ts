// The beginning of a job's first text is put together from whatever form its producer sent it in, or it is said why not.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { encodeTexts, encodeTokens, keySpace, mainQueue, tokenizerHash } from '@shoal/contract';
import { openModel, openTokenizer } from '@shoal/models';
import { closeConnection, openConnection, type Redis } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { FirstTexts } from './first-text.ts';

const MODEL = 'tiny-random';
const MAIN = mainQueue(MODEL);
let server: TestServer;
let connection: Redis;
let folder: string;
let texts: FirstTexts;
let tokenizer: string;
let ids: readonly number[];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, prefix: '{t}', name: 'test' });
  folder = await mkdtemp(join(tmpdir(), 'shoal-first-text-'));
  const model = await openModel(MODEL, { cacheDir: folder });
  const opened = await openTokenizer(model, { maxTokens: 64 });
  tokenizer = opened.hash;
  ids = Array.from(opened.encode('the sea is deep').ids);
});
beforeEach(async () => {
  await server.command('FLUSHALL');
  texts = new FirstTexts({
    connection,
    prefix: '{t}',
    store: { cacheDir: folder, modelsDir: undefined, modelsReadOnly: false },
  });
});
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
  await rm(folder, { recursive: true });
});

async function put(data: unknown, input?: Buffer): Promise<unknown> {
  const keys = keySpace('{t}');
  await connection.hset(keys.job(MAIN, 'job'), 'data', JSON.stringify(data));
  if (input !== undefined) await connection.set(keys.input(MAIN, 'job'), input);
  return texts.of(MAIN, MAIN, 'job');
}

test('texts in the job, begun at eighty characters', async () => {
  expect(await put({ v: 1, texts: ['short'] })).toEqual({ text: 'short' });
  expect(await put({ v: 1, texts: ['long '.repeat(100)] })).toEqual({ text: `${'long '.repeat(16)}…` });
  expect(await put({ v: 1, job: { v: 1, texts: ['in quarantine'] } })).toEqual({ text: 'in quarantine' });
});

test('texts and tokens at the input key', async () => {
  expect(await put({ v: 1, input: { rows: 1 } }, encodeTexts(['a text']))).toEqual({ text: 'a text' });
  expect(await put({ v: 1, input: { tokenizer } }, encodeTokens([ids]))).toEqual({
    text: expect.stringContaining('sea'),
  });
});

test('what cannot be told is said', async () => {
  expect(await put({ v: 1, input: { rows: 1 } })).toEqual({ problem: 'its input is gone, or holds no text' });
  expect(await put({ v: 1, input: { tokenizer: tokenizerHash(Buffer.from('{}')) } }, encodeTokens([ids]))).toEqual({
    problem: expect.stringContaining('another vocabulary'),
  });
  expect(await put({ v: 1, input: {} }, Buffer.from('not an input'))).toEqual({ problem: expect.any(String) });
  expect(await texts.of('embed-unknown', MAIN, 'job')).toEqual({ problem: expect.any(String) });
});
