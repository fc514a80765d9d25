import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { alertsOf, readGroups, recordsOf, type RuleGroup } from '../watch/rules-file.ts';
import { LEAST_FOR_MS, milliseconds, shortenedRules } from './shorten.ts';

const withoutWindows = (expr: string): string => expr.replaceAll(/\[\w+\]/g, '[]');

test('a drill has every rule of the real file, with each duration divided and nothing else changed', () => {
  const groups = readGroups('shoal.rules.yml');
  const short = (parse(shortenedRules(groups, 30)) as { groups: RuleGroup[] }).groups;
  expect(alertsOf(short).map(({ alert }) => alert)).toEqual(alertsOf(groups).map(({ alert }) => alert));
  for (const [index, rule] of alertsOf(groups).entries()) {
    const shorter = alertsOf(short)[index]!;
    expect(withoutWindows(shorter.expr)).toBe(withoutWindows(rule.expr));
    expect({ ...shorter, expr: '', for: '' }).toEqual({ ...rule, expr: '', for: '' });
    const leastMs = rule.for === undefined ? 0 : LEAST_FOR_MS;
    expect(milliseconds(shorter.for ?? '0s')).toBe(Math.max(leastMs, milliseconds(rule.for ?? '0s') / 30));
  }
  expect(recordsOf(short).find(({ record }) => record === 'shoal:http_errors:ratio_rate6h')?.expr).toContain(
    '[720000ms]',
  );
});

test('durations are read as Prometheus writes them', () => {
  expect(['30s', '15m', '1h30m', '250ms'].map(milliseconds)).toEqual([30_000, 900_000, 5_400_000, 250]);
  expect(() => milliseconds('soon')).toThrow('soon is no duration of Prometheus');
});
