// The beginning of a job's first text, for who may see texts (the setting dashboardTexts). Producers send token ids, so it
// is put together from the model's vocabulary: capitals and accents that a tokenizer takes away do not come back. Only
// models whose files are on this machine can be read so, and nothing is fetched.

import { decodeInput, keySpace, queueOf, tokenizerHash } from '@shoal/contract';
import type { StoreFolders } from '@shoal/core';
import type { Redis } from '@shoal/queue';

export interface FirstTextsParts {
  readonly connection: Redis;
  readonly prefix: string;
  /** Where models are. */
  readonly store: StoreFolders;
}

/** The text, at most 80 characters of it, or why it cannot be told. */
export type FirstText = { readonly text: string } | { readonly problem: string };

interface Vocabulary {
  /** Of its tokenizer.json, as jobs name it. */
  readonly hash: string;
  decode(ids: readonly number[]): string;
}

const MOST_CHARACTERS = 80;
/** Eighty characters are never more tokens. */
const MOST_TOKENS = 100;
const MOST_BYTES = 4_194_304;

export class FirstTexts {
  private readonly parts: FirstTextsParts;
  private readonly vocabularies = new Map<string, Promise<Vocabulary | undefined>>();

  constructor(parts: FirstTextsParts) {
    this.parts = parts;
  }

  /** `main`: the main lane; `lane`: where the job's record is. Never throws. */
  async of(main: string, lane: string, jobId: string): Promise<FirstText> {
    try {
      return begun(await this.read(main, lane, jobId));
    } catch (error) {
      return { problem: error instanceof Error ? error.message : String(error) };
    }
  }

  private async read(main: string, lane: string, jobId: string): Promise<FirstText> {
    const { connection, prefix } = this.parts;
    const keys = keySpace(prefix);
    const [record, input] = [keys.job(lane, jobId), keys.input(lane, jobId)];
    const [dataBytes, inputBytes] = await Promise.all([connection.hstrlen(record, 'data'), connection.strlen(input)]);
    if (Math.max(dataBytes, inputBytes) > MOST_BYTES) return { problem: 'it is too large to look into' };
    const data = jobIn(JSON.parse((await connection.hget(record, 'data')) ?? 'null'));
    const texts: unknown = Reflect.get(data, 'texts');
    if (Array.isArray(texts)) return { text: String(texts[0]) };
    if (inputBytes === 0) return { problem: 'its input is gone, or holds no text' };
    const decoded = decodeInput(await bytesAt(connection, input));
    if (decoded.form === 'texts') return { text: decoded.texts[0] ?? '' };
    return this.fromTokens(main, Array.from(decoded.rows[0] ?? []).slice(0, MOST_TOKENS), data);
  }

  private async fromTokens(main: string, ids: readonly number[], data: object): Promise<FirstText> {
    const known = this.vocabularies.get(main) ?? this.vocabularyOf(main);
    this.vocabularies.set(main, known);
    const vocabulary = await known.catch((error: unknown) => {
      this.vocabularies.delete(main);
      throw error;
    });
    if (vocabulary === undefined) return { problem: `the files of the model of ${main} are not on this machine` };
    const hash: unknown = Reflect.get(Object(Reflect.get(data, 'input')), 'tokenizer');
    if (hash !== vocabulary.hash)
      return { problem: 'its tokens are of another vocabulary than the one on this machine' };
    return { text: vocabulary.decode(ids) };
  }

  /** Undefined where no model of this machine has the queue. */
  private async vocabularyOf(main: string): Promise<Vocabulary | undefined> {
    const { store } = this.parts;
    const [{ listModels, openDecoder, openModel }, { readFile }] = await Promise.all([
      import('@shoal/models'),
      import('node:fs/promises'),
    ]);
    const listing = (await listModels(store)).find((model) => model.isStored && queueOf(model) === main);
    if (listing === undefined) return undefined;
    const model = await openModel(listing.name, store);
    const [decoder, file] = await Promise.all([openDecoder(model), readFile(`${model.folder}/tokenizer.json`)]);
    return { hash: tokenizerHash(file), decode: (ids) => decoder.decode(ids, true) };
  }
}

/** A job in quarantine is within what is kept of it there. */
function jobIn(data: unknown): object {
  const held: unknown = Reflect.get(Object(data), 'job');
  return Object(typeof held === 'object' && held !== null ? held : data) as object;
}

async function bytesAt(connection: Redis, key: string): Promise<Buffer> {
  return (await connection.getBuffer(key)) ?? Buffer.alloc(0);
}

function begun(found: FirstText): FirstText {
  if (!('text' in found) || found.text.length <= MOST_CHARACTERS) return found;
  return { text: `${found.text.slice(0, MOST_CHARACTERS).toWellFormed()}…` };
}
