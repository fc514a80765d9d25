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
  /** What `shoal fleet status` said meanwhile, the line that matters. */
  readonly status?: string;
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

Incidents made on purpose: a real Valkey, workers on simulated devices, the exporter, and a real Prometheus with the rules of
\`infra/prometheus\`, in which every duration is divided by one number (30 where the real
rule waits for a quarter of an hour, less where it waits for seconds). A drill makes its fault, waits until exactly the alerts that it expects fire and
no other, looks at \`shoal fleet status\`, executes the commands of the [runbook](runbooks/README.md), and waits until nothing fires. Where no
alert is expected, it waits for longer than the longest would take. Drills 8 to 10 look at what the dashboard's fleet page says, too. In some a user asks HTTP for a vector once a second, and
exactly the statuses that the drill expects come, each 429 and 503 with \`Retry-After\`. The real durations are what the tests of \`infra/prometheus/tests\` use.

\`\`\`
node --conditions=@shoal/source tools/drills/main.ts              # all: half an hour; needs prometheus on PATH (Debian's package)
node --conditions=@shoal/source tools/drills/main.ts --only 7     # one
\`\`\`

\`npm run test:nightly\` runs them as well. The last column is written by \`--record\` and \`npm run docs\`.

| | what happens | alerts, exactly | cured by | last run |
| --- | --- | --- | --- | --- |
${DRILL_PLANS.map((plan) => row(plan, results[plan.number])).join('\n')}

## Alerts without a drill

Their series are replayed by \`promtool\` like all others.

| alert | why not |
| --- | --- |
${Object.entries(WITHOUT_DRILL)
  .map(([alert, reason]) => `| ${linkOf(alert)} | ${reason} |`)
  .join('\n')}
`;
}

function row({ number, title, alerts, cure }: DrillPlan, result: DrillResult | undefined): string {
  const expected = alerts.length === 0 ? 'none' : alerts.map(linkOf).join(', ');
  return `| ${number} | ${title} | ${expected} | ${cure === undefined ? 'itself' : `runbook of ${cure}`} | ${told(result)} |`;
}

function told(result: DrillResult | undefined): string {
  if (result === undefined) return 'not yet';
  const { date, raisedAfterS, goneAfterS, status, users } = result;
  const raised = raisedAfterS === undefined ? 'silent' : `raised after ${raisedAfterS} s, gone after ${goneAfterS} s`;
  const parts = [
    raised,
    ...(status === undefined ? [] : [`\`${status}\``]),
    ...(users === undefined ? [] : [`users: ${users}`]),
  ];
  return `${date}: ${parts.join('; ')}`;
}

function linkOf(alert: string): string {
  return `[${alert}](${runbookOf(alert).replace('docs/', '')})`;
}
