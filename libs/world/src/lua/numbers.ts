// Numbers as Lua 5.1 and C's printf and strtod have them.

/** `%.14g`, which is how Lua writes a number. */
export function formatNumber(value: number): string {
  if (Number.isInteger(value) && Math.abs(value) < 1e14) return Object.is(value, -0) ? '-0' : String(value);
  return formatG(value, 14);
}

/** printf's `%.<digits>g`. */
export function formatG(value: number, digits: number): string {
  if (!Number.isFinite(value)) return formatSpecial(value);
  if (value === 0) return Object.is(value, -0) ? '-0' : '0';
  const [mantissa = '', exponentText = ''] = exponential(value, Math.max(digits, 1) - 1).split('e');
  const exponent = Number(exponentText);
  if (exponent < -4 || exponent >= digits) return withExponent(withoutZeros(mantissa), exponent);
  return withoutZeros(fixed(value, Math.min(Math.max(digits - 1 - exponent, 0), 100)));
}

/** printf's `%.<digits>e`. */
export function formatE(value: number, digits: number): string {
  if (!Number.isFinite(value)) return formatSpecial(value);
  const [mantissa = '', exponent = ''] = exponential(value, digits).split('e');
  return withExponent(Object.is(value, -0) ? `-${mantissa}` : mantissa, Number(exponent));
}

/** printf's `%.<digits>f`, exact beyond 1e21 as well. */
export function formatF(value: number, digits: number): string {
  if (!Number.isFinite(value)) return formatSpecial(value);
  if (Math.abs(value) >= 1e21) return `${BigInt(value)}${digits > 0 ? `.${'0'.repeat(digits)}` : ''}`;
  const text = fixed(value, digits);
  return Object.is(value, -0) ? `-${text}` : text;
}

/** So many digits more show that a number lies in the middle between two texts. */
const PROOF = 30;

/**
 * toExponential as C has it: of two texts that are equally near the one that ends with an even digit. JavaScript takes the
 * larger one.
 */
function exponential(value: number, digits: number): string {
  const rounded = value.toExponential(digits);
  const [mantissa = '', exponent = ''] = value.toExponential(Math.min(digits + PROOF, 100)).split('e');
  const kept = mantissa.slice(0, mantissa.indexOf('.') + 1 + digits).replace(/\.$/, '');
  return isMiddle(mantissa, kept) ? `${kept}e${exponent}` : rounded;
}

/** The same of toFixed. */
function fixed(value: number, digits: number): string {
  const rounded = value.toFixed(digits);
  if (Number.isInteger(value)) return rounded;
  const long = value.toFixed(Math.min(digits + PROOF, 100));
  const kept = long.slice(0, long.indexOf('.') + 1 + digits).replace(/\.$/, '');
  return isMiddle(long, kept) ? kept : rounded;
}

/** Whether a text goes on with 5 and zeros behind what is kept of it, and what is kept ends even. */
function isMiddle(long: string, kept: string): boolean {
  return /^\.?50*$/.test(long.slice(kept.length)) && /[02468]$/.test(kept);
}

/** A result that is no number has its sign set on x86, and prints so. */
export function formatSpecial(value: number): string {
  if (Number.isNaN(value)) return '-nan';
  return value > 0 ? 'inf' : '-inf';
}

function withoutZeros(text: string): string {
  return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

function withExponent(mantissa: string, exponent: number): string {
  return `${mantissa}e${exponent < 0 ? '-' : '+'}${String(Math.abs(exponent)).padStart(2, '0')}`;
}

/** A text as C reads it: a byte 0 ends it. */
export function upToZero(text: string): string {
  const end = text.indexOf('\0');
  return end < 0 ? text : text.slice(0, end);
}

const DECIMAL = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?/i;
const HEXADECIMAL = /^([+-]?)0x([\da-f]*)(?:\.([\da-f]*))?(?:p([+-]?\d+))?/i;
const SPECIAL = /^([+-]?)(inf(?:inity)?|nan(?:\(\w*\))?)/i;
const SPACE = /^[ \t\n\v\f\r]+/;

/** strtod: the number at the head of a text, and where it ends. Undefined where there is none. */
export function scanNumber(text: string): { readonly value: number; readonly end: number } | undefined {
  const start = SPACE.exec(text)?.[0].length ?? 0;
  const rest = text.slice(start);
  const hexadecimal = HEXADECIMAL.exec(rest);
  if (hexadecimal !== null) {
    const [whole, sign, integer = '', fraction = '', power = '0'] = hexadecimal;
    if (integer + fraction !== '') {
      const size = Number.parseInt(integer + fraction, 16) * 2 ** (Number(power) - 4 * fraction.length);
      return { value: sign === '-' ? -size : size, end: start + whole.length };
    }
  }
  const decimal = DECIMAL.exec(rest);
  if (decimal !== null) return { value: Number(decimal[0]), end: start + decimal[0].length };
  const special = SPECIAL.exec(rest);
  if (special === null) return undefined;
  const size = special[2]!.toLowerCase().startsWith('inf') ? Infinity : Number.NaN;
  return { value: special[1] === '-' ? -size : size, end: start + special[0].length };
}

/** Lua's conversion of a string: the whole of it, up to a byte 0, is a number, with space around it. */
export function parseNumber(given: string): number | undefined {
  if (given.length < 16 && /^\d+$/.test(given)) return Number(given);
  const text = upToZero(given);
  const found = scanNumber(text);
  if (found === undefined) return undefined;
  return /^[ \t\n\v\f\r]*$/.test(text.slice(found.end)) ? found.value : undefined;
}
