import { execFile } from 'node:child_process';
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
