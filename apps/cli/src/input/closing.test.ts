// What a command that refuses leaves open: nothing. Open files are counted as the system has them.

import { execFileSync } from 'node:child_process';
import { copyFileSync, openSync, closeSync, readdirSync, readlinkSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { Readable, Writable } from 'node:stream';
import zlib from 'node:zlib';
import { afterAll, describe, expect, test } from 'vitest';
import { npyHeader, npyRows } from '@shoal/worker/files/npy';
import { SkippedList } from '../output/beside.ts';
import { withKeptBuild } from '../search/kept-build.ts';
import { runInside } from '../testing/command-here.ts';
import { Sandbox } from '../testing/shoal-process.ts';
import type { Terminal } from '../terminal.ts';
import { checkInputs } from './files.ts';
import { RecordReader } from './record-reader.ts';

const sandbox = new Sandbox();
sandbox.shareModels();
afterAll(() => sandbox.remove());

const stop = new AbortController();
const terminal = {
  stdin: Readable.from([]),
  stderr: new Writable({ write: (_chunk, _encoding, done) => done() }),
  words: [],
  signal: stop.signal,
} as unknown as Terminal;

/** How often this process has the files of the sandbox open. */
function openFiles(): readonly string[] {
  return readdirSync('/proc/self/fd').flatMap((fd) => {
    try {
      const path = readlinkSync(`/proc/self/fd/${fd}`);
      return path.startsWith(sandbox.root) ? [path] : [];
    } catch {
      return []; // that of the folder of descriptors
    }
  });
}

/** A reader of one file, whose first record has been read. */
async function readerOf(name: string): Promise<RecordReader> {
  const reader = new RecordReader(terminal, await checkInputs([sandbox.path(name)], undefined), {
    textField: undefined,
    idField: undefined,
    skipsBad: false,
    hasOneColumn: false,
  });
  await reader.isEmpty();
  return reader;
}

const ROWS = 40_000;
const lines = Array.from({ length: ROWS }, (_, at) => `text ${at} ${(at * 7_919) % 10_007}`);
const jsonl = lines.map((text) => `${JSON.stringify({ text })}\n`).join('');

const FILES: Readonly<Record<string, string | Buffer>> = {
  'a.txt': lines.join('\n'),
  'a.jsonl': jsonl,
  'a.json': JSON.stringify(lines),
  'a.csv': `text\n${lines.join('\n')}`,
  'a.jsonl.gz': zlib.gzipSync(jsonl, { level: 1 }),
  'a.jsonl.zst': zlib.zstdCompressSync(jsonl),
};
for (const [name, content] of Object.entries(FILES)) writeFileSync(sandbox.path(name), content);
copyFileSync(join(import.meta.dirname, '../../fixtures/parquet/codec-plain.parquet'), sandbox.path('a.parquet'));

describe('a reader that is closed', () => {
  test.each([...Object.keys(FILES), 'a.parquet'])('has closed %s in the middle', async (name) => {
    const reader = await readerOf(name);
    expect(openFiles()).toEqual([sandbox.path(name)]);
    await reader.close();
    await expect.poll(openFiles).toEqual([]); // of what is compressed a codec may still read
    await reader.close();
  });

  test('has closed a pipe that says nothing', async () => {
    const pipe = sandbox.path('pipe.txt');
    execFileSync('mkfifo', [pipe]);
    const writer = openSync(pipe, 'r+');
    try {
      writeSync(writer, 'one\n');
      const reader = await readerOf('pipe.txt');
      const records = reader.from(0, undefined);
      expect(await records.next()).toMatchObject({ value: { text: 'one' } });
      const waits = Promise.allSettled([records.next()]);
      expect(openFiles()).toEqual([pipe, pipe]);
      await reader.close();
      expect(await waits).toMatchObject([{ reason: { code: 'FILE_UNREADABLE' } }]);
      expect(openFiles()).toEqual([pipe]);
    } finally {
      closeSync(writer);
    }
  });
});

describe('a command that refuses has closed its inputs', () => {
  writeFileSync(sandbox.path('bad.jsonl'), `{}\n${jsonl}`);
  writeFileSync(sandbox.path('named.txt.gz'), lines.join('\n'));
  writeFileSync(sandbox.path('large.npy'), Buffer.concat([npyHeader(ROWS, 64), npyRows(new Float32Array(ROWS * 64))]));
  writeFileSync(sandbox.path('no.npy'), 'this is no array');
  test.each<readonly [problem: string, ...args: readonly string[]]>([
    ['dimensions', 'embed', 'a.jsonl', '--dimensions', '9999', '-o', 'x.jsonl'],
    ['dimensions', 'embed', 'a.jsonl.gz', '--dimensions', '9999', '-o', 'x.jsonl'],
    ['prompt', 'embed', 'a.parquet', 'a.jsonl', '--prompt', 'nope', '-o', 'x.jsonl'],
    ['no field "text"', 'embed', 'bad.jsonl', '-o', 'x.jsonl'],
    ['not compressed', 'embed', 'named.txt.gz', '-o', 'x.jsonl'],
    ['prompt', 'index', 'build', 'docs', 'a.jsonl', '--prompt', 'nope'],
    ['no field "text"', 'index', 'build', 'docs', 'bad.jsonl'],
    ['no field "text"', 'rerank', 'which one', 'bad.jsonl'],
    ['no .npy', 'similarity', 'no.npy', 'large.npy'],
    ['no .npy', 'similarity', 'large.npy', 'no.npy'],
  ])('%s: shoal %s %s %s', async (problem, ...args) => {
    const { code, stderr } = await runInside(sandbox, args);
    expect(code).not.toBe(0);
    expect(stderr).toContain(problem);
    await expect.poll(openFiles).toEqual([]);
  });
});

test('rows that an interrupted build kept are closed where the collection cannot be made', async () => {
  const rows = 20_000;
  const terms = {
    folder: sandbox.path('collections'),
    name: 'docs',
    request: { inputs: [], model: 'm@1', options: {} },
    dims: 2,
    skipped: new SkippedList(),
    isFresh: false,
    isRepeatable: true,
  };
  await withKeptBuild(terminal, terms, async (kept) => {
    const records = Array.from({ length: rows }, (_, index) => ({ id: `row ${index}`, index, text: '' }));
    await kept.writer.write({ records, dims: 2, vectors: new Float32Array(rows * 2), position: rows });
    await kept.settle();
    const before = openFiles();
    for await (const { names } of kept.rows()) {
      expect(names?.[1]).toBe('row 1');
      expect(openFiles().length).toBe(before.length + 2);
      break;
    }
    await expect.poll(openFiles).toEqual(before);
  });
});
