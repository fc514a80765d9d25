// How servers write numbers that are not whole. Redis 7.0 prints 17 digits, Valkey (and later Redis) the shortest text
// that reads back as the same.

import { formatG, formatSpecial } from '../lua/numbers.ts';
import type { Flavour } from './command.ts';

/** A score, as ZSCORE tells it. */
export function scoreText(score: number, flavour: Flavour): string {
  if (!Number.isFinite(score)) return Number.isNaN(score) ? 'nan' : formatSpecial(score);
  if (Object.is(score, -0)) return '-0';
  return argumentText(score, flavour);
}

/** A number that a script passes to a command. */
export function argumentText(value: number, flavour: Flavour): string {
  if (flavour === 'redis-7.0') return formatG(value, 17);
  if (Number.isInteger(value) && Math.abs(value) <= 2 ** 62) return BigInt(value).toString();
  return Number.isFinite(value) ? shortest(value) : Number.isNaN(value) ? 'nan' : formatSpecial(value);
}

/** What fpconv makes, which Valkey prints with: when it takes an exponent is its own rule. */
function shortest(value: number): string {
  if (value === 0) return Object.is(value, -0) ? '-0' : '0';
  const [mantissa = '', exponentText = ''] = Math.abs(value).toExponential().split('e');
  const digits = mantissa.replace('.', '');
  const exponent = Number(exponentText);
  /** The value is its digits times ten to this. */
  const scale = exponent - digits.length + 1;
  return (value < 0 ? '-' : '') + placed(digits, scale, exponent);
}

function placed(digits: string, scale: number, exponent: number): string {
  const size = Math.abs(exponent);
  if (scale >= 0 && size < digits.length + 7) return digits + '0'.repeat(scale);
  if (scale < 0 && (scale > -7 || size < 4)) {
    const whole = digits.length + scale;
    return whole > 0 ? `${digits.slice(0, whole)}.${digits.slice(whole)}` : `0.${'0'.repeat(-whole)}${digits}`;
  }
  const fraction = digits.length > 1 ? `.${digits.slice(1)}` : '';
  return `${digits[0]}${fraction}e${exponent < 0 ? '-' : '+'}${size}`;
}
