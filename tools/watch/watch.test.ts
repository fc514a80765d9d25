// Names that nobody tells, alerts that nobody explains: what Prometheus cannot know of rules and boards.

import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { drillsPage } from '../drills/drills-page.ts';
import { DRILL_PLANS, WITHOUT_DRILL } from '../drills/drill-list.ts';
import { withAlertTable } from './alert-table.ts';
import { boardFiles, BOARDS } from './boards/boards.ts';
import { expressionsOf } from './boards/panel.ts';
import { alertsOf, INFRA, readGroups, recordsOf, RULE_FILES, runbookOf } from './rules-file.ts';
import { commandsIn } from './runbook.ts';
import { selectorsIn, unknownSeries } from './series.ts';

const ROOT = join(INFRA, '..');
const GROUPS = RULE_FILES.flatMap(readGroups);
const ALERTS = alertsOf(GROUPS);
const RECORDS = new Set(recordsOf(GROUPS).map(({ record }) => record));
const TESTS = readdirSync(join(INFRA, 'prometheus/tests'))
  .map((name) => readFileSync(join(INFRA, 'prometheus/tests', name), 'utf8'))
  .join('\n');

test('every series of the rules exists, with the labels and values that it is asked for', () => {
  const wrong = [
    ...ALERTS.map(({ alert, expr }) => [alert, expr] as const),
    ...recordsOf(GROUPS).map(({ record, expr }) => [record, expr] as const),
  ].flatMap(([name, expr]) => unknownSeries(expr, RECORDS).map((problem) => `${name}: ${problem}`));
  expect(wrong).toEqual([]);
});

test('every series of the boards exists', () => {
  const wrong = BOARDS.flatMap((board) => [
    ...expressionsOf(board).flatMap(({ panel, expr }) =>
      unknownSeries(expr, RECORDS).map((problem) => `${board.title}, ${panel}: ${problem}`),
    ),
    ...board.variables.flatMap(({ of }) => unknownSeries(of, RECORDS)),
  ]);
  expect(wrong).toEqual([]);
});

const problemsOf = (expr: string): readonly string[] => unknownSeries(expr, RECORDS);
const namesIn = (expr: string): readonly string[] => selectorsIn(expr).map(({ name }) => name);

test('a misspelt name, a label that is not there and a value that nobody has are found', () => {
  expect(problemsOf('rate(shoal_text_total[5m]) > 0')).toEqual([
    expect.stringContaining('nobody tells shoal_text_total'),
  ]);
  expect(problemsOf('shoal_queue_workers{stat="ready"} == 0')).toEqual([expect.stringContaining('has no label stat')]);
  expect(problemsOf('shoal_queue_jobs{state="wait"} > 0')).toEqual([
    expect.stringContaining('no value of state is wait'),
  ]);
  expect(problemsOf('histogram_quantile(0.9, sum by (le) (rate(shoal_run_duration_seconds[5m])))')).toHaveLength(1);
  expect(
    problemsOf('sum by (queue) (shoal_queue_jobs{state=~"waiting|active",queue="a"}) unless on (queue) up == 1'),
  ).toEqual([]);
});

test('names are found behind functions, groupings, numbers and durations', () => {
  expect(
    namesIn('1e3 * sum without (a, b) (rate(x_total{a="b c"}[5m] offset 1h)) > bool on () group_left (d) y:z:rate5m'),
  ).toEqual(['x_total', 'y:z:rate5m']);
  expect(namesIn('a and b or c unless d < +Inf')).toEqual(['a', 'b', 'c', 'd']);
});

test('every alert has a severity, a runbook of its name, a replay of its series, and a drill or a reason why not', () => {
  const drilled = new Set(DRILL_PLANS.flatMap(({ alerts }) => alerts));
  for (const { alert, labels, annotations } of ALERTS) {
    expect([alert, labels.severity]).toEqual([alert, expect.stringMatching(/^(page|ticket)$/)]);
    expect([alert, annotations.runbook_url]).toEqual([alert, runbookOf(alert)]);
    expect([alert, existsSync(join(ROOT, runbookOf(alert)))]).toEqual([alert, true]);
    expect([alert, TESTS.includes(`alertname="${alert}"`)]).toEqual([alert, true]);
    expect([alert, drilled.has(alert) !== alert in WITHOUT_DRILL]).toEqual([alert, true]);
  }
  const names = ALERTS.map(({ alert }) => alert);
  expect(new Set(names).size).toBe(names.length);
  expect(names).toEqual(expect.arrayContaining([...drilled, ...Object.keys(WITHOUT_DRILL)]));
});

test('no runbook is left of an alert that is gone, and each says what users feel, what to look at and whom to wake', () => {
  const pages = readdirSync(join(ROOT, 'docs/runbooks')).filter((name) => name !== 'README.md');
  expect(pages.map((name) => `docs/runbooks/${name}`).toSorted()).toEqual(
    ALERTS.map(({ alert }) => runbookOf(alert)).toSorted(),
  );
  for (const { alert } of ALERTS) {
    const page = readFileSync(join(ROOT, runbookOf(alert)), 'utf8');
    expect(page.startsWith(`# ${alert}\n`)).toBe(true);
    for (const part of ['**What users feel.**', '**What it means.**', '## See it', '## Cure it', '## Whom to wake'])
      expect([alert, part, page.includes(part)]).toEqual([alert, part, true]);
    expect([alert, commandsIn(page, 'look').length > 0]).toEqual([alert, true]);
  }
});

test('a drill that is cured by a runbook has commands there', () => {
  for (const { number, alerts, cure } of DRILL_PLANS) {
    if (cure === undefined) continue;
    expect([number, alerts.includes(cure)]).toEqual([number, true]);
    expect([number, commandsIn(readFileSync(join(ROOT, runbookOf(cure)), 'utf8'), 'cure')]).not.toEqual([number, []]);
  }
});

test('the table of alerts, the page of drills and the boards are those of the rules and the code: npm run docs makes them', () => {
  const page = readFileSync(join(ROOT, 'docs/operations.md'), 'utf8');
  expect(withAlertTable(page)).toBe(page);
  expect(readFileSync(join(ROOT, 'docs/drills.md'), 'utf8')).toBe(drillsPage());
  for (const { name, content } of boardFiles())
    expect([name, readFileSync(join(INFRA, 'grafana', name), 'utf8') === content]).toEqual([name, true]);
});
