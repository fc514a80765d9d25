// Numbers as people read them. A figure has three digits that count, never more than fit beside its label.

const UNITS = ['B', 'KB', 'MB', 'GB', 'TB'] as const;

/** "1.2 GB"; units of 1,000 as cards are sold. */
export function bytesText(bytes: number): string {
  let [value, at] = [Math.max(0, bytes), 0];
  while (value >= 999.5 && at < UNITS.length - 1) [value, at] = [value / 1_000, at + 1];
  return `${at === 0 ? Math.round(value) : threeDigits(value)} ${UNITS[at]}`;
}

/** "184", "12.3 k", "1.2 M" */
export function amountText(amount: number): string {
  const [value, unit] = amount >= 1e6 ? [amount / 1e6, ' M'] : amount >= 1e4 ? [amount / 1e3, ' k'] : [amount, ''];
  if (unit !== '') return `${threeDigits(value)}${unit}`;
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString('en') : threeDigits(value);
}

/** "0.4 s", "12 s", "3 min", "2 h", "5 d" */
export function spanText(ms: number): string {
  const seconds = Math.max(0, ms) / 1_000;
  if (seconds === 0) return '0 s';
  if (seconds < 10) return `${threeDigits(Math.max(0.1, seconds)).replace(/(\.\d)\d$/, '$1')} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3_600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** "87 %" of a share from 0 to 1. */
export function shareText(share: number): string {
  return `${Math.round(100 * share)} %`;
}

/** "1 job waits", "2 jobs wait" */
export function counted(count: number, one: string, many: string): string {
  return `${count.toLocaleString('en')} ${count === 1 ? one : many}`;
}

/** "2026-11-27 02:04:10 UTC" */
export function timeText(epochMs: number): string {
  return `${new Date(epochMs).toISOString().slice(0, 19).replace('T', ' ')} UTC`;
}

function threeDigits(value: number): string {
  if (value >= 100) return String(Math.round(value));
  return value >= 10 ? value.toFixed(1).replace(/\.0$/, '') : value.toFixed(2).replace(/\.?0+$/, '');
}
