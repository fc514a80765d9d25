// What config.json says of a reranker's head, and what is refused by file, key and value.

import { expect, test } from 'vitest';
import { CheckedJson } from '../checked-json.ts';
import { describeEncoder } from './describe-encoder.ts';
import { describeScoreHead, type ScoreHead } from './score-head.ts';

const BERT = { model_type: 'bert', architectures: ['BertForSequenceClassification'], id2label: { 0: 'LABEL_0' } };
const MODERN = { ...BERT, model_type: 'modernbert', architectures: ['ModernBertForSequenceClassification'] };

function of(config: object, saved?: object): ScoreHead {
  const json = CheckedJson.of(config, 'folder/config.json');
  const beside = saved && CheckedJson.of(saved, 'folder/config_sentence_transformers.json');
  return describeScoreHead(json, describeEncoder(json), beside);
}

test('heads by family', () => {
  expect(of(BERT)).toEqual({
    pooling: 'cls',
    dense: { name: 'pooler.dense', isInEncoder: true, hasBias: true, activation: 'Tanh' },
    norm: undefined,
    classifier: 'classifier',
    hasSigmoid: true,
    hasTypes: true,
  });
  expect(of({ ...BERT, type_vocab_size: 1 }).hasTypes).toBe(false);
  for (const model_type of ['roberta', 'xlm-roberta', 'camembert'])
    expect(of({ ...BERT, model_type, type_vocab_size: 2 })).toMatchObject({
      dense: { name: 'classifier.dense', isInEncoder: false },
      classifier: 'classifier.out_proj',
      hasTypes: false,
    });
  expect(of({ ...MODERN, classifier_pooling: 'mean', classifier_bias: true, norm_bias: true, norm_eps: 1e-3 })).toEqual(
    {
      pooling: 'mean',
      dense: { name: 'head.dense', isInEncoder: false, hasBias: true, activation: 'GELU' },
      norm: { name: 'head.norm', hasBias: true, epsilon: 1e-3 },
      classifier: 'classifier',
      hasSigmoid: true,
      hasTypes: false,
    },
  );
});

const IDENTITY = 'torch.nn.modules.linear.Identity';
const SIGMOID = 'torch.nn.modules.activation.Sigmoid';

test.each<readonly [config: object, saved: object | undefined, expected: boolean]>([
  [{}, undefined, true],
  [{ sentence_transformers: { activation_fn: IDENTITY, version: '4.1.0' } }, undefined, false],
  [{ sentence_transformers: { activation_fn: SIGMOID } }, undefined, true],
  [{ sentence_transformers: { version: '5.0.0' } }, undefined, true],
  // once the newer key is there, the older one is not looked at
  [{ sentence_transformers: { activation_fn: null }, sbert_ce_default_activation_function: IDENTITY }, undefined, true],
  [{ sbert_ce_default_activation_function: IDENTITY }, undefined, false],
  [{ sbert_ce_default_activation_function: null }, undefined, true],
  [{ sentence_transformers: { activation_fn: IDENTITY } }, { activation_fn: SIGMOID }, true],
  [{}, { activation_fn: IDENTITY }, false],
  [{}, { activation_fn: 'torch.nn.Identity' }, false],
])('whether there is a sigmoid: %j, %j', (config, saved, expected) => {
  expect(of({ ...BERT, ...config }, saved).hasSigmoid).toBe(expected);
});

test.each<readonly [config: object, said: string]>([
  [{ architectures: ['BertModel'] }, '"architectures" is ["BertModel"]: only an architecture that ends in'],
  [{ id2label: { 0: 'a', 1: 'b', 2: 'c' } }, '"id2label" is {"0":"a","1":"b","2":"c"}: a reranker has one label'],
  [{ id2label: null }, '"num_labels" is not there: a reranker has one label, and this classifier has 2'],
  [{ id2label: null, num_labels: 3 }, '"num_labels" is 3: a reranker has one label, and this classifier has 3'],
  [{ model_type: 'electra' }, '"model_type" is "electra": of rerankers only "bert", "roberta"'],
  [
    { sentence_transformers: { activation_fn: 'torch.nn.Tanh' } },
    '"activation_fn" is "torch.nn.Tanh": only Sigmoid and',
  ],
  [{ sentence_transformers: { activation_fn: 'my.Own' } }, '"activation_fn" is "my.Own": only Sigmoid and Identity'],
])('%j is refused', (config, said) => {
  expect(() => of({ ...BERT, ...config })).toThrow(said);
});

test.each<readonly [config: object, said: string]>([
  [
    { classifier_pooling: 'max' },
    'folder/config.json: "classifier_pooling" is "max": supported is only "cls" or "mean"',
  ],
  [{ classifier_activation: 'relu' }, '"classifier_activation" is "relu": supported is only "gelu"'],
])('of ModernBERT %j is refused', (config, said) => {
  expect(() => of({ ...MODERN, ...config })).toThrow(said);
});
