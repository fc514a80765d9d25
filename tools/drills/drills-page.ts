// docs/drills.md, made from the list of drills and from what their last runs left in results.json.

import { readFileSync } from 'node:fs';
import { runbookOf } from '../watch/rules-file.ts';
import { DRILL_PLANS, WITHOUT_DRILL, type DrillPlan } from './drill-list.ts';

/** What a run of a drill leaves. Times in seconds of the drill's clock, in which alerts come `SHORTENED` times earlier. */
export interface DrillResult {
  /** Day of the run, such as 2026-11-27. */
  readonly date: string;
  /** Alerts that fired, sorted. */
  readonly raised: readonly string[];
  /** From the fault to the last of them; left out where none was expected. */
  readonly raisedAfterS?: number;
  /** From the first command of the runbook, or the end of the fault, until no alert fires. */
  readonly goneAfterS: number;
  /** Set where `fleet status` and the fleet page said what they have to. */
  readonly isSaid?: true;
  /** What a user of HTTP met who asked once a second, in words. */
  readonly users?: string;
}

export type DrillResults = Readonly<Record<string, DrillResult>>;

const RESULTS = new URL('results.json', import.meta.url);

export function readDrillResults(): DrillResults {
  return JSON.parse(readFileSync(RESULTS, 'utf8')) as DrillResults;
}

/** The page as Markdown. */
export function drillsPage(results: DrillResults = readDrillResults()): string {
  return `# Drills

What incidents look like, before one comes: each is made on purpose, on a fleet of its own. If an alert has brought you here, its
[runbook](runbooks/README.md) says what to do; this page says what else there is to see, and that the runbook was tried.

A fleet is a real Valkey, two workers on simulated devices, the exporter, the dashboard, in some drills HTTP with a user who asks for a vector once a second,
and a real Prometheus with the rules of \`infra/prometheus\`. A drill

1. makes its fault and waits until exactly the alerts that it expects fire; where it expects none, for longer than the longest would take;
2. reads what \`shoal fleet status\` and the dashboard's fleet page say, and fails where they do not say what stands [below](#what-is-said-meanwhile);
3. executes the commands of the runbook, and waits until nothing fires and jobs go through. None may be lost, and a user may meet no other statuses than
   those that the drill expects, each 429 and 503 with \`Retry-After\`.

So that this takes minutes, every duration of the rules is divided by the number in the column ÷: **an alert that was raised after 31 s at ÷ 10 comes after five minutes
in a fleet**. Tests in \`infra/prometheus/tests\` have the real durations. What a cure takes is not divided.

\`\`\`
node --conditions=@shoal/source tools/drills/main.ts              # all: half an hour; needs prometheus on PATH (Debian's package)
node --conditions=@shoal/source tools/drills/main.ts --only 7     # one
\`\`\`

\`npm run test:nightly\` runs them as well. The last column is written by \`--record\` and \`npm run docs\`.

| | what happens | alerts, exactly | ÷ | cured by | last run |
| --- | --- | --- | --- | --- | --- |
${DRILL_PLANS.map((plan) => row(plan, results[plan.number])).join('\n')}

## What is said meanwhile

Words that stand in a line of \`shoal fleet status\`, and in what the fleet page says needs somebody.

| | what happens | \`shoal fleet status\` | fleet page | seen |
| --- | --- | --- | --- | --- |
${DRILL_PLANS.map((plan) => saidRow(plan, results[plan.number])).join('\n')}

## Alerts without a drill

Their series are replayed by \`promtool\` like all others.

| alert | why not |
| --- | --- |
${Object.entries(WITHOUT_DRILL)
  .map(([alert, reason]) => `| ${linkOf(alert)} | ${reason} |`)
  .join('\n')}
`;
}

function saidRow({ number, title, status, page }: DrillPlan, result: DrillResult | undefined): string {
  const seen = result?.isSaid === true ? result.date : 'not yet';
  return `| ${number} | ${title} | ${wordsOf(status)} | ${wordsOf(page)} | ${seen} |`;
}

function wordsOf(words: readonly string[]): string {
  return words.length === 0 ? 'nothing needs anybody' : words.map((word) => `\`${word}\``).join(' … ');
}

function row({ number, title, alerts, cure, shorten }: DrillPlan, result: DrillResult | undefined): string {
  const expected = alerts.length === 0 ? 'none' : alerts.map(linkOf).join(', ');
  return `| ${number} | ${title} | ${expected} | ${shorten} | ${cure === undefined ? 'itself' : `runbook of ${cure}`} | ${told(result)} |`;
}

function told(result: DrillResult | undefined): string {
  if (result === undefined) return 'not yet';
  const { date, raisedAfterS, goneAfterS, users } = result;
  const raised = raisedAfterS === undefined ? 'silent' : `raised after ${raisedAfterS} s, gone after ${goneAfterS} s`;
  const parts = [raised, ...(users === undefined ? [] : [`users: ${users}`])];
  return `${date}: ${parts.join('; ')}`;
}

function linkOf(alert: string): string {
  return `[${alert}](${runbookOf(alert).replace('docs/', '')})`;
}
