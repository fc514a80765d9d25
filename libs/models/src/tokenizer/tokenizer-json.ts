// tokenizer.json as checked facts: one union, told apart by the type of its model. Refuses by name what it does not know,
// because ids of a tokenizer that is only nearly this one would be wrong without anybody noticing. Padding and
// truncation in the file are ignored on purpose (minilm's says 128 for both): rows are padded by the planner and
// truncated where the model's authors truncate. The decoder plays no part in ids.

import { ShoalError } from '@shoal/contract';
import { CheckedJson, quoted } from '../checked-json.ts';
import { readBpe, type BpeFacts } from './bpe-facts.ts';
import { readUnigram, type UnigramFacts } from './unigram-facts.ts';
import { readWordPiece, type WordPieceFacts } from './word-piece-facts.ts';

/** One kind of model each. */
export type TokenizerFacts = WordPieceFacts | UnigramFacts | BpeFacts;

const KNOWN_VERSION = '1.0';
const KNOWN_KEYS = [
  'version',
  'truncation',
  'padding',
  'added_tokens',
  'normalizer',
  'pre_tokenizer',
  'post_processor',
  'decoder',
  'model',
];

/**
 * The facts of a tokenizer.json. MODEL_CORRUPT, naming `where`, key and value, for what is no such file, for a kind of
 * model, a step or a key that is not known here, and for ids that contradict each other.
 */
export function parseTokenizerJson(text: string, where: string): TokenizerFacts {
  const root = CheckedJson.parse(text, where);
  root.expectKeys(KNOWN_KEYS, 'what it does to texts neither');
  checkVersion(root);
  const model = root.object('model');
  const kind = kindOf(model);
  switch (kind) {
    case 'WordPiece':
      return readWordPiece(root);
    case 'Unigram':
      return readUnigram(root);
    case 'BPE':
      return readBpe(root);
    default:
      throw new ShoalError(
        'MODEL_CORRUPT',
        `${model.where}: type ${quoted(kind)} is not supported, only WordPiece, Unigram and BPE`,
        {
          where: model.where,
        },
      );
  }
}

/** Every file so far says 1.0; what another version would mean is not known. */
function checkVersion(root: CheckedJson): void {
  const version = root.has('version') ? root.string('version') : KNOWN_VERSION;
  if (version === KNOWN_VERSION) return;
  throw new ShoalError(
    'MODEL_CORRUPT',
    `${root.where}: "version" is ${quoted(version)}; only "${KNOWN_VERSION}" is known here`,
    { where: root.where, key: 'version' },
  );
}

/** Files older than tokenizers 0.9 leave "type" out, and are WordPiece where they have its prefix. */
function kindOf(model: CheckedJson): string {
  return model.has('type') || !model.has('continuing_subword_prefix') ? model.string('type') : 'WordPiece';
}
