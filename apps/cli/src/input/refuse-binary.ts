// What is no file of texts, by its name or by its first bytes, and how to make one of it. Each cure is a command that
// works as it stands.

import { basename, extname } from 'node:path';
import { withoutCompression } from '@shoal/worker/files/compression';
import { TEXT_FORMATS } from '@shoal/worker/files/record';

/** How much of a head is looked at for NUL bytes; text files have none. */
const BINARY_BYTES = 8 * 1024;

type Cure = (name: string) => string;

interface Kind {
  readonly what: string;
  readonly extensions: readonly string[];
  readonly magic?: Buffer;
  readonly cure: Cure;
}

const KINDS: readonly Kind[] = [
  {
    what: 'a Parquet file',
    extensions: [],
    magic: Buffer.from('PAR1'),
    cure: (name) => `mv ${quoted(name)} ${quoted(`${stem(name)}.parquet`)}, or say --format parquet`,
  },
  {
    what: 'an archive of tar, or compressed twice',
    extensions: ['.tgz'],
    magic: Buffer.of(0x1f, 0x8b),
    cure: (name) => (/\.tgz$/i.test(name) ? `tar xzf ${quoted(name)}` : `gzip -dk ${quoted(name)}`),
  },
  {
    what: 'compressed twice by Zstandard',
    extensions: [],
    magic: Buffer.of(0x28, 0xb5, 0x2f, 0xfd),
    cure: (name) => `zstd -d ${quoted(name)}`,
  },
  {
    what: 'compressed by xz',
    extensions: ['.xz'],
    magic: Buffer.of(0xfd, 0x37, 0x7a, 0x58, 0x5a),
    cure: (name) => `xz -dk ${quoted(name)}`,
  },
  {
    what: 'compressed by bzip2',
    extensions: ['.bz2'],
    magic: Buffer.from('BZh'),
    cure: (name) => `bzip2 -dk ${quoted(name)}`,
  },
  {
    what: 'a spreadsheet',
    extensions: ['.xlsx', '.xls', '.ods'],
    cure: (name) => `python3 -c "import pandas; pandas.read_excel('${name}').to_csv('${stem(name)}.csv', index=False)"`,
  },
  {
    what: 'a document of a word processor',
    extensions: ['.docx', '.odt', '.epub'],
    cure: (name) => `pandoc ${quoted(name)} -t gfm -o ${quoted(`${stem(name)}.md`)}`,
  },
  {
    what: 'a ZIP archive',
    extensions: ['.zip'],
    magic: Buffer.from('PK\u0003\u0004'),
    cure: (name) => `unzip ${quoted(name)}`,
  },
  {
    what: 'a PDF',
    extensions: ['.pdf'],
    magic: Buffer.from('%PDF-'),
    cure: (name) => `pdftotext ${quoted(name)} ${quoted(`${stem(name)}.txt`)}`,
  },
  {
    what: 'a page of HTML',
    extensions: ['.html', '.htm'],
    cure: (name) => `pandoc ${quoted(name)} -t gfm -o ${quoted(`${stem(name)}.md`)}`,
  },
  {
    what: 'an Arrow file',
    extensions: ['.arrow', '.feather'],
    magic: Buffer.from('ARROW1'),
    cure: (name) =>
      `python3 -c "import pandas; pandas.read_feather('${name}').to_json('${stem(name)}.jsonl', orient='records', ` +
      `lines=True, force_ascii=False)"`,
  },
];

const READ = '.txt (a line a text), .jsonl, .json, .csv, .tsv and .md, all also .gz and .zst, and .parquet';

/** Why a file of this name is not read, and what to do. */
export function unknownFormat(whole: string): string {
  const name = withoutCompression(whole);
  const extension = extname(name).toLowerCase();
  const kind = KINDS.find(({ extensions }) => extensions.includes(extension));
  if (kind !== undefined) return `${whole} is ${kind.what}; Shoal reads ${READ}. Convert it first: ` + kind.cure(name);
  const found = extension === '' ? 'has no extension' : `has the extension ${extname(name)}`;
  return `${whole} ${found}; Shoal reads ${READ}. Say which of them it is with --format ${TEXT_FORMATS.join('|')}`;
}

/** Undefined: these may be the first bytes of a text in UTF-8. */
export function binaryProblem(name: string, head: Buffer): string | undefined {
  const encoding = encodingOf(head);
  if (encoding !== undefined)
    return `${name} is ${encoding}; convert it first, for example: iconv -f ${encoding} -t UTF-8 ${quoted(name)} > ${quoted(`${stem(name)}.utf8${extname(name)}`)}`;
  const kind = KINDS.find(({ magic }) => magic !== undefined && head.subarray(0, magic.length).equals(magic));
  const nulAt = head.subarray(0, BINARY_BYTES).indexOf(0);
  // letters that a text may begin with as well
  const isSure = kind !== undefined && (nulAt !== -1 || kind.magic!.some((byte) => byte >= 0x80));
  if (isSure) {
    const named = KINDS.find(({ extensions }) => extensions.includes(extname(name).toLowerCase())) ?? kind;
    return `${name} is ${named.what}; Shoal embeds texts in UTF-8. Convert it first: ${named.cure(name)}`;
  }
  return nulAt === -1
    ? undefined
    : `${name} is a binary file (a NUL at byte ${nulAt}); Shoal embeds lines of UTF-8 text`;
}

/** By its byte order mark, else by where its NUL bytes stand. */
function encodingOf(head: Buffer): string | undefined {
  const begins = (...bytes: readonly number[]): boolean => bytes.every((byte, at) => head[at] === byte);
  if (begins(0xff, 0xfe, 0, 0) || begins(0, 0, 0xfe, 0xff)) return 'UTF-32';
  if (begins(0xff, 0xfe) || begins(0xfe, 0xff)) return 'UTF-16';
  const looked = head.subarray(0, BINARY_BYTES);
  const nuls = [0, 0, 0, 0];
  looked.forEach((byte, at) => byte === 0 && nuls[at % 4]!++);
  const all = Math.floor(looked.length / 4);
  if (all < 2) return undefined;
  const [first, second, third, fourth] = nuls.map((count) => count / all) as [number, number, number, number];
  if (first < 0.1 && second > 0.5 && third > 0.9 && fourth > 0.9) return 'UTF-32LE';
  if (fourth < 0.1 && third > 0.5 && second > 0.9 && first > 0.9) return 'UTF-32BE';
  if (first + third < 0.01 && second + fourth > 0.8) return 'UTF-16LE';
  if (second + fourth < 0.01 && first + third > 0.8) return 'UTF-16BE';
  return undefined;
}

function stem(name: string): string {
  return basename(name, extname(name));
}

/** As a shell takes it for one word. */
function quoted(name: string): string {
  return /^[\w./@%+=:-]+$/.test(name) ? name : `'${name.replaceAll("'", String.raw`'\''`)}'`;
}
