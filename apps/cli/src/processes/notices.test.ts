import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import type { Logger } from '@shoal/core';
import type { Terminal } from '../terminal.ts';
import { noticesOf } from './notices.ts';

function setup({ isQuiet = false } = {}): { readonly log: Logger; readonly said: () => string } {
  const stderr = new PassThrough();
  let said = '';
  stderr.setEncoding('utf8').on('data', (text: string) => (said += text));
  const log = noticesOf({ stderr } as unknown as Terminal, { isQuiet });
  return { log, said: () => said };
}

test('what the client tells its log is a line for the person, with its facts', () => {
  const { log, said } = setup();
  log.warn({ store: '10.0.0.5:6379', reason: 'OOM' }, 'a payload server failed');
  log.warn({ workers: ['a', 'b'], payloadServers: ['10.0.0.5:6379'] }, 'these workers have others');
  log.info({ store: '10.0.0.5:6379' }, 'the payload server answers again');
  log.error({ err: new Error('of redis://me:secret@one') }, 'a step failed');
  log.debug({}, 'nothing');
  expect(said().split('\n')).toEqual([
    'shoal: a payload server failed (store: 10.0.0.5:6379; reason: OOM)',
    'shoal: these workers have others (workers: a, b; payload servers: 10.0.0.5:6379)',
    'shoal: the payload server answers again (store: 10.0.0.5:6379)',
    'shoal: a step failed (error: of redis://***@one)',
    '',
  ]);
});

test('of a thousand jobs it is said once, and what a command says by itself is not said again', () => {
  const { log, said } = setup();
  for (const jobId of ['1', '2', '3']) log.warn({ jobId, code: 'PAYLOAD_LOST' }, 'asking for the job again');
  log.warn({ connection: 'x', server: 'y', reason: 'z' }, 'queue server lost, reconnecting');
  log.info({ retryAfterMs: 1, reason: 'rows' }, 'the queue takes no more for now');
  expect(said()).toBe('shoal: asking for the job again (job id: 1; code: PAYLOAD_LOST)\n');
});

test('a quiet command says nothing of it', () => {
  const { log, said } = setup({ isQuiet: true });
  log.warn({ store: 'a' }, 'a payload server failed');
  expect(said()).toBe('');
});
