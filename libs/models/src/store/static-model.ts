// A static model as its authors save it, brought into the store's words: a folder of model2vec (tensor "embeddings",
// config.json), computed as StaticModel.encode of model2vec 0.10 does it, or one of sentence-transformers' StaticEmbedding
// (tensor "embedding.weight"), as sentence-transformers 6.2 does it. Neither puts special tokens around texts nor reads
// tokenizer_config.json. What the two would do differently is decided by the name of the tensor, and said.

import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import { isNeutral } from '../encoder/neutral-keys.ts';
import { LONGEST_ROW } from '../encoder/describe-encoder.ts';
import { MAPPING, WEIGHTS, staticConfig, type StaticSizes } from '../encoder/static-family.ts';
import { Safetensors } from '../graph/safetensors.ts';
import type { HeadModule } from '../graph/sentence-head.ts';
import { parseTokenizerJson, type TokenizerFacts } from '../tokenizer/tokenizer-json.ts';

export interface StaticSource {
  /** The copy of model.safetensors. */
  readonly weights: string;
  /** Of tokenizer.json, and where it lies. */
  readonly tokenizer: string;
  readonly where: string;
  /** config.json beside them, where there is one. */
  readonly config: CheckedJson | undefined;
  /** Behind the table, by modules.json; undefined where there is none. */
  readonly modules: readonly HeadModule[] | undefined;
}

export interface StaticModel {
  /** config.json and tokenizer.json for the store. */
  readonly config: object;
  readonly tokenizer: string;
  /** Length of a row of the table. */
  readonly width: number;
  readonly modules: readonly HeadModule[];
  readonly maxTokens: number;
  readonly notes: readonly string[];
}

/** As model2vec and as sentence-transformers name the table. */
const [MODEL2VEC, SENTENCE_TRANSFORMERS] = ['embeddings', 'embedding.weight'];
const DEFAULT_MAX_LENGTH = 512;

/** Say how the table was made, or what is read in the tensors themselves. */
const NEUTRAL_KEYS = [
  'model_type',
  'architectures',
  'tokenizer_name',
  'apply_pca',
  'apply_zipf',
  'sif_coefficient',
  'hidden_dim',
  'seq_length',
  'pooling',
  'embedding_dtype',
  'vocabulary_quantization',
];

/** MODEL_CORRUPT, by file, key or tensor, for what is no static model that the two packages would take. */
export async function readStaticModel(source: StaticSource): Promise<StaticModel> {
  const { dims, tokens, table } = await readShapes(source.weights);
  const { text: tokenizer, facts } = staticTokenizer(source.tokenizer, source.where);
  if (facts.vocabularySize > tokens)
    throw corrupt(
      source.where,
      `it has ids up to ${facts.vocabularySize - 1}, and ${source.weights} has only ${tokens} tokens`,
    );
  const made = table.name === MODEL2VEC ? readModel2vec : readStaticEmbedding;
  const { texts, modules, maxTokens, notes } = made(source, facts, { tokens, table });
  return {
    config: staticConfig({ dims, tokens, table, texts }),
    tokenizer,
    width: dims,
    modules,
    maxTokens: Math.min(maxTokens ?? LONGEST_ROW, LONGEST_ROW),
    notes: [...notes, ...lengthNotes(maxTokens)],
  };
}

/** What a folder without its weights would be refused for; `config` is that of model2vec. */
export function refuseOtherStaticConfig(config: CheckedJson): void {
  const unknown = config.keys().find((key) => !isKnown(key) && !isNeutral(key, config.raw(key)));
  if (unknown === undefined) return;
  const value = JSON.stringify(config.raw(unknown)) ?? '';
  throw corrupt(
    config.where,
    `"${unknown}" is ${value.slice(0, 200)}: it is not known here for a static model, and what it changes neither`,
  );
}

function isKnown(key: string): boolean {
  return [...NEUTRAL_KEYS, 'normalize', 'max_length', 'head_config'].includes(key);
}

async function readShapes(weights: string): Promise<Pick<StaticSizes, 'dims' | 'tokens' | 'table'>> {
  return Safetensors.use(weights, async (file) => {
    const found = [MODEL2VEC, SENTENCE_TRANSFORMERS].filter((name) => file.has(name!));
    const [name, more] = found;
    if (name === undefined || more !== undefined)
      throw corrupt(
        weights,
        `it has the tensors ${file.names.slice(0, 5).join(', ')}; a static model has either "${MODEL2VEC}" (model2vec) or ` +
          `"${SENTENCE_TRANSFORMERS}" (sentence-transformers)`,
      );
    const beside = name === MODEL2VEC ? [MAPPING, WEIGHTS] : [];
    const odd = file.names.find((tensor) => tensor !== name && !beside.includes(tensor));
    if (odd !== undefined) throw corrupt(weights, `tensor ${odd} has no place beside "${name}" in a static model`);
    const [rows = 0, dims = 0, ...others] = file.stored(name).shape;
    if (rows === 0 || dims === 0 || others.length > 0)
      throw corrupt(weights, `tensor ${name} has the shape [${file.stored(name).shape.join(', ')}], not [rows, dims]`);
    const [hasMapping, hasWeights] = [file.has(MAPPING), file.has(WEIGHTS)];
    const tokens = hasMapping ? (file.stored(MAPPING).shape[0] ?? 0) : rows;
    return { dims, tokens, table: { name, rows, hasMapping, hasWeights } };
  });
}

/** tokenizer.json as it is stored: no special tokens are put around texts, whatever the file says. */
export function staticTokenizer(
  given: string,
  where: string,
): { readonly text: string; readonly facts: TokenizerFacts } {
  const hasEnds = CheckedJson.parse(given, where).has('post_processor');
  const text = hasEnds ? JSON.stringify({ ...(JSON.parse(given) as object), post_processor: null }) : given;
  return { text, facts: parseTokenizerJson(text, where) };
}

interface Read extends Pick<StaticSizes, 'texts'> {
  readonly modules: readonly HeadModule[];
  /** Undefined where rows may have any length. */
  readonly maxTokens: number | undefined;
  readonly notes: readonly string[];
}

type Found = Pick<StaticSizes, 'tokens' | 'table'>;

/** As StaticModel.from_pretrained and its encode do it. */
function readModel2vec(source: StaticSource, facts: TokenizerFacts, { tokens, table }: Found): Read {
  const { config, where, weights } = source;
  if (config === undefined)
    throw corrupt(weights, 'there is no config.json beside it, which says how model2vec computes it');
  refuseOtherStaticConfig(config);
  const known = tokensOf(facts);
  if (!table.hasMapping && known.size !== tokens)
    throw corrupt(where, `it has ${known.size} tokens, and ${weights} ${tokens} rows for them: model2vec refuses both`);
  const isUnit = config.has('normalize') && config.boolean('normalize');
  const maxTokens = config.raw('max_length') === undefined ? DEFAULT_MAX_LENGTH : lengthOf(config);
  const notes: string[] = [];
  if (config.has('head_config'))
    notes.push(
      `${config.where} has "head_config": the head of its classifier is left out, as StaticModel leaves it out`,
    );
  const other = source.modules?.find(({ kind }) => kind !== 'normalize');
  if (other !== undefined)
    throw corrupt(
      config.where,
      `modules.json has a ${other.kind} behind the table, which model2vec leaves out and sentence-transformers does not`,
    );
  if (source.modules !== undefined && source.modules.length > 0 !== isUnit)
    notes.push(
      `${config.where} has "normalize": ${String(isUnit)}, and modules.json ${isUnit ? 'no' : 'a'} Normalize; vectors are ` +
        'those of model2vec',
    );
  return {
    texts: { charsPerToken: maxTokens === undefined ? undefined : medianChars(known), dropsUnknown: true },
    modules: isUnit ? [{ kind: 'normalize' }] : [],
    maxTokens,
    notes,
  };
}

/** Null: no text is cut. */
function lengthOf(config: CheckedJson): number | undefined {
  return config.has('max_length') ? config.integer('max_length', 1) : undefined;
}

/** As StaticEmbedding does it: rows are cut as tokenizer.json says, and unknown tokens count. */
function readStaticEmbedding({ tokenizer, where, modules = [] }: StaticSource): Read {
  const json = CheckedJson.parse(tokenizer, where);
  const truncation = json.has('truncation') ? json.object('truncation') : undefined;
  const direction = truncation?.has('direction') === true ? truncation.string('direction') : 'Right';
  if (direction !== 'Right')
    throw corrupt(
      where,
      `its truncation has "direction": ${JSON.stringify(direction)}; only "Right" is supported: the beginning of a long ` +
        'text is kept here, and with this its end would be',
    );
  return {
    texts: { charsPerToken: undefined, dropsUnknown: false },
    modules,
    maxTokens: truncation?.integer('max_length', 1),
    notes: [],
  };
}

/** As tokenizers' get_vocab() has them: each once, added ones too. */
function tokensOf({ kind, model, addedTokens }: TokenizerFacts): ReadonlySet<string> {
  const own = kind === 'Unigram' ? model.pieces : model.vocabulary.keys();
  return new Set([...own, ...addedTokens.map(({ content }) => content)]);
}

/** The median of the tokens' code points, downwards. */
function medianChars(tokens: ReadonlySet<string>): number {
  const lengths = Uint32Array.from(tokens, (token) => [...token].length).sort();
  const half = lengths.length >> 1;
  const median = lengths.length % 2 === 1 ? lengths[half]! : (lengths[half - 1]! + lengths[half]!) / 2;
  return Math.floor(median);
}

function lengthNotes(maxTokens: number | undefined): readonly string[] {
  if (maxTokens !== undefined && maxTokens <= LONGEST_ROW) return [];
  const allowed = maxTokens === undefined ? 'any length' : `${maxTokens} tokens`;
  return [`its texts may have ${allowed}; rows end at ${LONGEST_ROW} tokens here, and results say which were cut`];
}

function corrupt(where: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where}: ${problem}`, { where });
}
