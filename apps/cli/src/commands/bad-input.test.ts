// Everything a person can hand over that is wrong: each ends with one clear message and the right exit code, leaves no
// file and no process behind, and starts nothing where looking would have been enough.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createCollection } from '@shoal/similarity';
import { refuseMissingPrompt } from '../embed/flags.ts';
import { runHere } from '../testing/command-here.ts';
import { SHOAL, Sandbox, says, watch, type Result, type RunOptions } from '../testing/shoal-process.ts';

let box: Sandbox;
beforeEach(() => {
  box = new Sandbox();
});
afterEach(() => box.remove());

interface Expected {
  readonly code: 1 | 2;
  readonly message: string | RegExp;
}

/** Refused with this message, before a server was started or a file made. */
function expectRefused(result: Result, { code, message }: Expected): void {
  expect(result).toMatchObject({ code, stdout: '', stderr: expect.stringMatching(message) });
  expect(result.stderr).toMatch(/^shoal: /);
  expect(result.stderr).not.toContain('    at '); // no stack: nothing unexpected happened
  expect(existsSync(join(box.cacheDir, 'server'))).toBe(false);
  expect(readdirSync(box.files).filter((name) => name.includes('out'))).toEqual([]);
}

async function expectRefusal(args: readonly string[], expected: Expected, options?: RunOptions): Promise<void> {
  expectRefused(await runHere(box, ['embed', ...args], options), expected);
}

describe('an input', () => {
  test('that does not exist', async () => {
    const result = await box.run(['embed', 'none.txt', '-o', 'out.jsonl']);
    expectRefused(result, { code: 1, message: 'cannot read none.txt: there is no such file' });
    expect(await runHere(box, ['embed', 'none.txt', '-o', 'out.jsonl'])).toEqual(result); // as most of these run
  });

  test('that is a folder', async () => {
    mkdirSync(box.path('texts'));
    await expectRefusal(['texts/'], {
      code: 1,
      message: 'texts/ is a folder; name the files in it, for example texts/\\*.txt',
    });
  });

  test('that this user may not read', async () => {
    writeFileSync(box.path('secret.txt'), 'x\n');
    chmodSync(box.path('secret.txt'), 0);
    const isRoot = process.getuid?.() === 0;
    if (isRoot) chmodSync(box.root, 0o755); // root reads everything; the command runs as nobody
    await expectRefusal(
      ['secret.txt'],
      { code: 1, message: 'cannot read secret.txt: this user may not read it' },
      isRoot ? { uid: 65_534 } : {},
    );
  });

  test('that is binary', async () => {
    writeFileSync(box.path('photo.txt'), Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 0, 0]));
    await expectRefusal(['photo.txt', '-o', 'out.jsonl'], {
      code: 1,
      message: 'photo.txt is a binary file \\(a NUL at byte 4\\)',
    });
  });

  test('that is binary and comes from standard input', () =>
    expectRefusal(['-'], { code: 1, message: 'standard input is a binary file' }, { input: Buffer.from([1, 0, 2]) }));

  test('that is UTF-16', async () => {
    writeFileSync(box.path('old.txt'), Buffer.from('\uFEFFhello\n', 'utf16le'));
    await expectRefusal(['old.txt'], {
      code: 1,
      message: 'old.txt is UTF-16; convert it first, for example: iconv -f UTF-16 -t UTF-8 old.txt',
    });
  });

  test('with invalid UTF-8, by file, line and byte', async () => {
    writeFileSync(box.path('latin.txt'), Buffer.from('gr\xfc\xdfe\n', 'latin1'));
    await expectRefusal(['latin.txt', '-o', 'out.npy'], {
      code: 1,
      message: 'latin.txt, line 1: not valid UTF-8 at byte 2 \\(0xfc\\); convert the file to UTF-8',
    });
  });

  test('with a line that is no JSON, by file and line', async () => {
    writeFileSync(box.path('a.jsonl'), '{"text": "x"\n');
    await expectRefusal(['a.jsonl', '-o', 'out.jsonl'], {
      code: 1,
      message: 'a.jsonl, line 1: not valid JSON: .*--on-error skip leaves such records out',
    });
  });

  test('with a line without the field', async () => {
    writeFileSync(box.path('a.jsonl'), '{"body": "x"}\n');
    await expectRefusal(['a.jsonl'], {
      code: 1,
      message: 'a.jsonl, line 1: the object has no field "text" \\(it has "body"\\); name the field with --text-field',
    });
  });

  test('with a field that is no string', async () => {
    writeFileSync(box.path('a.jsonl'), '{"text": ["x"]}\n');
    await expectRefusal(['a.jsonl'], { code: 1, message: 'a.jsonl, line 1: field "text" is an array, not a string' });
  });

  test('of CSV without the field, with a row of another length, or with an open quote', async () => {
    writeFileSync(box.path('a.csv'), 'id;comment\n1;good\n');
    await expectRefusal(['a.csv', '-o', 'out.npy'], {
      code: 1,
      message:
        `a.csv, line 1: the header has no field "text" \\(it has "id;comment"\\); its fields look divided by ` +
        `";": --delimiter ';'`,
    });
    writeFileSync(box.path('a.csv'), 'id,text\n1,good, but a comma\n');
    await expectRefusal(['a.csv'], {
      code: 1,
      message: 'a.csv, line 2: the row has 3 fields and the first row 2; .*--on-error skip leaves such records out',
    });
    writeFileSync(box.path('a.csv'), 'id,text\n1,"never\nclosed\n');
    await expectRefusal(['a.csv'], { code: 1, message: 'a.csv, line 2: the quote that opens field 2 is never closed' });
  });

  test('of a format that nobody knows', async () => {
    writeFileSync(box.path('a.xyz'), 'x');
    await expectRefusal(['a.xyz'], {
      code: 2,
      message:
        'a.xyz has the extension .xyz; Shoal reads .txt \\(a line a text\\), .jsonl, .json, .csv, .tsv and .md.* ' +
        '--format text',
    });
  });

  test('among several that are wrong: all are named at once', async () => {
    mkdirSync(box.path('dir'));
    const { stderr, code } = await box.run(['embed', 'one.txt', 'dir', 'two.pdf']);
    expect([code, stderr.split('\n').length]).toEqual([1, 4]);
    expect(stderr).toMatch(/one\.txt.*\n.*dir is a folder.*\n.*two\.pdf/);
  });
});

describe('an output', () => {
  beforeEach(() => writeFileSync(box.path('a.txt'), 'x\n'));

  test('into a missing folder', () =>
    expectRefusal(['a.txt', '-o', 'no/such/rows.npy'], {
      code: 1,
      message: 'cannot write no/such/rows.npy: there is no folder .*/no/such; create it first: mkdir -p',
    }));

  test('that is a folder', async () => {
    mkdirSync(box.path('rows'));
    await expectRefusal(['a.txt', '-o', 'rows', '--output-format', 'npy'], {
      code: 1,
      message: 'cannot write rows: it is a folder',
    });
  });

  test('that is an input', async () => {
    writeFileSync(box.path('a.jsonl'), '{"text":"x"}\n');
    await expectRefusal(['a.jsonl', '-o', './a.jsonl'], {
      code: 2,
      message: 'the output ./a.jsonl is also an input \\(a.jsonl\\)',
    });
    expect(readFileSync(box.path('a.jsonl'), 'utf8')).toBe('{"text":"x"}\n');
  });

  test('into a folder that this user may not write', async () => {
    const isRoot = process.getuid?.() === 0;
    mkdirSync(box.path('locked'));
    chmodSync(box.path('locked'), 0o555);
    if (isRoot) chmodSync(box.root, 0o755);
    await expectRefusal(
      ['a.txt', '-o', 'locked/rows.npy'],
      { code: 1, message: 'cannot write locked/rows.npy: this user may not write there' },
      isRoot ? { uid: 65_534 } : {},
    );
  });

  test('of a format that nobody knows', () =>
    expectRefusal(['a.txt', '-o', 'rows.xlsx'], {
      code: 2,
      message:
        'the output rows.xlsx has the extension .xlsx; Shoal writes .jsonl and .csv, both also .gz and .zst, .npy',
    }));

  test('that the other flags do not fit', async () => {
    await expectRefusal(['a.txt', '-o', 'out.npy', '--with-text'], {
      code: 2,
      message: '--with-text needs .jsonl, .csv, .arrow or .parquet',
    });
    await expectRefusal(['a.txt', '--shard-rows', '10'], { code: 2, message: '--shard-rows needs an output file' });
    await expectRefusal(['a.txt', '--json'], { code: 2, message: 'needs an output file for the rows: -o FILE' });
    await expectRefusal(['a.txt', '-o', 'out.npy', '--delimiter', ';'], {
      code: 2,
      message: '--delimiter is about CSV, and no input is that',
    });
    await expectRefusal(['a.txt', '-o', 'out.npy', '--delimiter', 'ab'], {
      code: 2,
      message: 'It must be one ASCII character other than a quote',
    });
  });

  test('of plain text, in which no record has fields to name', async () => {
    await expectRefusal(
      ['-', '--text-field', 'body'],
      {
        code: 2,
        message:
          '--text-field is about fields of JSONL, JSON, CSV and Parquet, and no input is any of them; say --format jsonl or --format csv',
      },
      { input: '{"body":"hi","key":1}\n' },
    );
    await expectRefusal(['a.txt', '--id-field', 'key'], {
      code: 2,
      message: '--id-field is about fields of JSONL, JSON, CSV and Parquet',
    });
    expectRefused(await runHere(box, ['index', 'build', 'docs', 'a.txt', '--text-field', 'body']), {
      code: 2,
      message: '--text-field is about fields of JSONL, JSON, CSV and Parquet',
    });
  });

  test('among shards of another run', async () => {
    writeFileSync(box.path('rows-00002.npy'), '');
    await expectRefusal(['a.txt', '-o', 'rows.npy', '--shard-rows', '10'], {
      code: 2,
      message: 'rows-00002.npy is there from an earlier run; remove the shards of that run, or choose another name',
    });
  });

  test('that cannot be resumed', async () => {
    await expectRefusal(['a.txt', '--resume'], { code: 2, message: '--resume needs an output file' });
    await expectRefusal(['-', '--resume', '-o', 'rows.npy'], {
      code: 2,
      message: '--resume needs input files: standard input cannot be read again',
    });
    await expectRefusal(['a.txt', '--fresh'], { code: 2, message: '--fresh needs an output file' });
    await expectRefusal(['a.txt', '--fresh', '--resume', '-o', 'rows.npy'], {
      code: 2,
      message: '--resume goes on and --fresh begins again; give one of them',
    });
    await expectRefusal(['-', '--format', 'jsonl', '--id-field', 'id', '--output-format', 'npy'], {
      code: 2,
      message: '--id-field has no place in a .npy that goes into a pipe or a device',
    });
  });
});

describe('a call', () => {
  test.each(['a/b', '.hidden', 'docs@1', ''])('for a collection that cannot be called "%s"', async (name) => {
    writeFileSync(box.path('notes.txt'), 'x\n');
    expectRefused(await runHere(box, ['index', 'build', name, 'notes.txt']), {
      code: 2,
      message: `'${name}' is invalid for argument 'name'. It must be up to 64 letters`,
    });
    await expect(createCollection(box.root, name, (async function* () {})())).rejects.toThrow(
      'cannot be the name of a collection',
    );
  });

  test('with an unknown model', () =>
    expectRefusal(
      ['-', '--model', 'tiny-randon'],
      { code: 1, message: 'there is no model "tiny-randon".* Did you mean "tiny-random"' },
      { input: 'x' },
    ));

  test('with more dimensions or tokens than the model has', async () => {
    await expectRefusal(
      ['-', '--dimensions', '33'],
      { code: 2, message: '--dimensions 33 is more than tiny-random has: 32' },
      { input: 'x' },
    );
    await expectRefusal(
      ['-', '--max-tokens', '8000'],
      { code: 2, message: 'maxTokens is 8000; tiny-random takes rows of' },
      { input: 'x' },
    );
  });

  test('with a prompt that the model does not have', () => {
    expect(() => refuseMissingPrompt({ name: 'm', prompts: { query: '', passage: '' } }, 'passage')).toThrow(
      /--prompt passage: the model m has no prompts: leave it out, or import/,
    );
    const prompts = { query: 'query: ', passage: '' };
    for (const prompt of ['query', 'passage', undefined] as const)
      expect(() => refuseMissingPrompt({ name: 'm', prompts }, prompt)).not.toThrow();
  });

  test('with a flag, command or value that does not exist', async () => {
    await expectRefusal(['--modle', 'x'], {
      code: 2,
      message: "unknown option '--modle'\n\\(Did you mean --model\\?\\)",
    });
    await expectRefusal(['--on-error', 'panic'], {
      code: 2,
      message: "argument 'panic' is invalid. Allowed choices are fail, skip",
    });
    await expectRefusal(['--dimensions', '0'], { code: 2, message: 'It must be a whole number from 1' });
    await expectRefusal(['--shard-rows', '1000000000'], {
      code: 2,
      message: 'It must be a whole number from 1 to 999999999\\.',
    });
    expectRefused(await box.run(['embde']), { code: 2, message: 'Did you mean embed' });
    for (const [flag, value, message] of [
      ['--decay', 'abc', 'a number from 0 to 1'],
      ['--decay', '', 'a number from 0 to 1'],
      ['--decay', '1.5', 'a number from 0 to 1'],
      ['--threshold', '-1', 'a number from 0\\.'],
    ] as const) {
      expectRefused(await runHere(box, ['spread', 'g.csv', flag, value]), {
        code: 2,
        message: `It must be ${message}`,
      });
    }
  });

  test('with several wrong settings: all are named, with where they came from', async () => {
    writeFileSync(box.path('shoal.config.json'), '\uFEFF{"leaseMs": 5, "colour": "red"}');
    const { code, stderr } = await runHere(box, ['embed', '-', '--threads', 'many'], {
      input: 'x',
      environment: { SHOAL_LOG_LEVEL: 'loud' },
    });
    expect(code).toBe(2);
    for (const origin of [
      '--threads = "many"',
      'SHOAL_LOG_LEVEL = "loud"',
      '"leaseMs" in shoal.config.json = 5',
      '"colour" in shoal.config.json: there is no such setting',
    ])
      expect(stderr).toContain(origin);
  });

  test('with a settings file that is no JSON', async () => {
    writeFileSync(box.path('shoal.config.json'), '{');
    await expectRefusal(['-'], { code: 2, message: 'shoal.config.json is not valid JSON' }, { input: 'x' });
  });

  test('of try without a query and without a terminal', async () => {
    expectRefused(await runHere(box, ['try']), {
      code: 2,
      message: 'nothing to look for: give a query, for example: shoal try "',
    });
  });
});

const embedAt = (redisUrl: string): Promise<Result> =>
  runHere(box, ['embed', '-', '-o', 'out.npy'], { input: 'x', environment: { REDIS_URL: redisUrl } });

describe('a comparison', () => {
  test('with a file of vectors that is not there, which is no text', async () => {
    expectRefused(await runHere(box, ['similarity', 'nothere.npy', 'hello']), {
      code: 1,
      message: 'cannot read nothere\\.npy: there is no such file\\. What ends in \\.npy is a file of vectors',
    });
  });

  test('whose output cannot be written, before anything is embedded, and of which nothing is left', async () => {
    mkdirSync(box.path('rows.npy'));
    expectRefused(await runHere(box, ['similarity', 'one', 'two', '-o', 'rows.npy']), {
      code: 1,
      message: 'cannot write rows\\.npy: it is a folder',
    });
    expectRefused(await runHere(box, ['similarity', 'one', 'two', '-o', 'no/out.npy']), {
      code: 1,
      message: 'cannot write no/out\\.npy: there is no folder',
    });
    expectRefused(await runHere(box, ['similarity', 'one', 'two', '-o', 'out.txt']), {
      code: 2,
      message: 'the output out\\.txt is not called \\.npy',
    });
    expect(readdirSync(box.files)).toEqual(['rows.npy']);
  });
});

describe('a queue server', () => {
  let server: TestServer;
  let somethingElse: Server;
  beforeAll(async () => {
    server = await startTestServer({ args: ['--maxmemory-policy', 'allkeys-lru'] });
    somethingElse = createServer((socket) => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n')).listen(0, '127.0.0.1');
    await once(somethingElse, 'listening');
  });
  afterAll(async () => {
    await server.stop();
    somethingElse.close();
  });

  test('that may evict jobs is refused with the cure', async () => {
    expectRefused(await embedAt(server.url), {
      code: 1,
      message: 'maxmemory-policy is allkeys-lru.*CONFIG SET maxmemory-policy noeviction',
    });
  });

  test('that nobody runs is named', async () => {
    expectRefused(await embedAt('redis://:secret@127.0.0.1:1'), {
      code: 1,
      message: 'the queue server at redis://\\*\\*\\*@127.0.0.1:1 does not answer',
    });
  });

  test('whose port something else uses is named', async () => {
    const address = somethingElse.address();
    const port = typeof address === 'object' && address !== null ? address.port : 0;
    expectRefused(await embedAt(`redis://127.0.0.1:${port}`), {
      code: 1,
      message: `the queue server at redis://127.0.0.1:${port} does not answer`,
    });
  });

  test('with an address of another kind is a wrong setting', async () => {
    expectRefused(await embedAt('http://localhost'), {
      code: 2,
      message: 'REDIS_URL = "http://localhost": must begin with redis://',
    });
  });
});

describe('a model', () => {
  test('without any network: every source is named, and nothing is left', async () => {
    const environment = {
      HF_ENDPOINT: 'http://127.0.0.1:1',
      PIP_INDEX_URL: 'http://127.0.0.1:1/simple',
      PIP_RETRIES: '0',
      PIP_CONFIG_FILE: '/dev/null',
    };
    const result = await box.run(['model', 'pull', 'minilm'], { environment });
    expectRefused(result, {
      code: 1,
      message: 'the model "minilm" could not be fetched; nothing was stored. Tried:\n  the hub, http://127.0.0.1:1',
    });
    expect(readdirSync(join(box.cacheDir, 'models', 'minilm')).filter((name) => !name.startsWith('.lock'))).toEqual([]);
  });

  test('that is damaged is refused, by file, with the cure', async () => {
    expect(await box.run(['model', 'pull', 'tiny-random'])).toMatchObject({ code: 0 });
    const revisions = readdirSync(join(box.cacheDir, 'models', 'tiny-random')).filter((name) => !name.startsWith('.'));
    truncateSync(join(box.cacheDir, 'models', 'tiny-random', revisions[0]!, 'model.safetensors'), 100);
    const message =
      'model.safetensors has 100 bytes instead of \\d+\nFetch it again: shoal model pull tiny-random --force';
    expectRefused(await box.run(['model', 'verify', 'tiny-random']), { code: 1, message });
    await expectRefusal(['-', '-o', 'out.npy'], { code: 1, message }, { input: 'x' });
    expect(await box.run(['model', 'pull', 'tiny-random', '--force'])).toMatchObject({ code: 0 });
    expect(await box.run(['model', 'verify', 'tiny-random'])).toMatchObject({
      code: 0,
      stdout: expect.stringContaining('is whole'),
    });
  });
});

/** A file system of 256 KiB of its own, in a mount namespace that ends with the command. */
async function onSmallDisk(
  args: readonly string[],
  environment: Readonly<Record<string, string>> = {},
): Promise<Result> {
  const script = `mount -t tmpfs -o size=256k none disk && "$@"; code=$?; ls -A disk >&2; exit $code`;
  mkdirSync(box.path('disk'));
  const child = spawn('unshare', ['--map-root-user', '--mount', 'sh', '-c', script, 'sh', ...SHOAL, ...args], {
    cwd: box.files,
    env: { ...box.environment(), ...environment },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  return watch(child).ended;
}

async function whyNoSmallDisk(): Promise<string | undefined> {
  const child = spawn('unshare', ['--map-root-user', '--mount', 'sh', '-c', 'mount -t tmpfs -o size=256k none /mnt'], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const result = await watch(child).ended.catch((error: unknown) => ({ code: 1, stderr: String(error) }));
  return result.code === 0 ? undefined : `no small file system can be mounted here: ${result.stderr.trim()}`;
}

test.each([
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const)('%s while a model is fetched ends the command, and nothing of the model stays', async (signal, code) => {
  const hub = createHttpServer((_, response) =>
    response.writeHead(200, { 'content-length': 90_000_000 }).write('the first bytes'),
  );
  await once(hub.listen(0, '127.0.0.1'), 'listening');
  const address = hub.address();
  const HF_ENDPOINT = `http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}`;
  const running = box.start(['embed', '-', '-o', 'out.jsonl', '--model', 'minilm'], {
    input: 'x',
    environment: { HF_ENDPOINT },
  });
  await says(running, 'fetching the model minilm');
  running.child.kill(signal);
  expect(await running.ended).toMatchObject({
    code,
    stderr: expect.stringMatching(signal === 'SIGINT' ? /shoal: interrupted\n$/ : /shoal: stopped by SIGTERM\n$/),
  });
  expect(
    readdirSync(box.cacheDir, { recursive: true }).filter(
      (path) => !['models', join('models', 'minilm')].includes(String(path)),
    ),
  ).toEqual([]);
  expect(readdirSync(box.files)).toEqual([]);
  hub.closeAllConnections();
  hub.close();
});

describe('a full disk', () => {
  test.skipIf(!existsSync('/dev/full'))('behind standard output, or behind a device, is no bug of ours', async () => {
    const toStdout = spawn('sh', ['-c', 'echo x | "$@" > /dev/full', 'sh', ...SHOAL, 'embed', '-q'], {
      cwd: box.files,
      env: box.environment(),
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    expect(await watch(toStdout).ended).toMatchObject({
      code: 1,
      stderr: 'shoal: cannot write standard output: the disk is full; free some space or write elsewhere\n',
    });
    const toDevice = await box.run(['embed', '-', '-q', '-o', '/dev/full', '--output-format', 'jsonl'], { input: 'x' });
    expect(toDevice).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/^shoal: cannot write \/dev\/full: the disk is full/),
    });
  });

  test('ends the run, says so, and keeps what was written', async ({ skip }) => {
    const reason = await whyNoSmallDisk();
    if (reason !== undefined) skip(reason);
    writeFileSync(box.path('a.txt'), 'some text\n'.repeat(4_000)); // 512 KB of .npy
    const result = await onSmallDisk(['embed', 'a.txt', '-o', 'disk/out.npy']);
    expect(result).toMatchObject({
      code: 1,
      stderr: expect.stringContaining(
        'cannot write disk/out.npy: the disk is full; free some space or write elsewhere, and run the command again',
      ),
    });
    expect(result.stderr.trimEnd()).toMatch(
      /kept in disk\/\.out\.npy\.shoal-partial.*the disk is full.*\n\.out\.npy\.shoal-partial\n\.out\.npy\.shoal-partial\.json$/s,
    );
    expect(box.processes()).toEqual([]);
  });

  test('where .npy for a pipe is spooled', async ({ skip }) => {
    const reason = await whyNoSmallDisk();
    if (reason !== undefined) skip(reason);
    writeFileSync(box.path('a.txt'), 'some text\n'.repeat(4_000));
    const result = await onSmallDisk(['embed', 'a.txt', '--output-format', 'npy', '--quiet'], {
      TMPDIR: box.path('disk'),
    });
    expect(result).toMatchObject({
      code: 1,
      stdout: '',
      stderr: expect.stringMatching(/^shoal: cannot write .*: the disk is full/),
    });
  });
});

test('nothing of the sandbox is left when a test removes it', () => {
  rmSync(box.root, { recursive: true });
  expect(box.processes()).toEqual([]);
});
