import { execFile, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { testsRunBuild } from '@shoal/core/testing';
import { expect, test } from 'vitest';

test.runIf(process.platform === 'linux')(
  'a service that may open nothing more says so in one sentence, and ends with 1 to be started again',
  async () => {
    const program = fileURLToPath(
      new URL(`./testing/starved-service.${import.meta.url.endsWith('.ts') ? 'ts' : 'js'}`, import.meta.url),
    );
    const flags = testsRunBuild ? [] : ['--conditions=@shoal/source'];
    const ended = await promisify(execFile)(
      'sh',
      ['-c', 'ulimit -n 80; exec "$@"', 'sh', process.execPath, ...flags, program],
      { env: { PATH: process.env['PATH'], SHOAL_REDIS_URL: 'redis://127.0.0.1:1' } },
    ).catch((error: unknown) => error);
    expect(ended).toMatchObject({
      code: 1,
      stdout: '',
      stderr:
        'shoal worker: cannot listen on 127.0.0.1: this process has as many files and connections open as it may ' +
        '(EMFILE, 80); raise that with LimitNOFILE=65536 in its unit, or ulimit -n 65536\n',
    });
  },
);

test.each([
  ['start', 'stopped while it started'],
  ['stop', 'stopping takes too long, ending without what is open'],
])('a service whose %s never ends is gone some time after it was told to stop', async (which, line) => {
  const program = fileURLToPath(
    new URL(`./testing/hanging-service.${import.meta.url.endsWith('.ts') ? 'ts' : 'js'}`, import.meta.url),
  );
  const child = fork(program, [which], {
    execArgv: testsRunBuild ? [] : ['--conditions=@shoal/source'],
    env: { PATH: process.env['PATH'], SHOAL_REDIS_URL: 'redis://127.0.0.1:1', SHOAL_LOG_FORMAT: 'json' },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  });
  let said = '';
  child.stderr!.setEncoding('utf8').on('data', (text: string) => (said += text));
  while (!said.includes(which === 'start' ? 'starting' : '"msg":"ready"')) await once(child.stderr!, 'data');
  child.kill('SIGTERM');
  expect(await once(child, 'exit')).toEqual([0, null]);
  expect(said).toContain(line);
});
