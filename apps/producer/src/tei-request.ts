// POST /embed, /tokenize and /decode: their bodies, checked field by field like those of /v1/embeddings. The first and the last are calls
// of text-embeddings-inference (TEI); what that server does and this one cannot is refused by name.

import { checkedBody, list, wrongType } from './body-fields.ts';
import {
  MAX_INPUTS,
  checkIds,
  checkModel,
  parseDimensions,
  parseNormalize,
  promptNamed,
  textsIn,
  type EmbeddingsRequest,
  type ServedModel,
} from './embeddings-request.ts';
import { invalid } from './problem.ts';

/** Throws a Problem that names the field. */
export function parseTeiEmbed(body: unknown, model: ServedModel): EmbeddingsRequest {
  const fields = checkedBody(body, [
    'inputs',
    'normalize',
    'truncate',
    'truncation_direction',
    'prompt_name',
    'dimensions',
    'model',
  ]);
  const { normalize, truncate, truncation_direction: direction } = fields;
  if (fields.model !== undefined) checkModel(fields.model, model); // left out: the first model of the server
  if (direction !== undefined && !(typeof direction === 'string' && /^right$/i.test(direction)))
    throw invalid(
      'invalid_value',
      'truncation_direction',
      'a text is cut at its end: "truncation_direction" can only be "right"; leave it out',
    );
  if (truncate !== undefined && typeof truncate !== 'boolean') throw wrongType('truncate', 'true or false', truncate);
  return {
    input: { kind: 'texts', texts: textsIn('inputs', fields.inputs) },
    encoding: 'float',
    dimensions: parseDimensions(fields.dimensions, model),
    truncate: truncate === undefined ? model.truncate : truncate ? 'end' : 'error',
    prompt: promptNamed('prompt_name', fields.prompt_name, model),
    normalize: parseNormalize(normalize ?? true, model), // TEI's vectors have length 1 unless told otherwise
  };
}

export interface DecodeRequest {
  readonly rows: readonly (readonly number[])[];
  readonly skipsSpecial: boolean;
}

/** Throws a Problem that names the field. */
export function parseDecode(body: unknown, model: ServedModel): DecodeRequest {
  const fields = checkedBody(body, ['ids', 'skip_special_tokens', 'model']);
  if (fields.model !== undefined) checkModel(fields.model, model); // left out: the first model of the server
  const { skip_special_tokens: skips = true } = fields;
  if (typeof skips !== 'boolean') throw wrongType('skip_special_tokens', 'true or false', skips);
  const ids = list('ids', fields.ids, 'token ids of one text, or a list of such rows');
  if (!Array.isArray(ids[0])) return { rows: [checkIds(ids, 'ids', model)], skipsSpecial: skips };
  const rows = list('ids', fields.ids, 'a list of rows of token ids', MAX_INPUTS).map((row, at) => {
    if (!Array.isArray(row)) throw wrongType(`ids[${at}]`, 'an array of token ids like the first', row);
    return checkIds(row, `ids[${at}]`, model);
  });
  return { rows, skipsSpecial: skips };
}

export interface TokenizeRequest {
  readonly texts: readonly string[];
  readonly prompt: string | undefined;
}

/** Throws a Problem that names the field. */
export function parseTokenize(body: unknown, model: ServedModel): TokenizeRequest {
  const fields = checkedBody(body, ['input', 'model', 'prompt']);
  if (fields.model !== undefined) checkModel(fields.model, model); // left out: the first model of the server
  return { texts: textsIn('input', fields.input), prompt: promptNamed('prompt', fields.prompt, model) };
}
