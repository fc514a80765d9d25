// What a cross-encoder has behind its encoder: a classifier with one label, read from config.json. A row is a pair of
// texts, and what comes out is one score, as CrossEncoder.predict of sentence-transformers 6.2 gives it by default. The
// heads are those of transformers 5.24: BertForSequenceClassification, XLMRobertaForSequenceClassification and
// ModernBertForSequenceClassification.

import { ShoalError } from '@shoal/contract';
import type { CheckedJson } from '../checked-json.ts';
import type { EncoderDescription } from './encoder-description.ts';

export interface ScoreHead {
  readonly pooling: 'cls' | 'mean';
  /** activation(W · x + b), W [hidden, hidden]. */
  readonly dense: {
    readonly name: string;
    /** Its tensors lie behind the encoder's prefix. */
    readonly isInEncoder: boolean;
    readonly hasBias: boolean;
    readonly activation: 'Tanh' | 'GELU';
  };
  /** A layer norm behind the dense layer. */
  readonly norm: { readonly name: string; readonly hasBias: boolean; readonly epsilon: number } | undefined;
  /** Name of the layer [1, hidden] that gives the score; it has a bias. */
  readonly classifier: string;
  /** The score is brought between 0 and 1. */
  readonly hasSigmoid: boolean;
  /** Tokens of a pair's second text have type 1. */
  readonly hasTypes: boolean;
}

const SEQUENCE_CLASSIFIER = /ForSequenceClassification$/;
const SIGMOID = /^torch\.nn\.(?:modules\.activation\.)?Sigmoid$/;
const IDENTITY = /^torch\.nn\.(?:modules\.linear\.)?Identity$/;

/** Whether config.json is of a model with a classifier of sequences. */
export function isSequenceClassifier(config: CheckedJson): boolean {
  return (
    config.has('architectures') &&
    config
      .list('architectures')
      .map(String)
      .some((name) => SEQUENCE_CLASSIFIER.test(name))
  );
}

/** How many labels the classifier has: transformers writes a name for each, and takes two where nothing is written. */
export function labelsOf(config: CheckedJson): number {
  if (config.has('id2label')) return config.object('id2label').keys().length;
  return config.has('num_labels') ? config.integer('num_labels', 1) : 2;
}

/**
 * `saved`: config_sentence_transformers.json, where there is one. MODEL_CORRUPT, by file, key and value, for more than one
 * label, for a head that is not computed here, and for another function of the score.
 */
export function describeScoreHead(config: CheckedJson, encoder: EncoderDescription, saved?: CheckedJson): ScoreHead {
  if (!isSequenceClassifier(config))
    throw corrupt(config, 'architectures', 'only an architecture that ends in ForSequenceClassification has scores');
  const labels = labelsOf(config);
  if (labels !== 1)
    throw corrupt(
      config,
      config.has('id2label') ? 'id2label' : 'num_labels',
      `a reranker has one label, and this classifier has ${labels}`,
    );
  return { ...headOf(config, encoder), hasSigmoid: hasSigmoid(config, saved) };
}

type Layers = Omit<ScoreHead, 'hasSigmoid'>;

function headOf(config: CheckedJson, { modelType, embeddings, norm }: EncoderDescription): Layers {
  switch (modelType) {
    case 'bert':
      return {
        pooling: 'cls',
        dense: { name: 'pooler.dense', isInEncoder: true, hasBias: true, activation: 'Tanh' },
        norm: undefined,
        classifier: 'classifier',
        hasTypes: embeddings.tokenTypes > 1,
      };
    case 'roberta':
    case 'xlm-roberta':
    case 'camembert':
      return {
        pooling: 'cls',
        dense: { name: 'classifier.dense', isInEncoder: false, hasBias: true, activation: 'Tanh' },
        norm: undefined,
        classifier: 'classifier.out_proj',
        hasTypes: false, // their tokenizers give none
      };
    case 'modernbert':
      oneOf(config, 'classifier_activation', ['gelu']);
      return {
        pooling: oneOf(config, 'classifier_pooling', ['cls', 'mean']) ?? 'cls',
        dense: {
          name: 'head.dense',
          isInEncoder: false,
          hasBias: config.has('classifier_bias') && config.boolean('classifier_bias'),
          activation: 'GELU',
        },
        norm: { name: 'head.norm', hasBias: norm.hasBias, epsilon: norm.epsilon },
        classifier: 'classifier',
        hasTypes: false,
      };
    default:
      throw corrupt(
        config,
        'model_type',
        'of rerankers only "bert", "roberta", "xlm-roberta", "camembert" and "modernbert" are supported',
      );
  }
}

/** What saving wrote last, then config.json in its two spellings; a sigmoid where none says anything. */
function hasSigmoid(config: CheckedJson, saved: CheckedJson | undefined): boolean {
  const key = 'activation_fn';
  if (saved?.has(key) === true) return isSigmoid(saved, key);
  const inside = config.has('sentence_transformers') ? config.object('sentence_transformers') : undefined;
  if (inside?.keys().includes(key) === true) return inside.has(key) ? isSigmoid(inside, key) : true;
  const older = 'sbert_ce_default_activation_function';
  return config.has(older) ? isSigmoid(config, older) : true;
}

function isSigmoid(json: CheckedJson, key: string): boolean {
  const name = json.string(key);
  if (SIGMOID.test(name)) return true;
  if (IDENTITY.test(name)) return false;
  throw corrupt(json, key, 'only Sigmoid and Identity of torch.nn are supported');
}

function oneOf<Value extends string>(json: CheckedJson, key: string, values: readonly Value[]): Value | undefined {
  if (!json.has(key)) return undefined;
  const found = values.find((value) => value === json.string(key));
  if (found !== undefined) return found;
  throw corrupt(json, key, `supported is only ${values.map((value) => JSON.stringify(value)).join(' or ')}`);
}

function corrupt(json: CheckedJson, key: string, why: string): ShoalError {
  return new ShoalError(
    'MODEL_CORRUPT',
    `${json.where}: "${key}" is ${JSON.stringify(json.raw(key)) ?? 'not there'}: ${why}`,
    {
      where: json.where,
      key,
    },
  );
}
