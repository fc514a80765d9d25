// What the descriptions of routes are put together from. Knows no route.

export type Schema = Readonly<Record<string, unknown>>;

export const content = (schema: Schema): Schema => ({ 'application/json': { schema } });
export const object = (properties: Readonly<Record<string, Schema>>, rest: Schema = {}): Schema => ({
  type: 'object',
  required: Object.keys(properties),
  properties,
  ...rest,
});
/** A field that may be left out, which null says as well. */
export const optional = (
  { type, ...rest }: Schema & { readonly type: string },
  choices?: readonly (string | boolean)[],
): Schema => ({
  type: [type, 'null'],
  ...(choices === undefined ? {} : { enum: [...choices, null] }),
  ...rest,
});
export const listOf = (
  items: Schema,
  rest: Readonly<Record<string, Schema>> = {},
  sometimes: Readonly<Record<string, Schema>> = {},
): Schema => ({
  type: 'object',
  required: ['object', 'data', ...Object.keys(rest)],
  properties: {
    object: { type: 'string', enum: ['list'] },
    data: { type: 'array', items },
    ...rest,
    ...sometimes,
  },
});

/** A text with something in it. */
export const text = { type: 'string', minLength: 1 } as const;
