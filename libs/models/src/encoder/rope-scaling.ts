// Scaled angles as transformers 5.24 takes them from config.json (modeling_rope_utils.py): linear, dynamic, llama3 and
// yarn with the defaults of each. "longrope" has other angles for long rows than for short ones, and "proportional"
// turns heads in part: both are refused by name.

import type { CheckedJson } from '../checked-json.ts';
import type { ConfigReader } from './config-reader.ts';
import type { AngleScaling } from './encoder-description.ts';

export interface AngleSource {
  /** Of config.json. */
  readonly key: 'rope_parameters' | 'rope_scaling';
  readonly json: CheckedJson;
  /** It is for one kind of layer, of several. */
  readonly isNested: boolean;
}

/** What may stand beside the type. */
const KEYS = {
  default: [],
  linear: ['factor'],
  dynamic: ['factor'],
  llama3: ['factor', 'low_freq_factor', 'high_freq_factor', 'original_max_position_embeddings'],
  yarn: [
    'factor',
    'original_max_position_embeddings',
    'attention_factor',
    'beta_fast',
    'beta_slow',
    'mscale',
    'mscale_all_dim',
    'truncate',
  ],
} as const;
type AngleType = keyof typeof KEYS;

/** What these angles are scaled by; undefined: nothing. */
export function readScaling(config: ConfigReader, source: AngleSource, rowLimit: number): AngleScaling | undefined {
  const { json } = source;
  const type = knownType(config, source);
  json.expectKeys(
    ['rope_theta', 'rope_type', 'type', 'partial_rotary_factor', ...KEYS[type]],
    `angles of the type "${type}" could be others by it`,
  );
  if (json.has('partial_rotary_factor') && json.positive('partial_rotary_factor') !== 1)
    config.refuse(source.key, 'heads that are turned in part are not supported');
  switch (type) {
    case 'default':
      return undefined;
    case 'dynamic':
      // it begins behind max_position_embeddings, where rows end here; its power is 1 at all lengths before
      json.positive('factor');
      return undefined;
    case 'linear':
      return { kind: 'divided', factor: json.positive('factor') };
    case 'llama3':
      return {
        kind: 'llama3',
        factor: json.positive('factor'),
        lowTurns: json.positive('low_freq_factor'),
        highTurns: json.positive('high_freq_factor'),
        trainedRows: trainedRows(config, source, rowLimit),
      };
    case 'yarn':
      return readYarn(config, source, rowLimit);
  }
}

function knownType(config: ConfigReader, source: AngleSource): AngleType {
  const type = angleType(config, source);
  if (Object.hasOwn(KEYS, type)) return type as AngleType;
  const known = Object.keys(KEYS).map((name) => `"${name}"`);
  return config.refuse(source.key, `of types of angles only ${known.join(', ')} are supported`);
}

/** rope_type, or as it was called before; where both are there, they agree. */
export function angleType(config: ConfigReader, { key, json }: AngleSource): string {
  const said = ['rope_type', 'type'].filter((name) => json.has(name)).map((name) => json.string(name));
  if (new Set(said).size > 1) config.refuse(key, '"rope_type" and "type" say the same, and differ');
  return said[0] ?? 'default';
}

function readYarn(config: ConfigReader, source: AngleSource, rowLimit: number): AngleScaling {
  const { json, isNested } = source;
  const trained = trainedRows(config, source, rowLimit);
  const factor = json.raw('factor') === null ? rowLimit / trained : json.positive('factor');
  const truncate = json.raw('truncate') === undefined || (json.has('truncate') && json.boolean('truncate'));
  if (isNested && !truncate)
    config.refuse(source.key, 'transformers looks for "truncate" beside the kinds of layers, and takes true here');
  return {
    kind: 'yarn',
    factor,
    fastTurns: numberOr(json, 'beta_fast', 32),
    slowTurns: numberOr(json, 'beta_slow', 1),
    isRampWhole: truncate,
    trainedRows: trained,
    magnitude: json.has('attention_factor') ? json.positive('attention_factor') : yarnMagnitude(json, factor),
  };
}

/** 0.1 · ln(factor) + 1, and where both mscales are there the quotient of two such, as DeepSeek has it. */
function yarnMagnitude(json: CheckedJson, factor: number): number {
  const of = (scale: number): number => (factor <= 1 ? 1 : 0.1 * scale * Math.log(factor) + 1);
  const [some, all] = [numberOr(json, 'mscale', 0), numberOr(json, 'mscale_all_dim', 0)];
  return some > 0 && all > 0 ? of(some) / of(all) : of(1);
}

/** 0 counts as not there, as in Python. */
function numberOr(json: CheckedJson, key: string, otherwise: number): number {
  return json.has(key) && json.raw(key) !== 0 ? json.positive(key) : otherwise;
}

/** Tokens of the rows of the training: beside all else, as Phi 3 has it, among the parameters, or all positions. */
function trainedRows(config: ConfigReader, { key, json, isNested }: AngleSource, rowLimit: number): number {
  const name = 'original_max_position_embeddings';
  const among = json.has(name) ? json.integer(name, 1) : undefined;
  if (isNested || !config.has(name)) return among ?? rowLimit;
  const beside = config.size(name, rowLimit);
  if (among !== undefined && among !== beside) config.refuse(name, `${key} says ${among} of the same rows`);
  return beside;
}
