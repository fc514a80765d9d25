// Token ids back to text, as the package `tokenizers` does it: ids become the pieces of the vocabulary, and the decoder
// that tokenizer.json names puts these together. What a normalizer took away (capitals, accents, spaces) does not come
// back. Plays no part in embedding; read when somebody asks for it.

import { join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import { readModelFile, type StoredModel } from '../store/stored-model.ts';

export interface Decoder {
  /** Ids that are no token give nothing. `skipsSpecial`: end tokens, padding and others that stand for no text. */
  decode(ids: readonly number[], skipsSpecial: boolean): string;
}

/** Pieces to pieces; the last ones are joined. */
type Step = (pieces: readonly string[]) => readonly string[];

/** Throws MODEL_CORRUPT, for a decoder that is not known here as well. */
export async function openDecoder(model: Pick<StoredModel, 'folder'>): Promise<Decoder> {
  const path = join(model.folder, 'tokenizer.json');
  return parseDecoder((await readModelFile(path)).toString(), path);
}

/** The same of the text of a tokenizer.json; `where` names it in messages. */
export function parseDecoder(text: string, where: string): Decoder {
  const file = CheckedJson.parse(text, where);
  const pieces = piecesOf(file.object('model'));
  const special = new Set<number>();
  for (const token of file.has('added_tokens') ? objects(file, 'added_tokens') : []) {
    const id = token.integer('id', 0);
    pieces[id] = token.string('content');
    if (token.boolean('special')) special.add(id);
  }
  const step = file.has('decoder') ? stepOf(file.object('decoder')) : spaced;
  return {
    decode: (ids, skipsSpecial) =>
      step(
        ids.flatMap((id) => {
          const piece = skipsSpecial && special.has(id) ? undefined : pieces[id];
          return piece === undefined ? [] : [piece];
        }),
      ).join(''),
  };
}

/** By id. Of a word list an object, of Unigram a list of pieces with their scores. */
function piecesOf(model: CheckedJson): (string | undefined)[] {
  const vocabulary = model.raw('vocab');
  if (Array.isArray(vocabulary))
    return vocabulary.map((entry: unknown) => (Array.isArray(entry) ? String(entry[0]) : ''));
  const pieces: (string | undefined)[] = [];
  for (const [piece, id] of model.object('vocab').integerEntries()) pieces[id] = piece;
  return pieces;
}

function objects(file: CheckedJson, key: string): CheckedJson[] {
  return file.list(key).map((item) => CheckedJson.of(item, `${file.where}: ${key}`));
}

const spaced: Step = (pieces) => pieces.map((piece, at) => (at === 0 ? piece : ` ${piece}`));

function stepOf(decoder: CheckedJson): Step {
  const type = decoder.string('type');
  switch (type) {
    case 'WordPiece':
      return words(decoder.string('prefix'), decoder.boolean('cleanup'));
    case 'ByteLevel':
      return bytesOfLetters;
    case 'Metaspace':
      return spaces(decoder.string('replacement'), prependsSpace(decoder));
    case 'BPEDecoder':
      return suffixes(decoder.string('suffix'));
    case 'ByteFallback':
      return spelledBytes;
    case 'Fuse':
      return (pieces) => (pieces.length === 0 ? [] : [pieces.join('')]);
    case 'Replace':
      return replaced(decoder);
    case 'Strip':
      return stripped(decoder.string('content'), decoder.integer('start', 0), decoder.integer('stop', 0));
    case 'Sequence': {
      const steps = objects(decoder, 'decoders').map(stepOf);
      return (pieces) => steps.reduce((sofar, step) => step(sofar), pieces);
    }
    default:
      throw unsupported(decoder.where, `a decoder of type "${type}"`);
  }
}

function words(prefix: string, isCleaned: boolean): Step {
  return (pieces) =>
    pieces.map((piece, at) => {
      const whole = at === 0 ? piece : piece.startsWith(prefix) ? piece.slice(prefix.length) : ` ${piece}`;
      return isCleaned ? cleaned(whole) : whole;
    });
}

/** The spaces that English does not write, in the order in which `tokenizers` takes them away. */
const CLEANED = [
  [' .', '.'],
  [' ?', '?'],
  [' !', '!'],
  [' ,', ','],
  [" ' ", "'"],
  [" n't", "n't"],
  [" 'm", "'m"],
  [' do not', " don't"],
  [" 's", "'s"],
  [" 've", "'ve"],
  [" 're", "'re"],
] as const;

function cleaned(piece: string): string {
  return CLEANED.reduce((sofar, [found, becomes]) => sofar.replaceAll(found, becomes), piece);
}

/** Each byte of a text as a letter that can be seen (GPT-2): printable ones are themselves, others follow from 256 on. */
const BYTES = new Map<string, number>();
for (let byte = 0, next = 256; byte < 256; byte++) {
  const isSeen = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  BYTES.set(String.fromCharCode(isSeen ? byte : next++), byte);
}

const bytesOfLetters: Step = (pieces) => [
  Buffer.from(
    pieces.flatMap((piece) => {
      const bytes = [...piece].map((letter) => BYTES.get(letter));
      return bytes.every((byte) => byte !== undefined) ? bytes : [...Buffer.from(piece)];
    }),
  ).toString(),
];

function spaces(replacement: string, isPrepended: boolean): Step {
  return (pieces) => pieces.map((piece, at) => piece.replaceAll(replacement, at === 0 && isPrepended ? '' : ' '));
}

/** Whether the first space was put there by the tokenizer. Older files say it as `add_prefix_space`. */
function prependsSpace(decoder: CheckedJson): boolean {
  if (decoder.has('prepend_scheme')) return decoder.string('prepend_scheme') !== 'never';
  return !decoder.has('add_prefix_space') || decoder.boolean('add_prefix_space');
}

function suffixes(suffix: string): Step {
  return (pieces) => pieces.map((piece, at) => piece.replaceAll(suffix, at === pieces.length - 1 ? '' : ' '));
}

/** Pieces such as <0xE2> that follow each other are the bytes of letters; of what is no UTF-8 each byte is "�". */
const spelledBytes: Step = (pieces) => {
  const text: string[] = [];
  let bytes: number[] = [];
  const flush = (): void => {
    if (bytes.length === 0) return;
    const [letters, count] = [Buffer.from(bytes).toString(), bytes.length];
    text.push(letters.includes('\uFFFD') ? '\uFFFD'.repeat(count) : letters);
    bytes = [];
  };
  for (const piece of pieces) {
    const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(piece)?.[1];
    if (byte !== undefined) {
      bytes.push(Number.parseInt(byte, 16));
      continue;
    }
    flush();
    text.push(piece);
  }
  flush();
  return text;
};

function replaced(decoder: CheckedJson): Step {
  const pattern = decoder.object('pattern');
  if (!pattern.has('String')) throw unsupported(decoder.where, 'a decoder that replaces by a regular expression');
  const [found, becomes] = [pattern.string('String'), decoder.string('content')];
  return (pieces) => pieces.map((piece) => piece.replaceAll(found, () => becomes));
}

function stripped(content: string, most: number, mostAtEnd: number): Step {
  return (pieces) =>
    pieces.map((piece) => {
      const letters = [...piece];
      let [from, to] = [0, letters.length];
      while (from < Math.min(most, letters.length) && letters[from] === content) from++;
      while (letters.length - to < mostAtEnd && to > from && letters[to - 1] === content) to--;
      return letters.slice(from, to).join('');
    });
}

function unsupported(where: string, what: string): ShoalError<'MODEL_CORRUPT'> {
  return new ShoalError('MODEL_CORRUPT', `${where} has ${what}, which is not known here: ids cannot become text`, {
    where,
  });
}
