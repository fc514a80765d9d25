// POST /v1/embeddings: its body, checked field by field, with OpenAI's names and limits. Nothing is coerced and nothing
// is ignored: a field that is not known is refused by name. Token ids are checked against the model's vocabulary and
// its end tokens; what they become is token-rows.ts's business.

import { MAX_USER_CHARACTERS, NO_PROMPT, hasPrompts, promptText, storedName, type Prompts } from '@shoal/contract';
import { checkedBody, list, oneOf, shownModel, wholeNumber, wrongType } from './body-fields.ts';
import { invalid } from './problem.ts';
import { isWhole, notWhole, type RowEnds, type TokenRows } from './token-rows.ts';

export interface EmbeddingsRequest {
  readonly input:
    | { readonly kind: 'texts'; readonly texts: readonly string[] }
    | { readonly kind: 'tokens'; readonly rows: readonly (readonly number[])[] };
  readonly encoding: 'float' | 'base64';
  readonly dimensions: number | undefined;
  /**
   * OpenAI refuses texts that are too long, and so do we unless asked to cut them: `"truncate": "end"` is our own
   * field.
   */
  readonly truncate: 'end' | 'error';
  /** Which of the model's prompts goes before each text. */
  readonly prompt: string | undefined;
  /** Length 1, of a model whose vectors have lengths of their own. */
  readonly normalize: boolean;
  /** Of the caller's tenant, who asks. */
  readonly user?: string | undefined;
}

/** What there is to check against. */
export interface ServedModel {
  /** The store's name, and what requests call it. */
  readonly name: string;
  readonly revision: string;
  /** What requests may call it besides. */
  readonly aliases?: readonly string[];
  readonly dims: number;
  readonly vocabularySize: number;
  /** The ids that begin and end each row of its tokenizer. */
  readonly rowEnds: RowEnds;
  readonly tokenRows: TokenRows;
  /** Where the request does not say. */
  readonly truncate: 'end' | 'error';
  /** By name. */
  readonly prompts: Prompts['prompts'];
  /** Name of the one for texts that ask for none. */
  readonly defaultPrompt?: string | undefined;
  /** Its vectors have length 1; else each has its own. */
  readonly isNormalized: boolean;
}

/** OpenAI's limit. */
export const MAX_INPUTS = 2_048;

const FIELDS = [
  'input',
  'model',
  'encoding_format',
  'dimensions',
  'user',
  'truncate',
  'prompt',
  'input_type',
  'normalize',
] as const;

/** What clients of other servers call the two sides. */
const PROMPTS = {
  query: 'query',
  passage: 'passage',
  document: 'passage',
  search_query: 'query',
  search_document: 'passage',
} as const;

/** What may be asked for: the model's own names, both sides by the names that people know, and nothing at all. */
export function promptNames({ prompts }: Pick<ServedModel, 'prompts'>): readonly string[] {
  if (!hasPrompts(prompts)) return [];
  const sides = Object.keys(PROMPTS).filter((name) => promptText({ prompts }, sideNamed(name)) !== undefined);
  return [...new Set([...Object.keys(prompts), ...sides, NO_PROMPT])];
}

function sideNamed(name: string): string {
  return PROMPTS[name as keyof typeof PROMPTS] ?? name;
}

/** Throws a Problem that names the field. */
export function parseEmbeddingsRequest(body: unknown, model: ServedModel): EmbeddingsRequest {
  const fields = checkedBody(body, FIELDS);
  checkModel(fields.model, model);
  const input = parseInput(fields.input, model);
  return {
    input,
    prompt: parsePrompt(fields, input.kind, model),
    encoding: oneOf('encoding_format', fields.encoding_format, ['float', 'base64']),
    truncate: fields.truncate === undefined ? model.truncate : oneOf('truncate', fields.truncate, ['error', 'end']),
    dimensions: parseDimensions(fields.dimensions, model),
    normalize: parseNormalize(fields.normalize, model),
    user: parseUser(fields.user),
  };
}

export function rowsAsked({ input }: EmbeddingsRequest): number {
  return input.kind === 'texts' ? input.texts.length : input.rows.length;
}

export function checkModel(asked: unknown, model: ServedModel): void {
  if (asked === undefined)
    throw invalid('missing_required_parameter', 'model', `"model" is missing; this server has "${model.name}"`);
  if (typeof asked !== 'string') throw wrongType('model', 'a string', asked);
  if (isModel(asked, model)) return;
  throw invalid(
    'model_not_found',
    'model',
    `there is no model ${shownModel(asked)} here; this server has ${namesOf(model)}`,
    404,
  );
}

type Named = Pick<ServedModel, 'name' | 'revision' | 'aliases'>;

export function isModel(asked: string, { name, revision, aliases = [] }: Named): boolean {
  return storedName(asked) === name || asked === `${name}@${revision}` || aliases.includes(asked);
}

/** As a person may write it: every name of a model. */
export function namesOf({ name, revision, aliases = [] }: Named): string {
  return `"${name}" (also as ${[`${name}@${revision}`, ...aliases].map((other) => `"${other}"`).join(', ')})`;
}

/** An empty one names nobody. */
function parseUser(user: unknown): string | undefined {
  if (user === undefined || user === '') return undefined;
  if (typeof user !== 'string') throw wrongType('user', 'a string', user);
  const characters = [...user].length;
  if (characters > MAX_USER_CHARACTERS)
    throw invalid(
      'string_above_max_length',
      'user',
      `"user" has ${characters} characters; a name of a user has at most ${MAX_USER_CHARACTERS}`,
    );
  return checkWhole(user, 'user');
}

function parsePrompt(
  { prompt, input_type: inputType }: { readonly prompt?: unknown; readonly input_type?: unknown },
  kind: EmbeddingsRequest['input']['kind'],
  model: ServedModel,
): string | undefined {
  const [byPrompt, byType] = [promptNamed('prompt', prompt, model), promptNamed('input_type', inputType, model)];
  const wanted = byPrompt ?? byType;
  const field = byPrompt === undefined ? 'input_type' : 'prompt';
  if (wanted === undefined) return undefined;
  if (byType !== undefined && byType !== wanted)
    throw invalid(
      'invalid_value',
      'input_type',
      '"prompt" and "input_type" ask for different prompts; send one of them',
    );
  if (kind === 'tokens')
    throw invalid(
      'invalid_value',
      field,
      `a prompt cannot be put before token ids; send texts, or leave "${field}" out`,
    );
  return wanted;
}

export function promptNamed(field: string, asked: unknown, model: ServedModel): string | undefined {
  if (asked === undefined) return undefined;
  const [first, ...more] = promptNames(model);
  if (first === undefined) {
    oneOf(field, asked, ['query', 'passage', 'document', 'search_query', 'search_document']);
    throw invalid(
      'invalid_value',
      field,
      `${model.name} has no prompts: its queries and passages are embedded alike; leave "${field}" out`,
    );
  }
  const name = oneOf(field, asked, [first, ...more]);
  return Object.hasOwn(model.prompts, name) ? name : sideNamed(name);
}

/** Of a model that normalizes there are no other vectors, so false would be a promise that nobody keeps. */
export function parseNormalize(asked: unknown, { name, isNormalized }: ServedModel): boolean {
  if (asked !== undefined && typeof asked !== 'boolean') throw wrongType('normalize', 'true or false', asked);
  if (asked === false && isNormalized)
    throw invalid('invalid_value', 'normalize', `the vectors of ${name} have length 1 and cannot be had otherwise`);
  return asked === true && !isNormalized;
}

export function parseDimensions(asked: unknown, { dims }: ServedModel): number | undefined {
  return asked === undefined ? undefined : wholeNumber('dimensions', asked, { from: 1, to: dims });
}

// ---- input --------------------------------------------------------------------------------------------------------

function parseInput(input: unknown, model: ServedModel): EmbeddingsRequest['input'] {
  if (input === undefined)
    throw invalid('missing_required_parameter', 'input', '"input" is missing: a text, an array of texts, or token ids');
  if (typeof input === 'string') return { kind: 'texts', texts: [checkText(input, 'input')] };
  if (!Array.isArray(input)) throw wrongType('input', 'a string, an array of strings, or token ids', input);
  const items: readonly unknown[] = input;
  const [first] = items;
  if (items.length === 0)
    throw invalid('empty_array', 'input', '"input" is an empty array; at least one text is needed');
  if (typeof first === 'number') return { kind: 'tokens', rows: [checkRow(items, 'input', model)] };
  if (items.length > MAX_INPUTS)
    throw invalid(
      'array_above_max_length',
      'input',
      `"input" has ${items.length} items; at most ${MAX_INPUTS} go into one request`,
    );
  if (Array.isArray(first)) return { kind: 'tokens', rows: items.map((row, i) => checkRow(row, `input[${i}]`, model)) };
  return { kind: 'texts', texts: items.map((text, i) => checkText(text, `input[${i}]`)) };
}

/** A text, or several, of a field that takes nothing else. */
export function textsIn(name: string, asked: unknown): readonly string[] {
  if (typeof asked === 'string') return [checkText(asked, name)];
  const texts = list(name, asked, 'a string or an array of strings', MAX_INPUTS);
  return texts.map((text, at) => checkText(text, `${name}[${at}]`));
}

export function checkText(text: unknown, param: string): string {
  if (typeof text !== 'string') throw wrongType(param, 'a string like the first', text);
  if (text === '')
    throw invalid('empty_string', param, `"${param}" is an empty string; a text has at least one character`);
  return checkWhole(text, param);
}

/** A text cut within a character would be embedded with U+FFFD there, which nobody sent. */
export function checkWhole(text: string, param: string): string {
  if (text.isWellFormed()) return text;
  throw invalid(
    'invalid_value',
    param,
    `"${param}" has half of a surrogate pair, so it was cut within a character, such as an emoji; cut between ` +
      'characters, or send U+FFFD in its place (JavaScript: text.toWellFormed())',
  );
}

function checkRow(row: unknown, param: string, model: ServedModel): readonly number[] {
  if (!Array.isArray(row)) throw wrongType(param, 'an array of token ids like the first', row);
  if (row.length === 0)
    throw invalid('empty_array', param, `"${param}" is an empty array; a text has at least one token`);
  const ids = checkIds(row, param, model);
  if (model.tokenRows === 'whole' && !isWhole(ids, model.rowEnds)) throw notWhole(param, model.name, model.rowEnds);
  return ids;
}

export function checkIds(
  ids: readonly unknown[],
  param: string,
  { name, vocabularySize }: ServedModel,
): readonly number[] {
  // by a plain loop: a row may have millions
  for (let i = 0; i < ids.length; i++) {
    const id = ids[i];
    if (typeof id !== 'number' || !Number.isInteger(id))
      throw wrongType(`${param}[${i}]`, 'a token id like the first', id);
    if (id >= 0 && id < vocabularySize) continue;
    throw invalid(
      'invalid_token',
      `${param}[${i}]`,
      `${id} is no token of ${name}, which has ids from 0 to ${vocabularySize - 1}; were the tokens made for ` +
        'another model? Send texts instead (with LangChain: check_embedding_ctx_length=False)',
    );
  }
  return ids as readonly number[];
}
