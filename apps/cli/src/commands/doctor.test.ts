import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { Sandbox } from '../testing/shoal-process.ts';

const box = new Sandbox();
afterAll(() => box.remove());

test('doctor looks at a cache folder that is not there and does not make it', async () => {
  const cacheDir = join(box.root, 'none', 'such');
  const { stdout } = await box.run(['doctor', '--json', '--device', 'cpu', '--cache-dir', cacheDir], {
    environment: { PATH: box.files },
  });
  const { findings } = JSON.parse(stdout) as { findings: { about: string; found: string; state: string }[] };
  expect(findings.find(({ about }) => about === 'cache folder')).toMatchObject({
    found: expect.stringMatching(/none\/such \(not made yet\), .* GB free/),
  });
  expect(findings.find(({ about }) => about === 'queue server')).toMatchObject({
    state: 'absent',
    found: expect.stringMatching(/a private server is used, not fetched yet/),
  });
  expect(existsSync(join(box.root, 'none'))).toBe(false);
});
