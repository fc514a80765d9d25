// The table of alerts in docs/operations.md, made from the rules by tools/write-docs.ts. The page around it is written by
// hand; two comments say where the table begins and ends.

import { alertsOf, readGroups, runbookOf, RULE_FILES, type AlertRule } from './rules-file.ts';

const BEGIN = '<!-- alerts: made by npm run docs from infra/prometheus -->';
const END = '<!-- alerts end -->';

/** The page with the table of today between its two comments. Throws when they are not there. */
export function withAlertTable(page: string): string {
  const [before, rest] = page.split(BEGIN);
  const after = rest?.split(END)[1];
  if (before === undefined || after === undefined) throw new Error(`docs/operations.md has no "${BEGIN}" … "${END}"`);
  return `${before}${BEGIN}\n\n${alertTable()}\n${END}${after}`;
}

/** Markdown: those that wake somebody first. */
export function alertTable(): string {
  const alerts = RULE_FILES.flatMap((file) => alertsOf(readGroups(file)));
  const bySeverity = ['page', 'ticket'].flatMap((severity) =>
    alerts.filter(({ labels }) => labels.severity === severity),
  );
  return ['| alert | severity | after | what it says |', '| --- | --- | --- | --- |', ...bySeverity.map(row), ''].join(
    '\n',
  );
}

function row({ alert, labels: { severity }, for: after = 'at once', annotations }: AlertRule): string {
  const link = `[${alert}](${runbookOf(alert).replace('docs/', '')})`;
  return `| ${link} | ${severity} | ${after} | ${withoutValues(annotations.summary)}. ${annotations.description.trim()} |`;
}

/** "{{ $labels.queue }} is paused" reads "*queue* is paused". */
function withoutValues(summary: string): string {
  return summary.replaceAll(/\{\{ \$labels\.(\w+) \}\}/g, '*$1*').replaceAll(/\{\{ \$value[^}]*\}\}/g, '*so many*');
}
