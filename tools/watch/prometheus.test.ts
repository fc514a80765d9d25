// What Prometheus' and Alertmanager's own programs say of infra/prometheus: the forms are right, every incident raises
// exactly the alerts that it should by the real clocks (at night: hours of series take ten seconds of a core), and each
// severity reaches its receiver.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { stringify } from 'yaml';
import { BOARDS } from './boards/boards.ts';
import { expressionsOf } from './boards/panel.ts';
import { findWatchProgram } from './programs.ts';
import { INFRA, RULE_FILES } from './rules-file.ts';

const FOLDER = join(INFRA, 'prometheus');
const TESTS = readdirSync(join(FOLDER, 'tests')).filter((name) => name.endsWith('.test.yml'));

const promtool = findWatchProgram('promtool');
const amtool = findWatchProgram('amtool');
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNight) console.log('incidents are replayed through the rules at night: SHOAL_TEST_NIGHTLY=1');
for (const { missing } of [promtool, amtool])
  if (missing !== undefined) console.log(`infra/prometheus is not tried: ${missing}`);

function ran(program: ReturnType<typeof findWatchProgram>, ...args: string[]): { status: number | null; said: string } {
  const { status, stdout, stderr } = spawnSync(program.path ?? '', args, { cwd: FOLDER, encoding: 'utf8' });
  return { status, said: `${stdout}${stderr}` };
}

test.skipIf(promtool.path === undefined)('Prometheus takes the rules and the example', () => {
  expect(ran(promtool, 'check', 'rules', ...RULE_FILES)).toMatchObject({ status: 0 });
  expect(ran(promtool, 'check', 'config', 'prometheus.yml')).toMatchObject({ status: 0 });
});

test.skipIf(promtool.path === undefined || !isNight).each(TESTS)('incidents raise exactly their alerts: %s', (name) => {
  expect(ran(promtool, 'test', 'rules', join('tests', name))).toMatchObject({ status: 0 });
});

test.skipIf(amtool.path === undefined)('pages wake somebody, and everything else is a ticket', () => {
  expect(ran(amtool, 'check-config', 'alertmanager.yml')).toMatchObject({ status: 0 });
  const receiverOf = (...labels: string[]): string =>
    spawnSync(amtool.path ?? '', ['config', 'routes', 'test', '--config.file=alertmanager.yml', ...labels], {
      cwd: FOLDER,
      encoding: 'utf8',
    }).stdout.trim();
  expect(receiverOf('alertname=ShoalQueueServerDown', 'severity=page')).toBe('page');
  expect(receiverOf('alertname=ShoalQuarantined', 'severity=ticket')).toBe('ticket');
  expect(receiverOf('alertname=Other')).toBe('ticket');
});

test.skipIf(promtool.path === undefined)('Prometheus understands every expression of the boards', () => {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-boards-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const rules = BOARDS.flatMap((board) => expressionsOf(board).map(({ expr }) => expr.replaceAll(/\$\w+/g, '.*')));
  const file = join(folder, 'boards.yml');
  writeFileSync(
    file,
    stringify({
      groups: [{ name: 'boards', rules: rules.map((expr, index) => ({ record: `board:${index}`, expr })) }],
    }),
  );
  expect(ran(promtool, 'check', 'rules', file)).toMatchObject({ status: 0 });
});
