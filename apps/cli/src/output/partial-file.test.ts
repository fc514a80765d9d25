import { mkdir, mkdtemp, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { checkInputs } from '../input/files.ts';
import { PartialFile, removeLeftovers } from './partial-file.ts';
import { differences, readRunState, writeRunState, type RunRequest, type RunState } from './run-state.ts';
import { checkTarget, outputFormat, type FileTarget } from './target.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-partial-'));
});
afterEach(() => rm(folder, { recursive: true }));

const request: RunRequest = {
  inputs: [{ path: '/a.txt', bytes: 10, modifiedMs: 1, head: 'x' }],
  model: 'minilm@1',
  options: { '--format': 'text' },
};
const state: RunState = { v: 1, runId: 'run', request, rows: 0, position: 0, shard: 0, bytes: 0 };

async function fileTarget(name: string): Promise<FileTarget> {
  const target = await checkTarget(join(folder, name), []);
  if (target.kind !== 'file') throw new Error('expected a file target');
  return target;
}

describe('a partial file', () => {
  test('becomes the target with its final head and tail; its state stays until it is removed', async () => {
    const target = await fileTarget('out');
    const partial = await PartialFile.create(target, state, Buffer.from('[?]'));
    await partial.append(Buffer.from('ab'), 2, 2);
    expect(await readdir(folder)).toEqual(['.out.shoal-partial', '.out.shoal-partial.json']);
    await partial.finish({ head: Buffer.from('[2]'), tail: Buffer.from('!') });
    expect(await readRunState(target.state)).toMatchObject({ rows: 2, bytes: 5 });
    await removeLeftovers(target);
    expect(await readdir(folder)).toEqual(['out']);
    expect(await readFile(join(folder, 'out'), 'utf8')).toBe('[2]ab!');
  });

  test('replaces what an earlier run left, and leaves an older target alone until it is finished', async () => {
    await writeFile(join(folder, 'out'), 'old');
    await writeFile(join(folder, '.out.shoal-partial'), 'leftover');
    const partial = await PartialFile.create(await fileTarget('out'), state, Buffer.alloc(0));
    await partial.append(Buffer.from('new'), 1, 1);
    expect(await readFile(join(folder, 'out'), 'utf8')).toBe('old');
    await partial.finish({ head: Buffer.alloc(0), tail: Buffer.alloc(0) });
    expect(await readFile(join(folder, 'out'), 'utf8')).toBe('new');
  });

  test('that is discarded leaves nothing', async () => {
    const partial = await PartialFile.create(await fileTarget('out'), state, Buffer.from('x'));
    await partial.discard();
    expect(await readdir(folder)).toEqual([]);
  });

  test('that was kept goes on where its state says, without the half row behind it', async () => {
    const target = await fileTarget('out');
    const first = await PartialFile.create(target, state, Buffer.alloc(0));
    await first.append(Buffer.from('row1\n'), 1, 1);
    await first.keep();
    await writeFile(target.partial, 'row1\nro');
    const found = await readRunState(target.state);
    expect(found).toMatchObject({ rows: 1, bytes: 5 });
    const second = await PartialFile.reopen(target, found!);
    await second!.append(Buffer.from('row2\n'), 1, 2);
    await second!.finish({ head: Buffer.alloc(0), tail: Buffer.alloc(0) });
    expect(await readFile(target.path, 'utf8')).toBe('row1\nrow2\n');
  });

  test('shorter than its state says is not gone on with', async () => {
    const target = await fileTarget('out');
    await writeFile(target.partial, 'ro');
    expect(await PartialFile.reopen(target, { ...state, rows: 1, bytes: 5 })).toBeUndefined();
  });
});

async function replaced(): Promise<PartialFile> {
  const target = await fileTarget('out');
  const partial = await PartialFile.create(target, state, Buffer.from('mine'));
  await PartialFile.create(target, { ...state, runId: 'another' }, Buffer.from('theirs')).then((other) => other.keep());
  return partial;
}

describe('a partial file in whose place another run has put its own', () => {
  test('is not finished: rows of the other would get the name', async () => {
    const partial = await replaced();
    await expect(partial.finish({ head: Buffer.alloc(0), tail: Buffer.alloc(0) })).rejects.toMatchObject({
      code: 'FILE_UNWRITABLE',
      message: expect.stringMatching(/cannot write .*out: its unfinished file was removed or replaced/),
    });
    expect(await readdir(folder)).not.toContain('out');
  });

  test('takes nothing away when it is discarded', async () => {
    const partial = await replaced();
    await partial.discard();
    expect(await readFile(join(folder, '.out.shoal-partial'), 'utf8')).toBe('theirs');
    expect(await readRunState(join(folder, '.out.shoal-partial.json'))).toMatchObject({ runId: 'another' });
  });
});

describe('a run state', () => {
  test('that is no JSON, of another form or missing counts as none', async () => {
    const path = join(folder, 'state');
    expect(await readRunState(path)).toBeUndefined();
    for (const content of [
      '{',
      'null',
      '{"v":2}',
      JSON.stringify({ ...state, rows: -1 }),
      JSON.stringify({ ...state, request: { ...request, inputs: [{}] } }),
    ]) {
      await writeFile(path, content);
      expect(await readRunState(path)).toBeUndefined();
    }
    await writeRunState(path, state);
    expect(await readRunState(path)).toEqual(state);
  });

  test.each<[string, Partial<RunRequest>]>([
    ['the model was minilm@1 and is minilm@2', { model: 'minilm@2' }],
    ['--format was text and is jsonl', { options: { '--format': 'jsonl' } }],
    ['--prompt was not given and is query', { options: { '--format': 'text', '--prompt': 'query' } }],
    ['there were 1 input files and are 0', { inputs: [] }],
    ['the input was /a.txt and is /b.txt', { inputs: [{ ...request.inputs[0]!, path: '/b.txt' }] }],
    ['/a.txt had 10 bytes and has 12', { inputs: [{ ...request.inputs[0]!, bytes: 12 }] }],
    ['the beginning of /a.txt has changed', { inputs: [{ ...request.inputs[0]!, head: 'y' }] }],
    [
      '/a.txt was modified 1970-01-01T00:00:00.002Z, after the first run began to read it',
      { inputs: [{ ...request.inputs[0]!, modifiedMs: 2 }] },
    ],
  ])('says what differs: %s', (sentence, change) => {
    expect(differences(request, request)).toEqual([]);
    expect(differences(request, { ...request, ...change })).toEqual([sentence]);
  });
});

describe('a target', () => {
  test('in a missing folder, in a file, or that is a folder is refused', async () => {
    await writeFile(join(folder, 'file'), '');
    await mkdir(join(folder, 'folder'));
    await expect(checkTarget(join(folder, 'missing/out.npy'), [])).rejects.toThrow(
      /there is no folder .*missing; create it first: mkdir -p/,
    );
    await expect(checkTarget(join(folder, 'file/out.npy'), [])).rejects.toMatchObject({ code: 'FILE_UNWRITABLE' });
    await expect(checkTarget(join(folder, 'folder'), [])).rejects.toThrow('it is a folder; name a file in it');
  });

  test('that is an input, under whatever name, is refused', async () => {
    const path = join(folder, 'a.jsonl');
    await writeFile(path, '{"text":"x"}\n');
    await symlink(path, join(folder, 'link.jsonl'));
    const inputs = await checkInputs([path], undefined);
    await expect(checkTarget(join(folder, 'link.jsonl'), inputs)).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringContaining('is also an input'),
    });
  });

  test('behind a link is written where the link points', async () => {
    await writeFile(join(folder, 'real'), '');
    await symlink(join(folder, 'real'), join(folder, 'link'));
    expect(await checkTarget(join(folder, 'link'), [])).toMatchObject({ path: join(folder, 'real') });
  });

  test('of a device is written in place, never renamed over', async () => {
    expect(await checkTarget('/dev/null', [])).toEqual({ kind: 'device', path: '/dev/null' });
  });

  test('has the form that was asked for, or that its extension says', () => {
    expect([
      outputFormat('a.jsonl', undefined),
      outputFormat('a.NPY', undefined),
      outputFormat(undefined, undefined),
      outputFormat('a.dat', 'npy'),
      outputFormat('a.arrow', undefined),
    ]).toEqual(['jsonl', 'npy', 'jsonl', 'npy', 'arrow']);
    expect(() => outputFormat('a.xlsx', undefined)).toThrow(
      'has the extension .xlsx; Shoal writes .jsonl and .csv, both also .gz and .zst, .npy, .arrow and .parquet',
    );
  });
});
