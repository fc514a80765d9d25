import { expect, test } from 'vitest';
import { startTestServer } from '@shoal/queue/testing';
import { untilItAnswers } from './queue-connection.ts';

test('a slow server is waited for, which is said, until it answers or the person has had enough', async () => {
  const server = await startTestServer({ topology: 'single' });
  const place = { redisUrl: server.url, prefix: '{shoal}' };
  const said: string[] = [];
  const person = new AbortController();
  process.kill(server.pid, 'SIGSTOP');
  try {
    const patient = untilItAnswers({ ...place, signal: AbortSignal.any([]), onSlow: (line) => said.push(line) });
    const hasty = untilItAnswers({ ...place, signal: person.signal, onSlow: () => person.abort() });
    await expect(hasty).rejects.toMatchObject({ code: 'QUEUE_UNREACHABLE' });
    process.kill(server.pid, 'SIGCONT');
    await patient;
  } finally {
    process.kill(server.pid, 'SIGCONT');
    await server.stop();
  }
  expect(said).toEqual([expect.stringMatching(/^waiting for the queue server at redis:\S+, which takes connections/)]);
});
