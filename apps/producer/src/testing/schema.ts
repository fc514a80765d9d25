// JSON Schema as far as /openapi.json uses it: whether a value fits, and values that do. A keyword that it does not know
// throws, so that no part of the document goes unread.

import * as fc from 'fast-check';

export type Schema = Readonly<Record<string, unknown>>;

/** Keywords that say nothing about whether a value fits. */
const REMARKS = new Set(['description', 'default', 'title', 'examples']);

/** Looks at the schemas of one document. */
export class Schemas {
  private readonly components: Readonly<Record<string, Schema>>;

  constructor(document: unknown) {
    this.components = partOf(document, 'components', 'schemas') as Readonly<Record<string, Schema>>;
  }

  resolved(schema: Schema): Schema {
    const target = schema['$ref'];
    if (target === undefined) return schema;
    const found = this.components[String(target).replace('#/components/schemas/', '')];
    if (found === undefined) throw new Error(`nothing is called ${String(target)}`);
    return found;
  }

  fits(given: Schema, value: unknown): boolean {
    const schema = this.resolved(given);
    return Object.entries(schema).every(([keyword, said]) => this.keeps(keyword, said, value, schema));
  }

  /** Values that fit, those at the bounds among them; other than the schema's `oneOf` at its top asks. */
  values(given: Schema): fc.Arbitrary<unknown> {
    const schema = this.resolved(given);
    const { enum: choices, oneOf, type } = schema;
    if (choices !== undefined) return fc.constantFrom(...(choices as unknown[]));
    if (oneOf !== undefined && schema['properties'] === undefined)
      return fc.oneof(...(oneOf as Schema[]).map((one) => this.values(one)));
    const types = [type].flat() as string[];
    return fc.oneof(...types.map((one) => this.valuesOf(one, schema)));
  }

  private valuesOf(type: string, schema: Schema): fc.Arbitrary<unknown> {
    const { minimum, maximum, exclusiveMinimum, items, prefixItems, minItems = 0, maxItems = 3 } = schema as Bounds;
    const [least, most] = [minimum ?? exclusiveMinimum ?? -10, maximum ?? 1e9];
    switch (type) {
      case 'null':
        return fc.constant(null);
      case 'boolean':
        return fc.boolean();
      case 'integer':
        return fc.oneof(fc.constantFrom(least, most), fc.integer({ min: least, max: Math.min(most, least + 20) }));
      case 'number':
        return fc
          .oneof(fc.constantFrom(least, most), fc.double({ min: least, max: most, noNaN: true }))
          .filter((value) => exclusiveMinimum === undefined || value > exclusiveMinimum);
      case 'string':
        return schema['pattern'] === undefined
          ? fc.string({ minLength: Number(schema['minLength'] ?? 0), maxLength: 6 })
          : fc.stringMatching(new RegExp(String(schema['pattern'])));
      case 'array':
        if (prefixItems !== undefined) return fc.tuple(...prefixItems.map((one) => this.values(one)));
        return fc.array(this.values(items!), { minLength: minItems, maxLength: Math.min(maxItems, minItems + 2) });
      case 'object': {
        const fields = Object.entries(schema['properties'] as Record<string, Schema>);
        return fc.record(Object.fromEntries(fields.map(([name, field]) => [name, this.values(field)])), {
          requiredKeys: schema['required'] as string[],
        });
      }
      default:
        throw new Error(`no values of type ${type}`);
    }
  }

  private keeps(keyword: string, said: unknown, value: unknown, schema: Schema): boolean {
    const [number, string, array] = [typeof value === 'number', typeof value === 'string', Array.isArray(value)];
    const fields = typeof value === 'object' && value !== null && !array ? (value as object) : undefined;
    const count = array ? (value as unknown[]).length : 0;
    switch (keyword) {
      case 'type':
        return [said].flat().some((type) => isOf(type, value));
      case 'enum':
        return (said as unknown[]).includes(value);
      case 'minimum':
        return !number || (value as number) >= (said as number);
      case 'maximum':
        return !number || (value as number) <= (said as number);
      case 'exclusiveMinimum':
        return !number || (value as number) > (said as number);
      case 'minLength':
        return !string || [...(value as string)].length >= (said as number);
      case 'maxLength':
        return !string || [...(value as string)].length <= (said as number);
      case 'pattern':
        return !string || new RegExp(String(said), 'u').test(value as string);
      case 'minItems':
        return !array || count >= (said as number);
      case 'maxItems':
        return !array || count <= (said as number);
      case 'items':
        return !array || (value as unknown[]).every((item) => this.fits(said as Schema, item));
      case 'prefixItems':
        return !array || (said as Schema[]).every((one, at) => at >= count || this.fits(one, (value as unknown[])[at]));
      case 'required':
        return fields === undefined || (said as string[]).every((name) => Object.hasOwn(fields, name));
      case 'properties':
        return (
          fields === undefined ||
          Object.entries(said as Record<string, Schema>).every(
            ([name, one]) => !Object.hasOwn(fields, name) || this.fits(one, Reflect.get(fields, name)),
          )
        );
      case 'additionalProperties':
        return (
          fields === undefined ||
          Object.entries(fields).every(
            ([name, one]) =>
              Object.hasOwn(propertiesOf(schema), name) || (said !== false && this.fits(said as Schema, one)),
          )
        );
      case 'oneOf':
        return (said as Schema[]).filter((one) => this.fits(one, value)).length === 1;
      default:
        if (REMARKS.has(keyword)) return true;
        throw new Error(`"${keyword}" is not read`);
    }
  }
}

interface Bounds {
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
  readonly items?: Schema;
  readonly prefixItems?: readonly Schema[];
  readonly minItems?: number;
  readonly maxItems?: number;
}

export function partOf(value: unknown, ...path: readonly string[]): unknown {
  return path.reduce<unknown>(
    (part, name) => (typeof part === 'object' && part !== null ? Reflect.get(part, name) : undefined),
    value,
  );
}

function propertiesOf(schema: Schema): object {
  return (schema['properties'] ?? {}) as object;
}

function isOf(type: unknown, value: unknown): boolean {
  switch (type) {
    case 'null':
      return value === null;
    case 'array':
      return Array.isArray(value);
    case 'object':
      return typeof value === 'object' && value !== null && !Array.isArray(value);
    case 'integer':
      return Number.isInteger(value);
    default:
      return typeof value === type;
  }
}
