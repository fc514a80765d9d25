// SHI1 of rerank jobs, whose rows are pairs of texts. The header is that of every SHI1 (input-format.ts); rows counts
// pairs. Little-endian:
//   form 3: offsets u32 × (rows + 2), in bytes: of the query, of each text, and the end; then their UTF-8
//   form 4 and 5: offsets u32 × (rows + 1), in ids; second u32 × rows: at which of a row's ids its second text begins,
//   from 0 to the number of them; then the ids, u16 or u32
// Ids of a pair are exactly what the model takes: special tokens in, truncated. Ids from `second` on have token type 1
// where a model knows types. Decoding never trusts a number it has not checked.

import {
  FORM,
  HEADER_BYTES,
  allocate,
  corrupt,
  hasAtLeast,
  putRows,
  readHead,
  readIds,
  readOffsets,
  readTexts,
  rowsOf,
  type TokenIds,
} from './input-format.ts';

/** Two texts as one row of token ids. */
export interface TokenPair {
  readonly ids: ArrayLike<number>;
  /** Where among the ids the second text begins: its first token, behind what stands between the two. */
  readonly second: number;
}

export type DecodedPairs =
  | { readonly form: 'texts'; readonly query: string; readonly texts: readonly string[] }
  /** `ids`: of all rows, one after the other. `seconds`: one a row. */
  | {
      readonly form: 'tokens';
      readonly rows: readonly TokenIds[];
      readonly ids: TokenIds;
      readonly seconds: Uint32Array;
    };

/** A query and 1 to 1,024 texts. Lone surrogates become U+FFFD, as in every UTF-8 encoder. */
export function encodeQueryTexts(query: string, texts: readonly string[]): Buffer {
  const all = [query, ...texts];
  const lengths = all.map((text) => Buffer.byteLength(text));
  const { buffer, at } = allocate({ form: FORM.queryTexts, rows: texts.length, lengths, elementBytes: 1 });
  let position = at;
  for (const text of all) position += buffer.write(text, position);
  return buffer;
}

/**
 * Pairs as token ids, special tokens included, already truncated; as u16 when every id fits. Throws RangeError for an id
 * that is no whole number from 0 to 2³² - 1, and for a second text that begins outside its row.
 */
export function encodePairs(pairs: readonly TokenPair[]): Buffer {
  for (const { ids, second } of pairs)
    if (!Number.isInteger(second) || second < 0 || second > ids.length)
      throw new RangeError(`a second text begins at ${second} of ${ids.length} token ids`);
  const isNarrow = !pairs.some(({ ids }) => hasAtLeast(0x1_0000, ids));
  const elementBytes = isNarrow ? 2 : 4;
  const { buffer, at } = allocate({
    form: isNarrow ? FORM.pairs16 : FORM.pairs32,
    rows: pairs.length,
    lengths: pairs.map(({ ids }) => ids.length),
    elementBytes,
    words: pairs.map(({ second }) => second),
  });
  putRows(
    buffer.subarray(at),
    elementBytes,
    pairs.map(({ ids }) => ids),
  );
  return buffer;
}

/**
 * Decodes the input key of a rerank job. Throws INPUT_CORRUPT with what was found. The ids are views where alignment
 * allows, copies where not.
 */
export function decodePairs(bytes: Buffer): DecodedPairs {
  const { form, rows } = readHead(bytes);
  if (form === FORM.queryTexts) {
    const offsets = readOffsets(bytes, { count: rows + 1, wordsBehind: 0, elementBytes: 1 });
    const [query, ...texts] = readTexts(bytes, offsets, HEADER_BYTES + 4 * (rows + 2));
    return { form: 'texts', query: query!, texts };
  }
  if (form !== FORM.pairs16 && form !== FORM.pairs32)
    throw corrupt(
      Object.values<number>(FORM).includes(form)
        ? `its form is ${form}, which has no pairs; a rerank job takes 3, 4 and 5`
        : `its form is ${form}; of a rerank job 3, 4 and 5 are known`,
    );
  const elementBytes = form === FORM.pairs16 ? 2 : 4;
  const offsets = readOffsets(bytes, { count: rows, wordsBehind: rows, elementBytes });
  const secondsAt = HEADER_BYTES + 4 * (rows + 1);
  const seconds = Uint32Array.from({ length: rows }, (_, row) => {
    const [second, length] = [bytes.readUInt32LE(secondsAt + 4 * row), offsets[row + 1]! - offsets[row]!];
    if (second > length) throw corrupt(`the second text of row ${row} begins at ${second} of ${length} token ids`);
    return second;
  });
  const ids = readIds(bytes, secondsAt + 4 * rows, elementBytes);
  return { form: 'tokens', rows: rowsOf(ids, offsets), ids, seconds };
}
