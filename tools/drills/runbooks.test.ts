// Every command of every runbook: by day that it names what there is, at night that a shell executes it on a fleet that
// is well. What needs a fault to be of use is executed by the drill that has this fault.

import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { hasProgram } from '../infra/tools-of-others.ts';
import { runbookOf } from '../watch/rules-file.ts';
import { commandsIn } from '../watch/runbook.ts';
import { DRILL_PLANS } from './drill-list.ts';
import { looked } from './run-drill.ts';
import { Stage } from './stage.ts';

const ROOT = join(import.meta.dirname, '../..');
const FOLDER = join(ROOT, 'docs/runbooks');
const PAGES = new Map(readdirSync(FOLDER).map((name) => [name, readFileSync(join(FOLDER, name), 'utf8')]));
const LOOKS = new Set([...PAGES.values()].flatMap((page) => commandsIn(page, 'look')));
const CURES = new Set([...PAGES.values()].flatMap((page) => commandsIn(page, 'cure')));
/** Variables of which docs/runbooks/README.md tells what they are. */
const VARIABLES = new Set(
  [...PAGES.get('README.md')!.matchAll(/^\| (`.*?`) \|/gm)].flatMap(([, cell = '']) =>
    [...cell.matchAll(/`(\w+)`/g)].map(([, name = '']) => name),
  ),
);
/** What the machine brings, and what it is asked for; on a stage `systemctl` and `redis-cli` are its own. */
const PROGRAMS = ['shoal', 'sudo systemctl', 'redis-cli', 'curl', 'openssl', 'nvidia-smi', 'dmesg'];
/** Not executed on a fleet that is well. */
const NEEDS_ITS_FAULT: Readonly<Record<string, string>> = {
  'shoal queue quarantine return "$JOB" --queue "$QUEUE"': 'needs a job in quarantine: drill 12 executes it',
};
/** In the text of pages, and not executed: what it is, and why. */
const INLINE: Readonly<Record<string, string>> = {
  journalctl: 'needs systemd; the units that it names are looked for',
  systemctl: 'needs systemd; the units that it names are looked for',
  kubectl: 'needs a cluster; what the chart renders is validated in tools/infra/chart.test.ts',
};

/** Units of a command: `shoal-worker@0` is `shoal-worker@.service`; what is no unit of ours is left. */
function unitsIn(command: string): readonly string[] {
  const named = command.replaceAll('"$UNIT"', 'shoal-worker@0');
  return [...named.matchAll(/(?<=\s)shoal-[a-z]+(@\w*)?/g)].map(([unit]) => unit.replace(/@\w*/, '@'));
}

/** What is wrong with a command. */
function problemsOf(command: string): readonly string[] {
  const unknown = [...command.matchAll(/\$\{?(\w+)/g)].flatMap(([, name = '']) => (VARIABLES.has(name) ? [] : [name]));
  return [
    ...(PROGRAMS.some((program) => command === program || command.startsWith(`${program} `))
      ? []
      : [`${command}: no program that a person on call has`]),
    ...unknown.map((name) => `${command}: README.md does not tell what ${name} is`),
    ...problemsOfUnits(command),
  ];
}

function problemsOfUnits(command: string): readonly string[] {
  if (!/systemctl|journalctl/.test(command)) return [];
  const units = unitsIn(command);
  if (units.length === 0) return [`${command}: names no unit of infra/systemd`];
  return units
    .filter((unit) => !existsSync(join(ROOT, `infra/systemd/${unit}.service`)))
    .map((unit) => `${command}: infra/systemd has no ${unit}`);
}

test('a command that names what is not there is seen', () => {
  expect(problemsOf('sudo systemctl restart "$UNIT"')).toEqual([]);
  expect(problemsOf('sudo systemctl restart shoal-cache')).toEqual([expect.stringContaining('has no shoal-cache')]);
  expect(problemsOf('sudo systemctl restart valkey')).toEqual([expect.stringContaining('names no unit')]);
  expect(problemsOf('redis-cli -u "$SERVER" PING')).toEqual([expect.stringContaining('what SERVER is')]);
  expect(problemsOf('htop')).toEqual([expect.stringContaining('no program')]);
});

test('every command of a runbook names programs, units and variables that there are', () => {
  expect([...LOOKS, ...CURES].flatMap(problemsOf)).toEqual([]);
  const inText = [...PAGES].flatMap(([name, page]) =>
    [...page.matchAll(/`((?:journalctl|systemctl|kubectl) [^`]+)`/g)].map(([, command = '']) => ({ name, command })),
  );
  expect(new Set(inText.map(({ command }) => command.split(' ')[0]))).toEqual(new Set(Object.keys(INLINE)));
  expect(
    inText.flatMap(({ name, command }) => problemsOfUnits(command).map((problem) => `${name}: ${problem}`)),
  ).toEqual([]);
});

test('what fleet status, the fleet page and drills name as a runbook is one', () => {
  const tellers = [
    'apps/cli/src/commands/fleet.ts',
    'apps/dashboard/src/fleet/notices.ts',
    'tools/drills/drill-list.ts',
  ];
  const named = tellers.map((path) => {
    const text = readFileSync(join(ROOT, path), 'utf8');
    return [...text.matchAll(/see\('([\w-]+)'\)|runbook: '([\w-]+)'|docs\/runbooks\/([\w-]+)\.md/g)].map(
      ([, ofStatus, ofPage, ofDrill]) => `${ofStatus ?? ofPage ?? ofDrill}.md`,
    );
  });
  for (const names of named) expect(names.length).toBeGreaterThan(4);
  expect(named.flat().filter((name) => !PAGES.has(name))).toEqual([]);
});

test('a command that is not executed on a well fleet is the cure of a drill', () => {
  const cured = new Set(
    DRILL_PLANS.flatMap(({ cure }) =>
      cure === undefined ? [] : commandsIn(readFileSync(join(ROOT, runbookOf(cure)), 'utf8'), 'cure'),
    ),
  );
  for (const command of Object.keys(NEEDS_ITS_FAULT)) expect([...cured]).toContain(command);
});

const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNight) console.log('commands of runbooks are executed at night: SHOAL_TEST_NIGHTLY=1');

test.skipIf(!isNight)('every command of a runbook is executed by a shell, and a cure succeeds', async () => {
  const stage = await Stage.open({ workers: 1, http: true });
  const wrong: string[] = [];
  try {
    const seen = JSON.parse(await stage.shell('shoal fleet status --json')) as { workers: { workerId: string }[] };
    const names = { HOST: '127.0.0.1:1', NAME: 'localhost', WORKER: seen.workers[0]!.workerId };
    const isHere = (command: string): boolean => {
      const reason = NEEDS_ITS_FAULT[command] ?? reasonOfMachine(command);
      if (reason !== undefined) console.log(`not executed: ${command}: ${reason}`);
      return reason === undefined;
    };
    for (const command of [...LOOKS].filter(isHere))
      await looked(stage, command, names).then(console.log, (error: unknown) => wrong.push(String(error)));
    for (const command of [...CURES].filter(isHere))
      await stage.shell(command, names).then(console.log, (error: unknown) => wrong.push(String(error)));
  } finally {
    await stage.close();
  }
  expect(wrong).toEqual([]);
  expect(stage.box.processes()).toEqual([]);
});

function reasonOfMachine(command: string): string | undefined {
  const [program = ''] = command.split(' ');
  return ['nvidia-smi', 'openssl', 'dmesg', 'curl'].includes(program) && !hasProgram(program)
    ? `this machine has no ${program}`
    : undefined;
}
