// What config.json says and leaves out, and what is refused by file, key and value.

import { describe, expect, test } from 'vitest';
import { CheckedJson } from '../checked-json.ts';
import { LONGEST_ROW, MODEL_TYPES, describeEncoder } from './describe-encoder.ts';
import type { EncoderDescription } from './encoder-description.ts';

const of = (config: object): EncoderDescription => describeEncoder(CheckedJson.of(config, 'folder/config.json'));

/** Sizes by transformers' config classes (5.24): layers, heads, key heads, head size, hidden, intermediate, words, rows. */
const DEFAULTS: Readonly<Record<string, readonly number[]>> = {
  bert: [12, 12, 12, 64, 768, 3072, 30_522, 512],
  mpnet: [12, 12, 12, 64, 768, 3072, 30_527, 510],
  roberta: [12, 12, 12, 64, 768, 3072, 50_265, 510],
  'xlm-roberta': [12, 12, 12, 64, 768, 3072, 30_522, 510],
  camembert: [12, 12, 12, 64, 768, 3072, 30_522, 510],
  distilbert: [6, 12, 12, 64, 768, 3072, 30_522, 512],
  electra: [12, 4, 4, 64, 256, 1024, 30_522, 512],
  albert: [12, 64, 64, 64, 4096, 16_384, 30_000, 512],
  nomic_bert: [12, 12, 12, 64, 768, 3072, 30_528, 2048],
  gte: [12, 12, 12, 64, 768, 3072, 250_048, 8192],
  new: [12, 12, 12, 64, 768, 3072, 250_048, 8192],
  jina_embeddings_v3: [24, 16, 16, 64, 1024, 4096, 250_002, LONGEST_ROW],
  modernbert: [22, 12, 12, 64, 768, 1152, 50_368, 8192],
  llama: [32, 32, 32, 128, 4096, 11_008, 32_000, 2048],
  mistral: [32, 32, 8, 128, 4096, 14_336, 32_000, LONGEST_ROW],
  qwen2: [32, 32, 32, 128, 4096, 22_016, 151_936, LONGEST_ROW],
  qwen3: [32, 32, 32, 128, 4096, 22_016, 151_936, LONGEST_ROW],
  eurobert: [12, 12, 12, 64, 768, 3072, 128_256, 8192],
  ultrabert: [32, 32, 32, 128, 4096, 11_008, 32_000, LONGEST_ROW],
  gemma3_text: [26, 8, 4, 256, 2304, 9216, 262_208, LONGEST_ROW],
};

describe('what a file leaves out is what transformers takes for it', () => {
  test('in every family', () => {
    expect(Object.keys(DEFAULTS).sort()).toEqual([...MODEL_TYPES].sort());
  });

  test.each(Object.entries(DEFAULTS))('sizes of %s', (modelType, expected) => {
    const found = of({ model_type: modelType });
    const { layers, heads, kvHeads, headSize, hidden, intermediate, vocabularySize, rowLimit } = found;
    expect([layers, heads, kvHeads, headSize, hidden, intermediate, vocabularySize, rowLimit]).toEqual(expected);
  });

  test.each<[string, number]>([
    ['nomic_bert', 1000],
    ['gte', 160_000],
    ['jina_embeddings_v3', 20_000],
    ['llama', 10_000],
    ['mistral', 10_000],
    ['qwen3', 10_000],
    ['eurobert', 10_000],
  ])('theta of %s', (modelType, theta) => {
    expect(of({ model_type: modelType, num_hidden_layers: 1 }).attentionPositions).toEqual({
      kind: 'rope',
      thetas: [theta],
      scalings: [undefined],
    });
  });

  test('thetas, windows and kinds of layers', () => {
    const [modern, gemma, ultra] = ['modernbert', 'gemma3_text', 'ultrabert'].map((modelType) =>
      of({ model_type: modelType, num_hidden_layers: 6 }),
    );
    expect(modern!.attention.windows).toEqual([undefined, 64, 64, undefined, 64, 64]);
    expect(modern!.attentionPositions).toMatchObject({
      thetas: [160_000, 10_000, 10_000, 160_000, 10_000, 10_000],
    });
    expect(gemma!.attention.windows).toEqual([4095, 4095, 4095, 4095, 4095, undefined]);
    expect(gemma!.attentionPositions).toMatchObject({
      thetas: [10_000, 10_000, 10_000, 10_000, 10_000, 1_000_000],
    });
    expect(ultra!.attention.windows).toEqual([128, 128, undefined, 128, 128, undefined]);
    expect(ultra!.attentionPositions).toMatchObject({
      thetas: [10_000, 10_000, 2_560_000, 10_000, 10_000, 2_560_000],
    });
  });

  test('the window of Mistral is 4,096 where nothing is said, and none where it is null', () => {
    const small = { model_type: 'mistral', num_hidden_layers: 1 };
    expect(of(small).attention.windows).toEqual([4095]);
    expect(of({ ...small, sliding_window: null }).attention.windows).toEqual([undefined]);
  });
});

describe('switches', () => {
  test("an EmbeddingGemma's tokens see half the window to each side", () => {
    const { attention } = of({
      model_type: 'gemma3_text',
      num_hidden_layers: 1,
      sliding_window: 512,
      use_bidirectional_attention: true,
    });
    expect(attention).toMatchObject({ isCausal: false, windows: [256] });
  });

  test.each([
    { is_causal: false },
    { use_bidirectional_attention: true },
    { is_causal: false, auto_map: { AutoModel: 'modeling_qwen.Qwen2Model' } },
  ])('a decoder that was made to see both sides says so: %j', (said) => {
    expect(of({ model_type: 'qwen2', ...said }).attention.isCausal).toBe(false);
    expect(of({ model_type: 'qwen3', ...said }).attention.isCausal).toBe(false);
    expect(of({ model_type: 'qwen3' }).attention.isCausal).toBe(true);
  });

  test("GTE's NTK scaling multiplies theta and divides all frequencies", () => {
    expect(
      of({ model_type: 'new', num_hidden_layers: 1, rope_theta: 20_000, rope_scaling: { type: 'ntk', factor: 8 } })
        .attentionPositions,
    ).toEqual({ kind: 'rope', thetas: [160_000], scalings: [{ kind: 'divided', factor: 8 ** (2 / 64) }] });
  });

  test('a scaling is for all layers, or for those that the family has it for', () => {
    const linear = { kind: 'divided', factor: 8 };
    const older = { num_hidden_layers: 2, rope_scaling: { rope_type: 'linear', factor: 8 } };
    const [llama, modern, gemma] = ['llama', 'modernbert', 'gemma3_text'].map((modelType) =>
      of({ model_type: modelType, ...(modelType === 'gemma3_text' && { sliding_window_pattern: 2 }), ...older }),
    );
    expect(llama!.attentionPositions).toMatchObject({ scalings: [linear, linear] });
    expect(modern!.attentionPositions).toMatchObject({ scalings: [linear, linear] });
    expect(gemma!.attentionPositions).toMatchObject({ scalings: [undefined, linear] });
  });

  test('a dynamic scaling begins behind the positions, where rows end', () => {
    const small = { model_type: 'llama', num_hidden_layers: 1, max_position_embeddings: 512 };
    expect(of({ ...small, rope_scaling: { type: 'dynamic', factor: 4 } })).toEqual(of(small));
  });

  test('a scaling of NomicBERT counts behind the length that it was trained at, where rows end', () => {
    const authors = { model_type: 'nomic_bert', n_positions: 8192, max_trained_positions: 2048 };
    expect(of({ ...authors, rotary_scaling_factor: null }).rowLimit).toBe(8192);
    expect(of({ ...authors, rotary_scaling_factor: 2 }).rowLimit).toBe(2048);
  });

  test('a window that no row is longer than is none', () => {
    const small = { model_type: 'mistral', num_hidden_layers: 1, max_position_embeddings: 512 };
    expect(of({ ...small, sliding_window: 511 }).attention.windows).toEqual([510]);
    expect(of({ ...small, sliding_window: 512 }).attention.windows).toEqual([undefined]);
  });

  test('windows of Qwen begin at a layer', () => {
    const small = { model_type: 'qwen3', num_hidden_layers: 3, sliding_window: 16, max_window_layers: 2 };
    expect(of(small).attention.windows).toEqual([undefined, undefined, undefined]);
    expect(of({ ...small, use_sliding_window: true }).attention.windows).toEqual([undefined, undefined, 15]);
  });
});

describe('is refused by file, key and value', () => {
  test.each<[string, object, RegExp]>([
    [
      'a family without a description',
      { model_type: 'deberta-v2' },
      /"model_type" is "deberta-v2": only "bert", "mpnet"/,
    ],
    ['no family', {}, /"model_type" should be a string, found nothing/],
    ['a key that nobody knows', { model_type: 'bert', num_experts: 8 }, /"num_experts" is 8: it is not known here for/],
    ['experts', { model_type: 'nomic_bert', moe_every_n_layers: 2 }, /"moe_every_n_layers" is 2: it is not known/],
    [
      'weights in few bits',
      { model_type: 'qwen3', quantization_config: { bits: 4 } },
      /"quantization_config" is \{"bits":4\}: the weights are then not what their names say/,
    ],
    [
      'a scaling without what it needs',
      { model_type: 'llama', rope_scaling: { rope_type: 'llama3', factor: 8 } },
      /rope_scaling: "low_freq_factor" should be a number above 0, found nothing/,
    ],
    [
      'other angles for long rows than for short ones',
      { model_type: 'qwen3', rope_parameters: { rope_type: 'longrope', short_factor: [1], long_factor: [2] } },
      /"rope_parameters" is \{"rope_type":"longrope",.*: of types of angles only "default", "linear", "dynamic", "llama3"/,
    ],
    [
      'two names for two types',
      { model_type: 'llama', rope_scaling: { rope_type: 'linear', type: 'dynamic', factor: 2 } },
      /"rope_scaling" is .*: "rope_type" and "type" say the same, and differ/,
    ],
    [
      'angles in two spellings',
      { model_type: 'llama', rope_parameters: { rope_theta: 1e6 }, rope_scaling: { type: 'linear', factor: 2 } },
      /"rope_scaling" is .*: rope_parameters says angles too, and transformers would leave one of them out/,
    ],
    [
      'two lengths of training',
      {
        model_type: 'llama',
        original_max_position_embeddings: 512,
        rope_scaling: { type: 'yarn', factor: 2, original_max_position_embeddings: 1024 },
      },
      /"original_max_position_embeddings" is 512: rope_scaling says 1024 of the same rows/,
    ],
    [
      'a length of training without a scaling',
      { model_type: 'llama', original_max_position_embeddings: 512 },
      /"original_max_position_embeddings" is 512: it is not known here/,
    ],
    [
      'a ramp that transformers does not see',
      {
        model_type: 'gemma3_text',
        rope_parameters: { full_attention: { rope_type: 'yarn', factor: 2, truncate: false } },
      },
      /"rope_parameters" is .*: transformers looks for "truncate" beside the kinds of layers/,
    ],
    [
      'an older scaling without its layers',
      { model_type: 'ultrabert', rope_scaling: { type: 'linear', factor: 2 } },
      /"rope_scaling" is .*: which layers it is for is not known/,
    ],
    [
      'angles with something more',
      { model_type: 'qwen3', rope_parameters: { rope_theta: 1e6, mscale: 2 } },
      /rope_parameters: "mscale" is not known here, and angles of the type "default" could be others/,
    ],
    [
      'heads that are turned in part',
      { model_type: 'llama', rope_parameters: { partial_rotary_factor: 0.5 } },
      /heads that are turned in part are not supported/,
    ],
    [
      "another NTK than GTE's",
      { model_type: 'new', rope_scaling: { type: 'dynamic', factor: 2 } },
      /"rope_scaling" is \{"type":"dynamic","factor":2\}: the authors' code has the type "ntk" alone/,
    ],
    [
      "NTK's mixture",
      { model_type: 'new', rope_scaling: { type: 'ntk', factor: 2, mixed_b: 0.6 } },
      /rope_scaling: "mixed_b" is not known here/,
    ],
    [
      "code of the model's authors",
      { model_type: 'qwen3', auto_map: { AutoModel: 'modeling.VoyageModel' } },
      /"auto_map" is \{"AutoModel":"modeling\.VoyageModel"\}: code of the model's authors is not run here/,
    ],
    [
      "JinaBERT's places",
      { model_type: 'bert', position_embedding_type: 'alibi' },
      /"position_embedding_type" is "alibi"/,
    ],
    ["Jina v3's own spelling", { model_type: 'xlm-roberta', position_embedding_type: 'rotary' }, /is "rotary": only/],
    ['a decoder', { model_type: 'roberta', is_decoder: true }, /"is_decoder" is true: only encoders give embeddings/],
    ['norms before', { model_type: 'nomic_bert', prenorm: true }, /"prenorm" is true: what it changes is not computed/],
    [
      'an activation',
      { model_type: 'modernbert', hidden_activation: 'quick_gelu' },
      /"hidden_activation" is "quick_gelu"/,
    ],
    [
      'layers of two kinds of weights',
      { model_type: 'albert', num_hidden_groups: 2 },
      /"num_hidden_groups" is 2: only/,
    ],
    [
      'bent scores',
      { model_type: 'gemma3_text', attn_logit_softcapping: 50 },
      /"attn_logit_softcapping" is 50: scores/,
    ],
    [
      'other kinds of layers',
      { model_type: 'gemma3_text', num_hidden_layers: 2, layer_types: ['full_attention', 'linear_attention'] },
      /"layer_types" is \["full_attention","linear_attention"\]: 2 of "full_attention" or "sliding_attention" belong/,
    ],
    [
      'fewer kinds than layers',
      { model_type: 'modernbert', num_hidden_layers: 3, layer_types: ['full_attention'] },
      /"layer_types" is \["full_attention"\]: 3 of/,
    ],
    [
      'a window that is not there',
      { model_type: 'qwen3', num_hidden_layers: 1, layer_types: ['sliding_attention'] },
      /"layer_types" is \["sliding_attention"\]: there is no window/,
    ],
    [
      'heads that do not share',
      { model_type: 'bert', num_attention_heads: 7 },
      /hidden_size 768 cannot be shared by 7/,
    ],
    [
      'key heads that do not share',
      { model_type: 'qwen3', num_attention_heads: 4, num_key_value_heads: 3 },
      /4 heads cannot share 3 heads of keys and values/,
    ],
    ['heads without halves', { model_type: 'qwen3', head_dim: 33 }, /heads of 33 values have no halves/],
    [
      'more layers than memory',
      { model_type: 'qwen3', num_hidden_layers: 4_000_000_000 },
      /"num_hidden_layers" is 4000000000: models have 1000 layers at most/,
    ],
    [
      'two spellings that do not agree',
      { model_type: 'nomic_bert', hidden_size: 768, n_embd: 1024 },
      /"n_embd" is 1024: "hidden_size" says the same of the model, and is 768/,
    ],
    [
      'two thetas',
      { model_type: 'qwen3', rope_theta: 10_000, rope_parameters: { rope_theta: 1e6 } },
      /"rope_theta" is 10000: rope_parameters says 1000000 of the same angles/,
    ],
    ['no size', { model_type: 'bert', hidden_size: 0 }, /"hidden_size" should be a whole number ≥ 1, found 0/],
    [
      'a list for a theta',
      { model_type: 'ultrabert', rope_theta: [1, 2] },
      /"rope_theta" is \[1,2\]: only rope_parameters/,
    ],
  ])('%s', (_, config, message) => {
    expect(() => of(config)).toThrow(
      expect.objectContaining({ code: 'MODEL_CORRUPT', message: expect.stringMatching(message) as unknown }),
    );
    expect(() => of(config)).toThrow(/folder\/config\.json/);
  });

  test('not what generation, heads and savers write there', () => {
    const config = {
      model_type: 'bert',
      _name_or_path: 'somebody/model',
      architectures: ['BertModel'],
      id2label: { 0: 'a' },
      do_sample: false,
      torch_dtype: 'float32',
      output_past: true,
      some_new_key: null,
      pruned_heads: {},
      position_embedding_type: 'absolute',
    };
    expect(of(config)).toEqual(of({ model_type: 'bert' }));
  });
});
