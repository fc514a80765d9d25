// How servers write numbers that are not whole. Redis 7.0 prints 17 digits, Valkey (and later Redis) the shortest text
// that reads back as the same.

import { formatG, formatSpecial } from '../lua/numbers.ts';
import type { Flavour } from './command.ts';

/** A score, as ZSCORE tells it. */
export function scoreText(score: number, flavour: Flavour): string {
  if (!Number.isFinite(score)) return Number.isNaN(score) ? 'nan' : formatSpecial(score);
  if (flavour === 'redis-7.0') return formatG(score, 17);
  return shortest(score);
}

/** A number that a script passes to a command. */
export function argumentText(value: number, flavour: Flavour): string {
  if (flavour === 'redis-7.0') return formatG(value, 17);
  return Number.isFinite(value) ? shortest(value) : Number.isNaN(value) ? 'nan' : formatSpecial(value);
}

function shortest(value: number): string {
  if (Object.is(value, -0)) return '-0';
  return String(value);
}
