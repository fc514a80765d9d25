// The rules of infra/prometheus as data: for the table of alerts in docs/operations.md, for checks of names, and for
// drills, which run the same rules in less time. Prometheus itself checks the form (`promtool check rules`).

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';

export const INFRA = join(import.meta.dirname, '../../infra');
/** Series of Shoal alone; then those that need the exporters of others. */
export const RULE_FILES = ['shoal.rules.yml', 'other-exporters.rules.yml'] as const;

export interface RecordingRule {
  readonly record: string;
  readonly expr: string;
  readonly labels?: Readonly<Record<string, string>>;
}

export interface AlertRule {
  readonly alert: string;
  readonly expr: string;
  /** How long it must hold, such as "5m"; left out, it fires at once. */
  readonly for?: string;
  readonly labels: { readonly severity: string };
  readonly annotations: { readonly summary: string; readonly description: string; readonly runbook_url: string };
}

export interface RuleGroup {
  readonly name: string;
  readonly rules: readonly (RecordingRule | AlertRule)[];
}

/** The groups of a file of infra/prometheus, as they stand there. */
export function readGroups(file: string): readonly RuleGroup[] {
  const { groups } = parse(readFileSync(join(INFRA, 'prometheus', file), 'utf8')) as { groups: RuleGroup[] };
  return groups;
}

export function alertsOf(groups: readonly RuleGroup[]): readonly AlertRule[] {
  return groups.flatMap(({ rules }) => rules.filter((rule): rule is AlertRule => 'alert' in rule));
}

export function recordsOf(groups: readonly RuleGroup[]): readonly RecordingRule[] {
  return groups.flatMap(({ rules }) => rules.filter((rule): rule is RecordingRule => 'record' in rule));
}

/** "ShoalQueueServerDown" is docs/runbooks/queue-server-down.md. */
export function runbookOf(alert: string): string {
  const words = alert.replace(/^Shoal/, '').replaceAll(/(?<=[a-z])(?=[A-Z])/g, '-');
  return `docs/runbooks/${words.toLowerCase()}.md`;
}
