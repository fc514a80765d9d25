// How config.json says the angles of turned queries and keys, in its two spellings: one set or one for each kind of
// layer, in rope_parameters (transformers 5) or in rope_scaling and beside it (transformers 4, the authors' own code).
// rope-scaling.ts reads what makes them reach further.

import type { CheckedJson } from '../checked-json.ts';
import type { ConfigReader } from './config-reader.ts';
import type { AngleScaling, AttentionPositions } from './encoder-description.ts';
import { angleType, readScaling, type AngleSource } from './rope-scaling.ts';

export const LAYER_TYPES = ['full_attention', 'sliding_attention'] as const;
export type LayerType = (typeof LAYER_TYPES)[number];

interface Angles {
  readonly theta: number;
  readonly scaling: AngleScaling | undefined;
}

/** What angles have to know of the rest of the model. */
interface Sizes {
  readonly layers: number;
  /** max_position_embeddings. */
  readonly rowLimit: number;
}

/** The same angles for all layers. */
export function readTheta(config: ConfigReader, { layers, rowLimit }: Sizes, otherwise: number): AttentionPositions {
  const source = flatSource(config);
  const angles = readAngles(config, source, ['rope_theta', otherwise], rowLimit);
  return turned(Array.from({ length: layers }, () => angles));
}

/**
 * Angles for each kind of layer: by their names in rope_parameters, else by these keys. `scaled`: the kinds that an
 * older rope_scaling is for.
 */
export function readThetas(
  config: ConfigReader,
  types: readonly LayerType[],
  older: Readonly<Record<LayerType, readonly [key: string, otherwise: number]>>,
  { rowLimit, scaled }: Pick<Sizes, 'rowLimit'> & { readonly scaled: readonly LayerType[] },
): AttentionPositions {
  const [now, before] = spellings(config);
  if (before !== undefined && scaled.length === 0)
    config.refuse('rope_scaling', 'which layers it is for is not known: only rope_parameters is supported');
  now?.expectKeys(LAYER_TYPES, 'angles could be others by it');
  const sourceOf = (type: LayerType): AngleSource | undefined => {
    if (now?.has(type) === true) return { key: 'rope_parameters', json: now.object(type), isNested: true };
    return before === undefined || !scaled.includes(type)
      ? undefined
      : { key: 'rope_scaling', json: before, isNested: true };
  };
  const angles = Object.fromEntries(
    LAYER_TYPES.map((type) => [type, readAngles(config, sourceOf(type), older[type], rowLimit)]),
  );
  return turned(types.map((type) => angles[type]!));
}

/**
 * Theta × factor, and every frequency ÷ factor^(2 ÷ head size): the fixed NTK scaling of the code of GTE's authors
 * (https://kexue.fm/archives/9706), whatever the length of the row. The only one that it has.
 */
export function readAuthorsTheta(
  config: ConfigReader,
  { layers, rowLimit, headSize }: Sizes & { readonly headSize: number },
  otherwise: number,
): AttentionPositions {
  const scaling = config.object('rope_scaling');
  if (scaling === undefined || angleType(config, { key: 'rope_scaling', json: scaling, isNested: false }) === 'default')
    return readTheta(config, { layers, rowLimit }, otherwise);
  scaling.expectKeys(['type', 'rope_type', 'factor'], 'angles could be others by it');
  const type = scaling.has('type') ? scaling.string('type') : scaling.string('rope_type');
  if (type !== 'ntk') config.refuse('rope_scaling', 'the authors\' code has the type "ntk" alone');
  const factor = scaling.positive('factor');
  const theta = factor * config.positive('rope_theta', otherwise);
  const angles: Angles = { theta, scaling: { kind: 'divided', factor: factor ** (2 / headSize) } };
  return turned(Array.from({ length: layers }, () => angles));
}

function turned(layers: readonly Angles[]): AttentionPositions {
  return {
    kind: 'rope',
    thetas: layers.map(({ theta }) => theta),
    scalings: layers.map(({ scaling }) => scaling),
  };
}

function flatSource(config: ConfigReader): AngleSource | undefined {
  const [now, before] = spellings(config);
  if (now !== undefined) return { key: 'rope_parameters', json: now, isNested: false };
  return before === undefined ? undefined : { key: 'rope_scaling', json: before, isNested: false };
}

/** rope_parameters, rope_scaling: undefined where one is not there or says nothing. Both at once are refused. */
function spellings(config: ConfigReader): readonly [now: CheckedJson | undefined, before: CheckedJson | undefined] {
  const [now, before] = (['rope_parameters', 'rope_scaling'] as const).map((key) => {
    const json = config.object(key);
    return json === undefined || json.keys().length === 0 ? undefined : json;
  });
  if (now !== undefined && before !== undefined)
    config.refuse('rope_scaling', 'rope_parameters says angles too, and transformers would leave one of them out');
  return [now, before];
}

/** Of these parameters, or by this key beside them; where both say theta, they agree. */
function readAngles(
  config: ConfigReader,
  source: AngleSource | undefined,
  [key, otherwise]: readonly [key: string, otherwise: number],
  rowLimit: number,
): Angles {
  const beside = config.positive(key, otherwise);
  if (source === undefined) return { theta: beside, scaling: undefined };
  const scaling = readScaling(config, source, rowLimit);
  const { json } = source;
  if (!json.has('rope_theta')) return { theta: beside, scaling };
  const theta = json.positive('rope_theta');
  if (config.has(key) && theta !== beside) config.refuse(key, `${source.key} says ${theta} of the same angles`);
  return { theta, scaling };
}

/** layer_types of config.json, or what another rule says of each layer. */
export function readLayerTypes(
  config: ConfigReader,
  layers: number,
  otherwise: (layer: number) => LayerType,
): readonly LayerType[] {
  const found = config.list('layer_types');
  if (found === undefined) return Array.from({ length: layers }, (_, layer) => otherwise(layer));
  if (found.length !== layers || !found.every((type) => LAYER_TYPES.includes(type as LayerType)))
    config.refuse(
      'layer_types',
      `${layers} of ${LAYER_TYPES.map((type) => JSON.stringify(type)).join(' or ')} belong there`,
    );
  return found as readonly LayerType[];
}
