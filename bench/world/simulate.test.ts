import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

function simulate(...args: string[]) {
  const bench = fileURLToPath(new URL('./simulate.ts', import.meta.url));
  const ran = spawnSync(process.execPath, ['--conditions=@shoal/source', bench, ...args], { encoding: 'utf8' });
  return { code: ran.status, said: ran.stdout, refused: ran.stderr.trim() };
}

test('two seeds are run and counted', () => {
  const { code, said } = simulate('--from', '0', '--seeds', '2', '--processes', '1', '--json');
  expect(JSON.parse(said)).toMatchObject({ schedules: 2, failed: [] });
  expect(code).toBe(0);
});

test.each([
  [['--trace'], '--trace needs --seed or --plan: which run is meant?'],
  [['--plant', 'nothing'], 'no planted mistake is called nothing; there are commit-without-lock,'],
])('%j is refused: %s', (args, reason) => {
  const { code, refused } = simulate(...args);
  expect(refused).toContain(reason);
  expect(code).toBe(2);
});
