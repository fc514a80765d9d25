// `shoal embed` as a whole: real files, the real queue server, a real worker with a tiny random model.

import { existsSync, readFileSync, readdirSync, readlinkSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { open as openFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { gunzipSync, gzipSync, zstdDecompressSync } from 'node:zlib';
import { tableFromIPC } from 'apache-arrow';
import { parquetReadObjects } from 'hyparquet';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { attachServer, type AttachedServer } from '@shoal/private-server';
import { runHere } from '../testing/command-here.ts';
import {
  SHOAL,
  Sandbox,
  interrupt,
  says,
  watch,
  type Interrupted,
  type Result,
  type Running,
} from '../testing/shoal-process.ts';

const DIMS = 32;
const HEADER_BYTES = 128;
/** Rows of a run that something happens to half-way, or more where the machine is quick. More at night. */
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const MUCH = isNightly ? 24_000 : 9_000;
/** What every command says where the server on PATH is Redis 7.0. */
const ADVICE = /^shoal: the queue server is Redis 7\.0\.\d+; .* are advised\. Upgrade it when you can\n/m;

interface Row {
  readonly id?: string | number;
  readonly index?: number;
  readonly text?: string;
  readonly embedding: readonly number[];
}

function rowsOf(jsonl: string): Row[] {
  return jsonl
    .split('\n')
    .filter((line) => line !== '')
    .map((line): Row => JSON.parse(line));
}

function vectorsOf(npy: Buffer): Float32Array[] {
  const values = new Float32Array(Uint8Array.from(npy.subarray(HEADER_BYTES)).buffer);
  return Array.from({ length: values.length / DIMS }, (_, row) => values.subarray(row * DIMS, (row + 1) * DIMS));
}

function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  return Array.from(a).reduce((sum, value, at) => sum + value * b[at]!, 0);
}

/** Whether a thread of a process is in a call of the kernel about a file that it has open by this path, on Linux. */
function isAskingFor(pid: number, path: string): boolean {
  const fds = namesIn(`/proc/${pid}/fd`).filter((fd) => linkOf(`/proc/${pid}/fd/${fd}`) === path);
  const asked = new Set(fds.map((fd) => `0x${Number(fd).toString(16)}`));
  return namesIn(`/proc/${pid}/task`).some((thread) => {
    const [, first = ''] = readFileSync(`/proc/${pid}/task/${thread}/syscall`, 'utf8').split(' ');
    return asked.has(first);
  });
}

const namesIn = (folder: string): string[] => (existsSync(folder) ? readdirSync(folder) : []);

function linkOf(path: string): string | undefined {
  try {
    return readlinkSync(path);
  } catch {
    return undefined; // closed meanwhile
  }
}

/** Resolves when a process has started, however busy the machine is, and waits: it has been asleep for a second. */
async function waits({ pid }: ChildProcess): Promise<void> {
  const file = `/proc/${pid}/stat`;
  const isAsleep = (): boolean => !existsSync(file) || /\) S /.test(readFileSync(file, 'utf8')); // elsewhere a second
  for (let looks = 0; looks < 20; looks = isAsleep() ? looks + 1 : 0) await sleep(50);
}

/** Whether so many bytes of an unfinished output are there. */
function isWritten(box: Sandbox, name: string, bytes: number): boolean {
  return (statSync(box.path(`.${name}.shoal-partial`), { throwIfNoEntry: false })?.size ?? 0) >= bytes;
}

async function written(box: Sandbox, name: string, bytes: number, running: Running): Promise<void> {
  while (!isWritten(box, name, bytes)) {
    if (running.child.exitCode !== null) throw new Error(`the run ended too early:\n${running.stderr()}`);
    await sleep(10);
  }
}

/** Six shards, however many rows there are. */
const inShards = (rows: number): string[] => [
  'embed',
  'much.txt',
  '-o',
  'much.arrow',
  '--shard-rows',
  String(rows / 6),
];

/** Texts that all differ. */
function texts(count: number): string[] {
  return Array.from(
    { length: count },
    (_, row) =>
      `row ${row} of a file about ` +
      `${['herring', 'sardines', 'anchovies', 'sprats', 'mackerel'][row % 5]!.repeat(1 + (row % 3))}`,
  );
}

describe('with a server and a worker that are there', () => {
  const box = new Sandbox();
  let server: AttachedServer;
  let worker: Running;

  beforeAll(async () => {
    process.env['PATH'] = box.environment()['PATH']; // where attachServer looks for a server program
    server = await attachServer({ cacheDir: box.cacheDir });
    worker = box.start(['worker']);
    await says(worker, 'serves tiny-random@');
  });
  afterAll(async () => {
    await server.release();
    box.remove();
  });

  async function done(args: readonly string[], input?: string | Buffer): Promise<Result> {
    const result = await runHere(box, ['embed', ...args], input === undefined ? {} : { input });
    expect(result).toMatchObject({ code: 0 });
    expect(result.stderr).not.toContain('starting');
    return result;
  }

  test('3,000 rows of JSONL come out in their order, with their ids', async () => {
    const lines = texts(3_000).map((text, row) => ({ id: row % 2 === 0 ? `doc-${row}` : row, text }));
    writeFileSync(box.path('a.jsonl'), lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
    writeFileSync(
      box.path('reversed.jsonl'),
      lines
        .toReversed()
        .map((line) => `${JSON.stringify(line)}\n`)
        .join(''),
    );
    await done(['a.jsonl', '-o', 'a-rows.jsonl']);
    await done(['reversed.jsonl', '-o', 'reversed.npy']);
    const rows = rowsOf(readFileSync(box.path('a-rows.jsonl'), 'utf8'));
    expect(rows.map((row) => row.id)).toEqual(lines.map((line) => line.id));
    const reversed = vectorsOf(readFileSync(box.path('reversed.npy'))).toReversed();
    expect(rows.filter((row, at) => !(cosine(row.embedding, reversed[at]!) > 0.999999))).toEqual([]);
  });

  test('.npy and JSONL hold the same float32 values', async () => {
    await done(['-', '-o', 'same.npy'], 'one\ntwo\n');
    const { stdout } = await done(['-'], 'one\ntwo\n');
    expect(readFileSync(box.path('same.npy')).toString('latin1', 10, HEADER_BYTES)).toContain(`'shape': (2, ${DIMS})`);
    const fromJson = rowsOf(stdout).map((row) => Float32Array.from(row.embedding));
    for (const [row, vector] of vectorsOf(readFileSync(box.path('same.npy'))).entries())
      expect(cosine(vector, fromJson[row]!)).toBeCloseTo(1, 6);
  });

  test('compressed lines, an array and Parquet in and out hold the same vectors', async () => {
    const rows = texts(200).map((text, row) => ({ id: `i${row}`, text }));
    writeFileSync(box.path('p.jsonl.gz'), gzipSync(rows.map((row) => `${JSON.stringify(row)}\n`).join('')));
    writeFileSync(box.path('p.json'), JSON.stringify(rows, undefined, 1));
    await done(['p.jsonl.gz', '-o', 'p-out.jsonl.zst']);
    await done(['p.json', '-o', 'p-own.parquet', '--with-text']);
    // the columns of that file go along
    await done(['p-own.parquet', '-o', 'p-out.parquet', '--vector-field', 'again', '--dtype', 'f16']);
    const expected = rowsOf(zstdDecompressSync(readFileSync(box.path('p-out.jsonl.zst'))).toString());
    expect(expected.map(({ id }) => id)).toEqual(rows.map(({ id }) => id));
    const file = Uint8Array.from(readFileSync(box.path('p-out.parquet'))).buffer;
    const found = await parquetReadObjects({ file, compressors: { GZIP: (page) => gunzipSync(page) } });
    expect(found.map(({ id, text }) => ({ id: String(id), text: String(text) }))).toEqual(rows);
    for (const [at, { embedding, again }] of found.entries()) {
      const vector = expected[at]!.embedding.map(Math.fround);
      expect([...embedding]).toEqual(vector);
      expect(vector.filter((value, dim) => !(Math.abs(again[dim] - value) <= Math.abs(value) / 2_048 + 1e-7))).toEqual(
        [],
      );
    }
  });

  test('long texts may be embedded in pieces, and --dtype i8 has its scales beside a .npy', async () => {
    writeFileSync(box.path('long.txt'), `short\n${texts(400).join(' ')}\n`);
    const report = await done(['long.txt', '-o', 'small.npy', '--long', 'chunk', '--dtype', 'i8', '--json']);
    expect(JSON.parse(report.stdout)).toMatchObject({
      rows: 2,
      truncated: 0,
      long: { texts: 1 },
      scales: 'small.npy.scales.npy',
    });
    const values = new Int8Array(readFileSync(box.path('small.npy')).subarray(HEADER_BYTES));
    const scale = readFileSync(box.path('small.npy.scales.npy')).readFloatLE(HEADER_BYTES + 4);
    const mean = Array.from(values.subarray(DIMS), (value) => value * scale);
    expect(cosine(mean, mean)).toBeCloseTo(1, 1); // its length is 1, as far as bytes tell
  });

  test('.npy into a pipe is spooled: its header counts the rows', async () => {
    await done(['-', '-o', 'file.npy'], 'one\ntwo\n');
    const script = '"$@" > piped.npy';
    const child = spawn('sh', ['-c', `echo one | ${script}`, 'sh', ...SHOAL, 'embed', '--output-format', 'npy', '-q'], {
      cwd: box.files,
      env: box.environment(),
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    expect(await watch(child).ended).toMatchObject({ code: 0, stderr: '' });
    const piped = readFileSync(box.path('piped.npy'));
    expect([piped.length, piped.toString('latin1', 10, HEADER_BYTES)]).toEqual([
      HEADER_BYTES + DIMS * 4,
      expect.stringContaining(`(1, ${DIMS})`),
    ]);
  });

  test('several files and formats are one run; the index counts over all of them', async () => {
    writeFileSync(box.path('one.txt'), '\uFEFFalpha\r\n\r\nbeta');
    writeFileSync(box.path('two.jsonl'), '{"text":"gamma"}\n\n{"id":"d","text":"delta"}\n');
    const { stdout } = await done(['one.txt', 'two.jsonl']);
    expect(rowsOf(stdout).map(({ id, index }) => id ?? index)).toEqual([0, 1, 2, 3, 'd']);
  });

  test('CSV, JSONL and lines of the same texts are the same rows', async () => {
    writeFileSync(box.path('t.csv'), '\uFEFFkey;"te""xt"\r\n1;"one\r\ntwo; three"\r\nb;four\r\n');
    writeFileSync(box.path('t.jsonl'), '{"text":"one\\r\\ntwo; three"}\n{"text":"four"}\n');
    const csv = rowsOf(
      (await done(['t.csv', '--delimiter', ';', '--text-field', 'te"xt', '--id-field', '1', '--with-text'])).stdout,
    );
    expect(csv).toMatchObject([
      { id: '1', text: 'one\r\ntwo; three' },
      { id: 'b', text: 'four' },
    ]);
    const jsonl = rowsOf((await done(['t.jsonl'])).stdout);
    expect(csv.map((row, at) => cosine(row.embedding, jsonl[at]!.embedding) > 0.999999)).toEqual([true, true]);
    const { stdout } = await done(['-', '--format', 'csv', '--no-header', '--text-field', '2'], 'x,four\n');
    expect(cosine(rowsOf(stdout)[0]!.embedding, csv[1]!.embedding)).toBeCloseTo(1, 5);
  });

  test('bad rows of CSV are skipped by name when asked', async () => {
    writeFileSync(box.path('rows.csv'), 'id,text\n1,good\n2,too,many\n3,"bad" quote\n4,good\n5,"open\n6,lost\n');
    const { stdout, stderr } = await done(['rows.csv', '--on-error', 'skip']);
    expect(rowsOf(stdout).map((row) => row.id)).toEqual(['1', '4']);
    const [three, goesOn] = [/line 3: the row has 3 fields.*\n/, /.*line 4: field 2 goes on.*\n/];
    const open = /.*line 6: the quote that opens field 2 is never closed.*\n/;
    expect(stderr).toMatch(
      new RegExp(`skipped rows\\.csv, ${three.source}${goesOn.source}${open.source}.*2 rows.*; 3 skipped`),
    );
  });

  test('passages of Markdown have ids that say where they stand', async () => {
    writeFileSync(
      box.path('guide.md'),
      '# Guide\n\nIntroduction to the guide.\n\n## Leases\n\nHow leases are renewed.\n',
    );
    const { stdout } = await done(['guide.md', '--with-text']);
    expect(rowsOf(stdout)).toMatchObject([
      { id: 'guide.md#guide/1', text: 'Guide: Introduction to the guide.' },
      { id: 'guide.md#guide/leases/1', text: 'Guide › Leases: How leases are renewed.' },
    ]);
  });

  test('an Arrow file holds the vectors of the .npy, with ids and texts', async () => {
    const lines = texts(2_000)
      .map((text, row) => `${JSON.stringify({ id: row, text })}\n`)
      .join('');
    writeFileSync(box.path('b.jsonl'), lines);
    await done(['b.jsonl', '-o', 'b.npy']);
    await done(['b.jsonl', '-o', 'b.arrow', '--with-text']);
    const table = tableFromIPC(readFileSync(box.path('b.arrow')));
    expect([table.numRows, table.getChild('id')!.get(1_999), table.getChild('text')!.get(3)]).toEqual([
      2_000,
      '1999',
      texts(4)[3],
    ]);
    const npy = vectorsOf(readFileSync(box.path('b.npy')));
    expect(
      npy.filter((vector, row) => !(cosine(vector, table.getChild('embedding')!.get(row).toArray()) > 0.999999)),
    ).toEqual([]);
  });

  test('an Arrow file takes records with ids or without, not both', async () => {
    const input = '{"id":1,"text":"a"}\n{"text":"b"}\n{"id":2,"text":"c"}\n';
    const args = ['-', '--format', 'jsonl', '-o', 'mixed.arrow'];
    expect(await runHere(box, ['embed', ...args], { input })).toMatchObject({
      code: 1,
      stderr: expect.stringContaining(
        'standard input, line 2: the record has no id and the first one an id; the output has a column of ' +
          'ids or one of indices',
      ),
    });
    await done([...args, '--on-error', 'skip'], input);
    expect(
      tableFromIPC(readFileSync(box.path('mixed.arrow')))
        .getChild('id')!
        .toArray(),
    ).toEqual(['1', '2']);
  });

  test('shards hold the rows of one file, and say so', async () => {
    writeFileSync(box.path('c.txt'), texts(1_000).join('\n'));
    await done(['c.txt', '-o', 'c.npy']);
    const { stderr } = await done(['c.txt', '-o', 'c-part.npy', '--shard-rows', '300']);
    expect(stderr).toContain('1,000 rows → c-part-00000.npy to c-part-00003.npy');
    expect(JSON.parse(readFileSync(box.path('c-part.index.json'), 'utf8'))).toMatchObject({
      rows: 1_000,
      dims: DIMS,
      shards: [{ rows: 300 }, { rows: 300 }, { rows: 300 }, { file: 'c-part-00003.npy', rows: 100 }],
    });
    const parts = [0, 1, 2, 3].flatMap((shard) => vectorsOf(readFileSync(box.path(`c-part-0000${shard}.npy`))));
    const whole = vectorsOf(readFileSync(box.path('c.npy')));
    expect(parts.map((vector, row) => cosine(vector, whole[row]!) > 0.999999)).toEqual(whole.map(() => true));
  });

  test('a line of 20 MB is one row, at bounded memory', async () => {
    writeFileSync(
      box.path('long.txt'),
      Buffer.concat([Buffer.from('short\n'), Buffer.alloc(20_000_000, 'many words '), Buffer.from('\nend\n')]),
    );
    const { stdout, stderr } = await done(['long.txt']);
    expect(rowsOf(stdout)).toHaveLength(3);
    expect(stderr).toContain('1 truncated at the model’s length');
  });

  test('bad lines are skipped by name when asked; the index keeps their place', async () => {
    writeFileSync(
      box.path('mixed.jsonl'),
      Buffer.concat([
        Buffer.from('{"text":"a"}\n{"text":\n{"text":"c"}\n'),
        Buffer.from([0xff, 0x0a]),
        Buffer.from('{"body":1}\n{"text":"f"}\n'),
      ]),
    );
    const { stdout, stderr } = await done(['mixed.jsonl', '--on-error', 'skip']);
    expect(rowsOf(stdout).map((row) => row.index)).toEqual([0, 2, 5]);
    const [bad, bytes] = [/line 2: not valid JSON.*\n/, /.*line 4: not valid UTF-8 at byte 35.*\n/];
    const without = /.*line 5: .*no field "text".*\n/;
    expect(stderr).toMatch(
      new RegExp(`skipped mixed.jsonl, ${bad.source}${bytes.source}${without.source}.*3 rows.*; 3 skipped`),
    );
  });

  test('a bad line in the middle ends the run, and its rows are kept; --on-error skip goes on with them', async () => {
    writeFileSync(box.path('late.jsonl'), `${'{"text":"good"}\n'.repeat(2_000)}oops\n`);
    const result = await runHere(box, ['embed', 'late.jsonl', '-o', 'late.npy']);
    expect(result).toMatchObject({ code: 1, stderr: expect.stringContaining('late.jsonl, line 2001: not valid JSON') });
    expect(result.stderr).toContain('1,984 of about 2,000 rows kept');
    const { stderr } = await done(['late.jsonl', '-o', 'late.npy', '--on-error', 'skip']);
    expect(stderr).toMatch(
      /goes on with late\.npy behind 1,984 rows[\s\S]*1 skipped, listed in late\.npy\.skipped\.jsonl/,
    );
    expect(readFileSync(box.path('late.npy.skipped.jsonl'), 'utf8')).toMatch(
      /^{"index":2000,"file":"late.jsonl","line":2001,"reason":"late.jsonl, line 2001: not valid JSON.*"}\n$/,
    );
    expect(
      readdirSync(box.files)
        .filter((name) => name.includes('late.npy'))
        .sort(),
    ).toEqual(['late.npy', 'late.npy.skipped.jsonl']);
  });

  test('a text that is too long is an error when asked, or left out; its neighbours are not', async () => {
    const input = `fits\n${'word '.repeat(2_000)}\nfits too\n`;
    const problem = 'standard input, line 2: the text has more than the 256 tokens of a row';
    expect(await runHere(box, ['embed', '-', '--truncate', 'error'], { input })).toMatchObject({
      code: 1,
      stdout: '',
      stderr: expect.stringContaining(`shoal: ${problem}`),
    });
    const { stdout, stderr } = await done(['-', '--truncate', 'error', '--on-error', 'skip'], input);
    expect([rowsOf(stdout).map((row) => row.index), stderr]).toEqual([
      [0, 2],
      expect.stringContaining(`skipped ${problem}`),
    ]);
  });

  test('fewer dimensions are the first ones, normalized again', async () => {
    const full = rowsOf((await done(['-'], 'hello')).stdout)[0]!.embedding;
    const short = rowsOf((await done(['-', '--dimensions', '8'], 'hello')).stdout)[0]!.embedding;
    const norm = Math.hypot(...full.slice(0, 8));
    expect(short).toHaveLength(8);
    expect(
      cosine(
        short,
        full.slice(0, 8).map((value) => value / norm),
      ),
    ).toBeCloseTo(1, 5);
  });

  test('an empty input is an empty output, with a note', async () => {
    writeFileSync(box.path('empty.txt'), '');
    expect((await done(['empty.txt', '-o', 'empty.jsonl'])).stderr).toBe(
      'shoal: the input is empty: 0 rows → empty.jsonl\n',
    );
    expect(readFileSync(box.path('empty.jsonl'), 'utf8')).toBe('');
    await done(['empty.txt', '-o', 'empty.npy']);
    expect(readFileSync(box.path('empty.npy')).toString('latin1', 10)).toContain(`'shape': (0, ${DIMS})`);
    expect(await done(['-', '-q'], '')).toMatchObject({ stdout: '', stderr: '' });
  });

  test('a reader that has seen enough ends the run quietly', async () => {
    writeFileSync(box.path('much.txt'), texts(20_000).join('\n'));
    const child = spawn(
      'sh',
      ['-c', '{ "$@"; echo "code $?" >&2; } | head -n 1', 'sh', ...SHOAL, 'embed', 'much.txt', '-q'],
      { cwd: box.files, env: box.environment(), stdio: ['ignore', 'pipe', 'pipe'] },
    );
    const { stdout, stderr } = await watch(child).ended;
    expect([rowsOf(stdout).length, stderr]).toEqual([1, 'code 0\n']);
  });

  test('a device is written in place', async () => {
    await done(['-', '-o', '/dev/null', '--output-format', 'npy'], 'x');
    expect(statSync('/dev/null').isCharacterDevice()).toBe(true);
  });

  test('no bar and no colour without a terminal', async () => {
    const { stderr } = await done(['-'], 'x');
    expect(stderr.replace(ADVICE, '')).toMatch(/^shoal: 1 row in \d+ s\n$/);
  });

  describe('what happens to a run and to its unfinished output', () => {
    beforeEach(() => {
      for (const name of readdirSync(box.files)) rmSync(box.path(name), { recursive: true });
    });

    test('a second Ctrl-C does not wait for anything', async () => {
      const { code, signal } = await interrupt({
        rows: MUCH,
        start: (rows) => {
          writeFileSync(box.path('much.txt'), texts(rows).join('\n'));
          rmSync(box.path('much.npy'), { force: true });
          return box.start(['embed', 'much.txt', '-o', 'much.npy']);
        },
        isThere: () => isWritten(box, 'much.npy', 20_000),
        signals: ['SIGINT', 'SIGINT'],
        output: box.path('much.npy'),
      });
      expect([130, 'SIGINT']).toContain(code ?? signal); // by itself, or by the system when it was already at it
    });

    test('a pipe by its name is read, and Ctrl-C while it says nothing ends at once', async () => {
      execFileSync('mkfifo', [box.path('pipe.txt')]);
      const silent = box.start(['embed', 'pipe.txt', '-o', 'out.npy', '--json']);
      await waits(silent.child); // as above
      silent.child.kill('SIGINT');
      const { stdout: report, ...ended } = await silent.ended;
      expect(ended).toMatchObject({ code: 130, stderr: 'shoal: interrupted\n' });
      expect(JSON.parse(report)).toEqual({
        isDone: false,
        left: 'nothing',
        rows: 0,
        error: { message: 'interrupted' },
      });
      expect(readdirSync(box.files)).toEqual(['pipe.txt']);
      const reading = box.start(['embed', 'pipe.txt', '-q']);
      await writeFile(box.path('pipe.txt'), 'one\ntwo\n');
      const { stdout, code } = await reading.ended;
      expect([code, rowsOf(stdout).length]).toEqual([0, 2]);
    });

    test('interrupted before its first row, a run says which rows of an earlier one stay', async () => {
      // 65 texts, of which the first job comes; the line behind them cannot be read
      writeFileSync(box.path('some.jsonl'), `${'{"text":"a"}\n'.repeat(65)}{"text":\n`);
      const args = ['embed', 'some.jsonl', '-o', 'some.npy', '--json'];
      const first = await box.run(args);
      expect(JSON.parse(first.stdout)).toMatchObject({ left: 'kept', rows: 64, error: { code: 'INPUT_INVALID' } });
      const silent = createServer();
      await once(silent.listen(0, '127.0.0.1'), 'listening');
      const place = silent.address();
      const environment = { SHOAL_REDIS_URL: `redis://127.0.0.1:${typeof place === 'object' ? place?.port : ''}` };
      const second = box.start(args, { environment });
      const [socket] = await once(silent, 'connection');
      second.child.kill('SIGINT');
      const { code, stdout, stderr } = await second.ended;
      expect([code, stderr]).toEqual([130, expect.stringContaining('64 rows of an unfinished run stay in .some.npy.')]);
      const { file, goesOnWith } = JSON.parse(first.stdout);
      expect(JSON.parse(stdout)).toEqual({
        isDone: false,
        left: 'kept',
        rows: 64,
        file,
        goesOnWith,
        error: { message: 'interrupted' },
      });
      expect(goesOnWith).toBe('shoal embed some.jsonl -o some.npy --json');
      socket.destroy();
      silent.close();
    });

    test('an interrupted run is resumed only with the same input, model and options', async () => {
      const { code, rows: much } = await interrupt({
        rows: MUCH,
        start: (rows) => {
          const lines = texts(rows).map((text, id) => `${JSON.stringify({ id, text })}\n`);
          writeFileSync(box.path('much.jsonl'), lines.join(''));
          rmSync(box.path('rows.jsonl'), { force: true });
          return box.start(['embed', 'much.jsonl', '-o', 'rows.jsonl']);
        },
        isThere: () => isWritten(box, 'rows.jsonl', 1_000_000),
        signals: ['SIGINT'],
        output: box.path('rows.jsonl'),
      });
      expect(code).toBe(130);
      const before = readFileSync(box.path('.rows.jsonl.shoal-partial'));
      const other = await box.run([
        'embed',
        'much.jsonl',
        '-o',
        'rows.jsonl',
        '--dimensions',
        '8',
        '--model',
        'tiny-random-b',
      ]);
      expect(other).toMatchObject({
        code: 2,
        stderr: expect.stringMatching(
          new RegExp(
            /[\d,]+ rows of an unfinished run are kept for rows\.jsonl .*, and this command asks for something else:\n/
              .source +
              / {2}the model was tiny-random@.* and is tiny-random-b@.*\n {2}--dimensions was not given and is 8\n/
                .source +
              /shoal embed much.jsonl -o rows.jsonl\ngoes on with them; --fresh removes them and begins again/.source,
          ),
        ),
      });
      expect(readFileSync(box.path('.rows.jsonl.shoal-partial')).equals(before)).toBe(true);
      expect(await box.run(['embed', 'much.jsonl', '-o', 'rows.jsonl', '--resume'])).toMatchObject({ code: 0 });
      expect(rowsOf(readFileSync(box.path('rows.jsonl'), 'utf8')).map((row) => row.id)).toEqual(
        Array.from({ length: much }, (_, id) => id),
      );
    });

    test('a file that another run is writing is left alone', async () => {
      execFileSync('mkfifo', [box.path('slow.txt')]);
      const first = box.start(['embed', 'slow.txt', '-o', 'much.npy']);
      const writer = await openFile(box.path('slow.txt'), 'w');
      await writer.write(`${texts(1_000).join('\n')}\n`);
      await written(box, 'much.npy', 20_000, first);
      const second = await box.run(['embed', '-', '-o', 'much.npy'], { input: 'one\ntwo\n' });
      expect(second).toMatchObject({
        code: 1,
        stderr:
          `shoal: cannot write much.npy: another shoal embed (process ${first.child.pid}) is writing it; wait for ` +
          `it, or choose another file\n`,
      });
      await writer.close();
      expect((await first.ended).code).toBe(0);
      expect(vectorsOf(readFileSync(box.path('much.npy')))).toHaveLength(1_000);
    });

    test('nor is one whose writer still waits for its first record', async () => {
      execFileSync('mkfifo', [box.path('late.txt')]);
      const first = box.start(['embed', 'late.txt', '-o', 'late.jsonl']);
      while (!existsSync(box.path('.late.jsonl.shoal-partial.claim'))) {
        if (first.child.exitCode !== null) throw new Error(`the run ended too early:\n${first.stderr()}`);
        await sleep(10);
      }
      const second = await box.run(['embed', '-', '-o', 'late.jsonl'], { input: 'one\ntwo\n' });
      expect(second).toMatchObject({
        code: 1,
        stderr:
          `shoal: cannot write late.jsonl: another shoal embed (process ${first.child.pid}) is writing it; wait ` +
          `for it, or choose another file\n`,
      });
      first.child.kill('SIGKILL');
      await first.ended;
      expect(await box.run(['embed', '-', '-o', 'late.jsonl'], { input: 'one\ntwo\n' })).toMatchObject({ code: 0 });
      expect(readdirSync(box.files).sort()).toEqual(['late.jsonl', 'late.txt']);
    });
  });

  test('SIGTERM drains the worker, and that is its regular end', async () => {
    worker.child.kill('SIGTERM');
    expect(await worker.ended).toMatchObject({ code: 0, stderr: expect.stringContaining('shoal: draining') });
    expect(box.processes().filter(({ command }) => command.includes('worker'))).toEqual([]);
  });
});

// By day kills.test.ts kills a run, and two runs share a server there.
if (!isNightly)
  console.warn('SIGKILL of runs from nothing, and two at once, are tried at night (npm run test:nightly)');

describe('from nothing', () => {
  let box: Sandbox;
  beforeEach(() => {
    box = new Sandbox();
  });
  afterEach(() => box.remove());

  /** Embeds much.txt, and ends that by a signal once `isThere`. */
  function interruptMuch(
    signal: NodeJS.Signals,
    args: (rows: number) => readonly string[],
    isThere: (rows: number) => boolean,
    output = 'much.npy',
  ): Promise<Interrupted> {
    let some = 0;
    const start = (rows: number): Running => {
      some = rows;
      for (const name of readdirSync(box.files)) rmSync(box.path(name));
      writeFileSync(box.path('much.txt'), texts(rows).join('\n'));
      return box.start(args(rows));
    };
    return interrupt({ rows: MUCH, start, isThere: () => isThere(some), signals: [signal], output: box.path(output) });
  }

  let quietOnes: readonly Float32Array[] | undefined;
  /** So many rows of much.txt that nothing happens to, embedded once for all tests. */
  async function quietRows(rows: number): Promise<readonly Float32Array[]> {
    if (quietOnes?.length !== rows) {
      await box.run(['embed', 'much.txt', '-o', 'quiet.npy']);
      quietOnes = vectorsOf(readFileSync(box.path('quiet.npy')));
    }
    return quietOnes;
  }

  /**
   * Nothing of the command, its worker or its server runs any more. `lingerMs`: the server waits that long after a
   * SIGKILL.
   */
  async function nothingLeft(timeoutMs = 5_000): Promise<void> {
    const until = performance.now() + timeoutMs;
    while (box.processes().length > 0 && performance.now() < until) await sleep(50);
    expect(box.processes()).toEqual([]);
  }

  test('hello comes back as a vector; what was started is said and gone afterwards', async () => {
    const { code, stdout, stderr } = await box.run(['embed', '-'], { input: 'hello\n' });
    expect(code).toBe(0);
    expect(rowsOf(stdout)).toEqual([{ index: 0, embedding: expect.any(Array) }]);
    expect(stderr.replace(ADVICE, '')).toMatch(
      /starting a private queue server.*\n.*no worker serves embed-tiny-random; starting one/,
    );
    await nothingLeft(0);
  });

  test.runIf(isNightly)('two at once share a server, and both get their own rows', async () => {
    for (const name of ['a', 'b'])
      writeFileSync(
        box.path(`${name}.txt`),
        texts(5_000)
          .map((text) => `${name} ${text}`)
          .join('\n'),
      );
    const results = await Promise.all(['a', 'b'].map((name) => box.run(['embed', `${name}.txt`, '-o', `${name}.npy`])));
    expect(results.map((result) => result.code)).toEqual([0, 0]);
    const [a, b] = ['a', 'b'].map((name) => vectorsOf(readFileSync(box.path(`${name}.npy`))));
    expect([a!.length, b!.length, cosine(a![0]!, b![0]!) < 0.999999]).toEqual([5_000, 5_000, true]);
    await nothingLeft();
  });

  test('Ctrl-C: exit code 130, rows kept and said, no process, no job left; the same command goes on', async () => {
    const args = ['embed', 'much.txt', '-o', 'much.npy', '--json'];
    const ended = await interruptMuch(
      'SIGINT',
      () => args,
      () => isWritten(box, 'much.npy', 20_000),
    );
    const { code, stdout, stderr, rows: much } = ended;
    const kept =
      /shoal: ([\d,]+) of about [\d,]+ rows kept in \.much\.npy\.shoal-partial; the same command goes on with them: /
        .source + /shoal embed much\.txt -o much\.npy --json\nshoal: interrupted\n$/.source;
    expect([code, stderr]).toEqual([130, expect.stringMatching(kept)]);
    const rows = new RegExp(kept).exec(stderr)![1]!;
    const rowsKept = Number(rows.replaceAll(',', ''));
    expect(JSON.parse(stdout)).toEqual({
      isDone: false,
      left: 'kept',
      rows: rowsKept,
      file: '.much.npy.shoal-partial',
      goesOnWith: 'shoal embed much.txt -o much.npy --json',
      error: { message: 'interrupted' },
    });
    expect(readdirSync(box.files).sort()).toEqual([
      '.much.npy.shoal-partial',
      '.much.npy.shoal-partial.json',
      'much.txt',
    ]);
    await nothingLeft();
    const after = await box.run(['embed', '-', '-q'], { input: 'next' }); // would wait behind jobs that were left
    expect(after).toMatchObject({ code: 0, stderr: '' });
    const second = await box.run(args);
    expect(second.stderr).toContain(
      `goes on with much.npy behind ${rows} rows of an interrupted run; --fresh begins again\n`,
    );
    expect(JSON.parse(second.stdout)).toEqual({
      isDone: true,
      rows: much,
      rowsBefore: rowsKept,
      truncated: 0,
      skipped: 0,
      output: 'much.npy',
    });
    expect(vectorsOf(readFileSync(box.path('much.npy')))).toHaveLength(much);
    expect(readdirSync(box.files).sort()).toEqual(['much.npy', 'much.txt']);
  });

  test('Ctrl-C while standard input says nothing ends at once', async () => {
    const child = spawn(SHOAL[0], [...SHOAL.slice(1), 'embed', '-'], {
      cwd: box.files,
      env: box.environment(),
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    const running = watch(child);
    await waits(child); // nothing is printed before the first line arrives
    child.kill('SIGINT');
    expect(await running.ended).toMatchObject({ code: 130, stderr: 'shoal: interrupted\n' });
  });

  test('Ctrl-C ends a command that reads a pipe nobody writes to', async () => {
    execFileSync('mkfifo', [box.path('edges.csv')]);
    const running = box.start(['spread', 'edges.csv', '--seed', '1']);
    const writer = await openFile(box.path('edges.csv'), 'w'); // it has been opened to be read
    running.child.kill('SIGINT');
    expect(await running.ended).toMatchObject({ code: 130, stderr: 'shoal: interrupted\n' });
    await writer.close();
  });

  // The other end of a new terminal, where nobody types: a thread is in the kernel until somebody does.
  test.runIf(existsSync('/dev/ptmx') && existsSync('/proc/self/syscall'))(
    'Ctrl-C ends a command whose thread reads what says nothing, by that signal',
    async () => {
      const running = box.start(['embed', '/dev/ptmx', '--format', 'text']);
      await expect.poll(() => isAskingFor(running.child.pid!, '/dev/ptmx'), { timeout: 60_000 }).toBe(true);
      running.child.kill('SIGINT');
      const { code, signal, stderr } = await running.ended;
      expect([code, signal, stderr]).toEqual([null, 'SIGINT', 'shoal: interrupted\n']);
    },
  );

  test('the worker that is started embeds, whatever kind of worker the environment asks for', async () => {
    const result = await box.run(['embed', '-'], { input: 'one', environment: { SHOAL_KIND: 'similarity' } });
    expect([result.code, rowsOf(result.stdout).length]).toEqual([0, 1]);
  });

  test.runIf(isNightly)('SIGKILL, then the same command: the same rows as without it', async () => {
    const { rows: much } = await interruptMuch(
      'SIGKILL',
      () => ['embed', 'much.txt', '-o', 'much.npy'],
      (rows) => isWritten(box, 'much.npy', (rows / 3) * DIMS * 4),
    );
    const state: unknown = JSON.parse(readFileSync(box.path('.much.npy.shoal-partial.json'), 'utf8'));
    expect(state).toMatchObject({ v: 1, shard: 0 });
    const resumed = await box.run(['embed', 'much.txt', '-o', 'much.npy']);
    expect(resumed).toMatchObject({
      code: 0,
      stderr: expect.stringMatching(
        new RegExp(
          /goes on with much\.npy behind [\d,]+ rows of an interrupted run.*\n[\s\S]*/.source +
            `${much.toLocaleString('en')} rows.* of them were there before`,
        ),
      ),
    });
    expect(readdirSync(box.files).sort()).toEqual(['much.npy', 'much.txt']);
    const [found, quiet] = [vectorsOf(readFileSync(box.path('much.npy'))), await quietRows(much)];
    expect(found).toHaveLength(much);
    expect(found.filter((vector, row) => !(cosine(vector, quiet[row]!) > 0.999999))).toEqual([]);
  });

  test.runIf(isNightly)(
    'SIGKILL of a run in shards, then the same command: whole shards are left as they are',
    async () => {
      const { rows: much } = await interruptMuch(
        'SIGKILL',
        inShards,
        () => existsSync(box.path('much-00001.arrow')),
        'much-00005.arrow',
      );
      const args = inShards(much);
      const { ino } = statSync(box.path('much-00001.arrow'));
      // killed processes hold a file for a moment
      let resumed = await box.run(args);
      while (resumed.stderr.includes('is writing it')) resumed = await sleep(500).then(() => box.run(args));
      expect(resumed).toMatchObject({
        code: 0,
        stderr: expect.stringMatching(
          new RegExp(
            /goes on with much\.arrow behind [\d,]+ rows.*\n[\s\S]*/.source +
              `${much.toLocaleString('en')} rows → much-00000\\.arrow to .*05\\.arrow.* were there`,
          ),
        ),
      });
      expect(statSync(box.path('much-00001.arrow')).ino).toBe(ino);
      const quiet = await quietRows(much);
      const rows = [0, 1, 2, 3, 4, 5].flatMap((shard) => {
        const table = tableFromIPC(readFileSync(box.path(`much-0000${shard}.arrow`)));
        return Array.from(table.getChild('embedding')!, (vector, at) => ({
          vector,
          index: Number(table.getChild('index')!.get(at)),
        }));
      });
      expect(rows.map(({ index }) => index)).toEqual(quiet.map((_, row) => row));
      expect(rows.filter(({ vector, index }) => !(cosine(vector, quiet[index]!) > 0.999999))).toEqual([]);
      expect(readdirSync(box.files).filter((name) => name.startsWith('.'))).toEqual([]);
    },
  );

  test('a worker that cannot run is reported with its reason, and not tried again', async () => {
    writeFileSync(join(box.cacheDir, 'graphs'), 'a file where a folder belongs');
    const result = await box.run(['embed', '-', '-o', 'rows.npy'], { input: 'x' });
    expect(result).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/starting one on the CPU.*\nshoal: the worker cannot run: .*cache/),
    });
    expect(readdirSync(box.files)).toEqual([]);
    await nothingLeft();
  });
});
