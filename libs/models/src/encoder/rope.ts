// How config.json says the angles of turned queries and keys, in its two spellings: one number or one for each kind of
// layer, in rope_parameters (transformers 5) or beside everything else (transformers 4, the authors' own code). Scaling
// of another kind than "default" is refused, but for the fixed NTK scaling that GTE's authors have.

import type { CheckedJson } from '../checked-json.ts';
import type { ConfigReader } from './config-reader.ts';
import type { AttentionPositions } from './encoder-description.ts';

export const LAYER_TYPES = ['full_attention', 'sliding_attention'] as const;
export type LayerType = (typeof LAYER_TYPES)[number];

/** One theta for all layers. */
export function readTheta(config: ConfigReader, layers: number, otherwise: number): AttentionPositions {
  refuseScaling(config);
  const parameters = config.object('rope_parameters');
  const theta = thetaOf(config, parameters, ['rope_theta', otherwise]);
  return { kind: 'rope', thetas: Array.from({ length: layers }, () => theta), frequencyDivisor: 1 };
}

/** One theta for each kind of layer: by their names in rope_parameters, else by these keys. */
export function readThetas(
  config: ConfigReader,
  types: readonly LayerType[],
  older: Readonly<Record<LayerType, readonly [key: string, otherwise: number]>>,
): AttentionPositions {
  refuseScaling(config);
  const parameters = config.object('rope_parameters');
  const thetas = Object.fromEntries(
    LAYER_TYPES.map((type) => {
      const own = parameters?.has(type) === true ? parameters.object(type) : undefined;
      return [type, thetaOf(config, own, older[type])];
    }),
  );
  if (parameters !== undefined) parameters.expectKeys(LAYER_TYPES, 'angles could be others by it');
  return { kind: 'rope', thetas: types.map((type) => thetas[type]!), frequencyDivisor: 1 };
}

/**
 * Theta × factor, and every frequency ÷ factor^(2 ÷ head size): the fixed NTK scaling of Alibaba's GTE
 * (https://kexue.fm/archives/9706), whatever the length of the row.
 */
export function readScaledTheta(
  config: ConfigReader,
  layers: number,
  headSize: number,
  otherwise: number,
): AttentionPositions {
  const scaling = config.object('rope_scaling');
  if (scaling === undefined || isDefault(scaling)) return readTheta(config, layers, otherwise);
  scaling.expectKeys(['type', 'rope_type', 'factor'], 'angles could be others by it');
  const type = scaling.has('type') ? scaling.string('type') : scaling.string('rope_type');
  if (type !== 'ntk') config.refuse('rope_scaling', 'only the type "ntk" is supported');
  const factor = scaling.positive('factor');
  const theta = factor * config.positive('rope_theta', otherwise);
  return {
    kind: 'rope',
    thetas: Array.from({ length: layers }, () => theta),
    frequencyDivisor: factor ** (2 / headSize),
  };
}

function refuseScaling(config: ConfigReader): void {
  const scaling = config.object('rope_scaling');
  if (scaling !== undefined && !isDefault(scaling))
    config.refuse('rope_scaling', 'only angles without a scaling are supported');
}

/** Nothing, or the kind that scales nothing. */
function isDefault(scaling: CheckedJson): boolean {
  return scaling
    .keys()
    .every((key) => ['type', 'rope_type'].includes(key) && ['default', null].includes(scaling.raw(key) as never));
}

/** Of these parameters, or by this key beside them; where both say it, they agree. */
function thetaOf(
  config: ConfigReader,
  parameters: CheckedJson | undefined,
  [key, otherwise]: readonly [key: string, otherwise: number],
): number {
  const beside = config.positive(key, otherwise);
  if (parameters === undefined) return beside;
  parameters.expectKeys(['rope_theta', 'rope_type', 'type', 'partial_rotary_factor'], 'angles could be others by it');
  for (const name of ['rope_type', 'type'])
    if (parameters.has(name) && parameters.string(name) !== 'default')
      config.refuse('rope_parameters', 'only the type "default" is supported');
  if (parameters.has('partial_rotary_factor') && parameters.positive('partial_rotary_factor') !== 1)
    config.refuse('rope_parameters', 'heads that are turned in part are not supported');
  if (!parameters.has('rope_theta')) return beside;
  const theta = parameters.positive('rope_theta');
  if (config.has(key) && theta !== beside) config.refuse(key, `rope_parameters says ${theta} of the same angles`);
  return theta;
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
