// What a tokenizer.json must be, and the words in which another one is refused.

import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { StoredModel } from '../store/stored-model.ts';
import { writeTinyModel } from '../store/tiny-model.ts';
import { openTokenizer } from './open-tokenizer.ts';

type Root = Record<string, Record<string, unknown>>;

let folder: string;
let model: StoredModel;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-tokenizer-'));
  model = await writeTinyModel(folder, { seed: 1 });
});
afterEach(() => rm(folder, { recursive: true, force: true }));

async function changeTokenizer(change: (root: Root) => void): Promise<void> {
  const path = join(folder, 'tokenizer.json');
  const root = JSON.parse(await readFile(path, 'utf8')) as Root;
  change(root);
  await writeFile(path, JSON.stringify(root));
}

const keepsCapitals = (root: Root): void => {
  root['normalizer']!['lowercase'] = false;
};
const asksForLowercase = (value: boolean): Promise<void> =>
  writeFile(join(folder, 'sentence_bert_config.json'), JSON.stringify({ max_seq_length: 256, do_lower_case: value }));

describe('a tokenizer.json that this tokenizer would read wrongly is refused by name', () => {
  test.each<[string, (root: Root) => void, RegExp]>([
    [
      'another model',
      (root) => {
        root['model']!['type'] = 'WordLevel';
      },
      /model: type "WordLevel" is not supported, only WordPiece, Unigram and BPE/,
    ],
    [
      'another normalizer',
      (root) => {
        root['normalizer'] = { type: 'NFKC' };
      },
      /normalizer: type "NFKC" is not supported/,
    ],
    [
      'another pre-tokenizer',
      (root) => {
        root['pre_tokenizer'] = { type: 'Metaspace' };
      },
      /pre_tokenizer: type "Metaspace"/,
    ],
    [
      'no normalizer',
      (root) => {
        delete root['normalizer'];
      },
      /"normalizer" should be an object, found nothing/,
    ],
    [
      'a template without the text',
      (root) => {
        (root['post_processor']!['single'] as unknown[]).splice(1, 1);
      },
      /"single" should have the text once/,
    ],
    [
      'a text of another type',
      (root) => {
        (root['post_processor']!['single'] as unknown[]).push({ SpecialToken: { id: '[SEP]', type_id: 1 } });
      },
      /"single" has the type 1; only 0 is supported/,
    ],
    [
      'another post-processor',
      (root) => {
        root['post_processor'] = { type: 'Sequence', processors: [{ type: 'ByteLevel' }, { type: 'Fence' }] };
      },
      /post_processor: processors\[1\]: type "Fence" is not supported/,
    ],
    [
      'two post-processors that put tokens around',
      (root) => {
        root['post_processor'] = { type: 'Sequence', processors: [root['post_processor'], root['post_processor']] };
      },
      /post_processor: processors\[1\]: it is the second one/,
    ],
    [
      'an added token with a flag of tomorrow',
      (root) => {
        (root as unknown as Record<string, Record<string, unknown>[]>)['added_tokens']![4]!['ignore_case'] = true;
      },
      /added_tokens\[4\]: "ignore_case" is not known here/,
    ],
    [
      'a version of tomorrow',
      (root) => {
        (root as Record<string, unknown>)['version'] = '2.0';
      },
      /tokenizer\.json: "version" is "2\.0"; only "1\.0" is known here/,
    ],
    [
      'an unknown token outside the vocabulary',
      (root) => {
        root['model']!['unk_token'] = '<unk>';
      },
      /unk_token "<unk>" is not in the vocabulary/,
    ],
    [
      'an id that is no id',
      (root) => {
        (root['model']!['vocab'] as Record<string, unknown>)['the'] = -1;
      },
      /"the" should be a whole number ≥ 0, found -1/,
    ],
    [
      'more ids than the model has rows',
      (root) => {
        (root['model']!['vocab'] as Record<string, unknown>)['the'] = 5_000;
      },
      /ids up to 5000, but the model has only 231 rows/,
    ],
  ])('%s', async (_, change, message) => {
    await changeTokenizer(change);
    await expect(openTokenizer(model)).rejects.toMatchObject({
      code: 'MODEL_CORRUPT',
      message: expect.stringMatching(message) as string,
    });
  });

  test('cut off in the middle', async () => {
    const path = join(folder, 'tokenizer.json');
    await writeFile(path, (await readFile(path)).subarray(0, 1_000));
    await expect(openTokenizer(model)).rejects.toMatchObject({
      code: 'MODEL_CORRUPT',
      message: expect.stringContaining('tokenizer.json is not JSON') as string,
    });
  });

  test('missing', async () => {
    await rm(join(folder, 'tokenizer.json'));
    await expect(openTokenizer(model)).rejects.toMatchObject({
      code: 'MODEL_CORRUPT',
      message: expect.stringContaining('cannot be read') as string,
    });
  });
});

describe('"do_lower_case" of sentence_bert_config.json', () => {
  test('is refused beside a tokenizer that keeps capitals', async () => {
    await Promise.all([changeTokenizer(keepsCapitals), asksForLowercase(true)]);
    await expect(openTokenizer(model)).rejects.toMatchObject({
      code: 'MODEL_CORRUPT',
      message: expect.stringMatching(
        /sentence_bert_config\.json has "do_lower_case": true, .*tokenizer\.json keeps capitals.*"lowercase" to true/,
      ) as string,
    });
  });

  test('changes nothing where the tokenizer lowercases, or where it is false', async () => {
    await asksForLowercase(true);
    expect((await openTokenizer(model)).encode('The').ids).toEqual((await openTokenizer(model)).encode('the').ids);
    await Promise.all([changeTokenizer(keepsCapitals), asksForLowercase(false)]);
    expect((await openTokenizer(model)).encode('The').ids).not.toEqual((await openTokenizer(model)).encode('the').ids);
  });
});

describe('row length', () => {
  test('defaults to where the authors truncate', async () => {
    expect((await openTokenizer(model)).maxTokens).toBe(256);
  });

  test('may be set up to the positions of the model', async () => {
    const tokenizer = await openTokenizer(model, { maxTokens: 512 });
    expect(tokenizer.encode('the '.repeat(600)).ids).toHaveLength(512);
  });

  test.each([513, 2, 0, -1, 8.5, NaN])('%d is CONFIG_INVALID', async (maxTokens) => {
    await expect(openTokenizer(model, { maxTokens })).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining('rows of 3 to 512 tokens') as string,
    });
  });
});
