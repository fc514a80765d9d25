// Fields of a request's body, one by one: taken, checked, and refused by name with OpenAI's codes. Nothing is coerced
// and nothing is ignored. Knows no route.

import { storedName } from '@shoal/contract';
import { invalid, type Problem } from './problem.ts';

/**
 * The fields of `body` that were given; one that is not in `names` is refused. Undefined and null both mean "not
 * given": some clients send null for what was left out. `place`: of an object within the body.
 */
export function checkedBody<const Name extends string>(
  body: unknown,
  names: readonly Name[],
  place?: string,
): { readonly [Field in Name]?: unknown } {
  if (typeof body !== 'object' || body === null || Array.isArray(body))
    throw wrongType(place ?? null, 'a JSON object', body);
  const stranger = Object.keys(body).find((name) => !names.some((field) => field === name));
  if (stranger !== undefined) {
    const param = shortened(place === undefined ? stranger : `${place}.${stranger}`);
    throw invalid('unknown_parameter', param, `"${param}" is not a parameter here; there are ${names.join(', ')}`);
  }
  const fields: { [Field in Name]?: unknown } = {};
  for (const name of names)
    if (Object.hasOwn(body, name)) fields[name] = (Reflect.get(body, name) as unknown) ?? undefined;
  return fields;
}

/** The first value is the default. */
export function oneOf<const Value extends string>(
  name: string,
  asked: unknown,
  values: readonly [Value, ...Value[]],
): Value {
  if (asked === undefined) return values[0];
  const found = values.find((value) => value === asked);
  if (found === undefined)
    throw invalid(
      'invalid_value',
      name,
      `"${name}" must be ${values.map((value) => `"${value}"`).join(' or ')}, found ${shown(asked)}`,
    );
  return found;
}

export function missing(name: string, wanted: string): Problem {
  return invalid('missing_required_parameter', name, `"${name}" is missing: ${wanted}`);
}

export function wholeNumber(
  name: string,
  asked: unknown,
  { from, to }: { readonly from: number; readonly to: number },
): number {
  if (typeof asked !== 'number' || !Number.isInteger(asked)) throw wrongType(name, 'a whole number', asked);
  if (asked < from)
    throw invalid('integer_below_min_value', name, `"${name}" must be ${from} to ${to}, found ${asked}`);
  if (asked > to) throw invalid('integer_above_max_value', name, `"${name}" must be ${from} to ${to}, found ${asked}`);
  return asked;
}

/** A list with something in it. `most`: as many items as one request may have. */
export function list(
  name: string,
  asked: unknown,
  wanted: string,
  most = Number.POSITIVE_INFINITY,
): readonly unknown[] {
  if (asked === undefined) throw missing(name, wanted);
  if (!Array.isArray(asked)) throw wrongType(name, wanted, asked);
  if (asked.length === 0) throw invalid('empty_array', name, `"${name}" is an empty array; it must be ${wanted}`);
  if (asked.length > most)
    throw invalid(
      'array_above_max_length',
      name,
      `"${name}" has ${asked.length} items; at most ${most} go into one request`,
    );
  return asked;
}

export function wrongType(param: string | null, wanted: string, found: unknown): Problem {
  return invalid(
    'invalid_type',
    param,
    `${param === null ? 'the body' : `"${param}"`} must be ${wanted}, found ${shown(found)}`,
  );
}

export function shown(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'an array';
  return typeof value === 'object' ? 'an object' : shortened(JSON.stringify(value) ?? typeof value);
}

/** As it was asked for, and of ORG/NAME what the store calls it. */
export function shownModel(asked: string): string {
  const stored = storedName(asked);
  return `"${shortened(asked)}"${stored === asked ? '' : ` ("${shortened(stored)}" in the store)`}`;
}

export function shortened(text: string): string {
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}
