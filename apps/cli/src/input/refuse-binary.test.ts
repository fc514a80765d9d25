import { gzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { binaryProblem, unknownFormat } from './refuse-binary.ts';

const utf16 = Buffer.from('id,text\n1,hello\n', 'utf16le');
const utf32 = (text: string): Buffer => Buffer.from(Uint32Array.from([...text], (one) => one.codePointAt(0)!).buffer);

describe('what is no file of texts', () => {
  test.each<[string, Buffer]>([
    ['UTF-16', Buffer.concat([Buffer.of(0xff, 0xfe), utf16])],
    ['UTF-16', Buffer.concat([Buffer.of(0xfe, 0xff), Buffer.from(utf16).swap16()])],
    ['UTF-16LE', utf16],
    ['UTF-16BE', Buffer.from(utf16).swap16()],
    ['UTF-32', utf32('\uFEFFhello there')],
    ['UTF-32', Buffer.from(utf32('\uFEFFhello there')).swap32()],
    ['UTF-32LE', utf32('hello there')],
    ['UTF-32BE', Buffer.from(utf32('hello there')).swap32()],
  ])('is named by its encoding: %s', (encoding, head) => {
    expect(binaryProblem('a b.csv', head)).toBe(
      `a b.csv is ${encoding}; convert it first, for example: iconv -f ${encoding} -t UTF-8 'a b.csv' > 'a b.utf8.csv'`,
    );
  });

  test('is named by its first bytes, whatever it is called', () => {
    expect(binaryProblem('a.jsonl', gzipSync('x'))).toContain('compressed twice; ');
    expect(binaryProblem('a.csv', Buffer.from('PAR1\0\0'))).toContain('is a Parquet file; ');
    expect(binaryProblem('a.txt', Buffer.from('a\0b'))).toContain('a NUL at byte 1');
    expect(binaryProblem('a.txt', Buffer.from('PAR1 is how Parquet begins, BZh bzip2'))).toBeUndefined();
    expect(binaryProblem('a.txt', Buffer.from('grüße 魚'))).toBeUndefined();
    expect(binaryProblem('a.txt', Buffer.alloc(0))).toBeUndefined();
  });

  test.each([
    ['t.tgz', 'tar xzf t.tgz'],
    ['t.pdf.gz', 'pdftotext t.pdf t.txt'],
    ['t.XLSX', 'pandas.read_excel'],
    ['t.pdf', 'pdftotext t.pdf t.txt'],
  ])('by its name has a command that makes one of it: %s', (name, command) => {
    expect(unknownFormat(name)).toContain(command);
    expect(unknownFormat(name)).not.toContain('--format text');
  });

  test('but unknown may be told by a flag', () => {
    expect(unknownFormat('notes')).toContain('has no extension');
    expect(unknownFormat('notes.log')).toContain('--format text|jsonl|json|csv|markdown|parquet');
  });
});
