import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { checkCells, homeCell, readCells, redactCells, withHome } from './cells.ts';
import { redactSettings, resolveSettings } from './config.ts';
import { redactText } from './redact-url.ts';

const A = { name: 'a', address: 'redis://one:6379' };
const B = { name: 'b', address: 'redis://two:6379', write: false };

function fileWith(content: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-cells-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const path = join(folder, 'cells.json');
  writeFileSync(path, content);
  return path;
}

test('a list is read from a text and from a file alike', () => {
  const text = JSON.stringify([A, B]);
  expect(readCells(text)).toEqual([A, B]);
  expect(readCells(` ${text}`)).toEqual([A, B]);
  expect(readCells(fileWith(`\uFEFF${text}\n`))).toEqual([A, B]);
});

test.each<[string, unknown, string]>([
  ['no list', { a: A }, 'a list of 1 to 64 cells'],
  ['an empty list', [], 'a list of 1 to 64 cells'],
  ['too many', Array.from({ length: 65 }, (_, at) => ({ name: `c${at}`, address: `redis://h${at}` })), '1 to 64 cells'],
  ['two of one name', [A, { ...B, name: 'a' }], 'two cells are called "a"'],
  ['one server twice', [A, { name: 'b', address: A.address }], '"a" and "b" are the same server'],
  ['one server as two users', [A, { name: 'b', address: 'redis://me:secret@one/0?db=0' }], 'are the same server'],
  [
    'one cluster by two of its nodes',
    [
      { name: 'a', address: 'redis+cluster://one:6379,two:6379' },
      { name: 'b', address: 'redis+cluster://me:secret@two:6379,three:6379' },
    ],
    'are the same cluster, redis+cluster://***@two:6379,three:6379, where cells name no prefix',
  ],
  [
    'one master of Sentinels twice',
    [
      { name: 'a', address: 'redis+sentinel://one:26379,two:26379/main' },
      { name: 'b', address: 'redis+sentinel://two:26379/main' },
    ],
    'are the same server',
  ],
  ['a prefix that is no hash tag', [{ ...A, prefix: 'shoal.1' }], '"prefix" that is no hash tag such as {shoal.1}'],
  ['a prefix of some', [{ ...A, prefix: '{x}' }, B], '"b" names no prefix and others do'],
  [
    'one server under one prefix twice',
    [
      { ...A, prefix: '{x}' },
      { name: 'b', address: A.address, prefix: '{x}' },
    ],
    'are the same server, redis://one:6379, under the prefix {x}',
  ],
  [
    'one cluster under one prefix twice',
    [
      { name: 'a', address: 'redis+cluster://one,two', cells: 2 },
      { name: 'b', address: 'redis+cluster://two,three', cells: 1 },
    ],
    'are the same cluster, redis+cluster://two,three, under the prefix {shoal.0}',
  ],
  [
    'a number of cells of one server',
    [{ ...A, cells: 2 }],
    '"cells" of 2; it is the number, 1 to 64, of the cells of a cluster',
  ],
  ['no number of cells', [{ name: 'a', address: 'redis+cluster://one', cells: '2' }], '"cells" of a string; it'],
  [
    'too many cells of a cluster',
    [{ name: 'a', address: 'redis+cluster://one', cells: 65 }],
    '"cells" of 65; it is the number',
  ],
  [
    'too long a name of them',
    [{ name: 'x'.repeat(31), address: 'redis+cluster://one', cells: 2 }],
    'cell 1 has no name',
  ],
  ['no name', [{ address: A.address }], 'cell 1 has no name'],
  ['a name with an @', [A, { ...B, name: 'b@c' }], 'cell 2 has no name of 1 to 32'],
  ['a name with a capital', [{ ...A, name: 'A' }], 'cell 1 has no name'],
  ['no address', [{ name: 'a' }], 'cell 1 has no address'],
  ['an address of another kind', [{ name: 'a', address: 'http://one' }], 'cell 1 has no address that begins with'],
  ['a word for write', [{ ...A, write: 'no' }], 'neither true nor false'],
  ['a misspelt key', [{ ...A, wirte: false }], '"wirte", which no cell has'],
  ['null', [null], 'cell 1 is no object'],
  ['none that takes work', [{ ...A, write: false }, B], 'no cell takes new work'],
])('%s is refused by what is wrong', (_, list, problem) => {
  expect(() => checkCells(list, 'cells')).toThrow(problem);
  expect(() => checkCells(list, 'cells')).toThrow(/^cells: /);
});

test('a cluster stands for cells with prefixes of their own, as an entry and as a text', () => {
  const address = 'redis+cluster://me:secret@one:6379,two:6379';
  const some = [0, 1, 2].map((at) => ({ name: `shoal-${at}`, address, prefix: `{shoal.${at}}` }));
  expect(readCells(` ${address}?cells=3\n`)).toEqual(some);
  expect(readCells(fileWith(`${address}?cells=3\n`))).toEqual(some);
  expect(readCells(`${address}?ca=/a.pem&cells=3`).map((cell) => cell.address)).toEqual(
    some.map(() => `${address}?ca=/a.pem`),
  );
  const entry = { name: 'c', address, prefix: '{own}', write: false, cells: 2 };
  expect(checkCells([entry, { name: 'd', address, prefix: '{own.2}' }], 'cells')).toEqual([
    { name: 'c-0', address, prefix: '{own.0}', write: false },
    { name: 'c-1', address, prefix: '{own.1}', write: false },
    { name: 'd', address, prefix: '{own.2}' },
  ]);
  for (const text of [address, `${address}?cells=`, `${address}?cells=2&cells=3`])
    expect(() => readCells(text)).toThrow(
      'cells: a cluster needs the number of its cells, 1 to 64, once: redis+cluster://***@',
    );
  expect(() => readCells(`${address}?cells=0`)).toThrow('"cells" of 0; it is the number, 1 to 64');
  // the example has to come through to who reads it
  const shown = 'cells: a cluster needs the number of its cells, 1 to 64, once: redis+cluster://one:6379?cells=8';
  expect(redactText(shown)).toBe(shown);
  expect(redactCells(`${address}?cells=3`)).toBe('redis+cluster://***@one:6379,two:6379?cells=3');
});

test('of several cells at one address the prefix says which is home', () => {
  const cells = 'redis+cluster://one:6379,two:6379?cells=3';
  const [first, second] = readCells(cells);
  const homeOf = (flags: object): unknown => {
    const { redisUrl, prefix } = withHome(resolveSettings({ flags: { cells, ...flags } }));
    return [redisUrl, prefix];
  };
  expect(homeOf({})).toEqual([first!.address, '{shoal.0}']);
  expect(homeOf({ prefix: '{shoal.1}' })).toEqual([second!.address, '{shoal.1}']);
  expect(homeOf({ redisUrl: 'redis+cluster://two:6379', prefix: '{shoal.1}' })).toEqual([
    'redis+cluster://two:6379',
    '{shoal.1}',
  ]);
  expect(homeOf({ redisUrl: 'redis+cluster://two:6379' })).toEqual(['redis+cluster://two:6379', '{shoal.0}']);
  expect(() => homeOf({ prefix: '{shoal.7}' })).toThrow(
    'prefix is {shoal.7}, which is that of none of the cells there',
  );
  const plain = JSON.stringify([A, B]);
  expect(withHome(resolveSettings({ flags: { cells: plain, prefix: '{x}' } }))).toMatchObject({
    redisUrl: A.address,
    prefix: '{x}',
  });
});

test('every problem is told at once, and no password', () => {
  const list = JSON.stringify([{ name: 'A', address: 'redis://me:secret@one' }, { name: 'b' }]);
  const refused = (): unknown => readCells(list);
  expect(refused).toThrow(/cell 1 has no name.*cell 2 has no address/s);
  expect(() => readCells('[{"address":"redis://me:secret@one"')).toThrow('not valid JSON');
  const texts = [list, '[{"address":"redis://me:secret@one"', '[{"name":"a","address":"redis://:secret@x"},7]'];
  for (const text of texts) expect(messageOf(() => readCells(text))).not.toContain('secret');
  expect(redactCells(JSON.stringify([{ name: 'a', address: 'redis://me:secret@one:6379' }]))).toBe(
    '[{"name":"a","address":"redis://***@one:6379"}]',
  );
  expect(redactCells('[{"address":"redis://me:secret@one"')).toBe('***');
});

test('a file that cannot be read is named, and so is one that holds no list', () => {
  expect(() => readCells('/nowhere/cells.json')).toThrow(/the cells of \/nowhere\/cells.json: .*ENOENT/);
  for (const text of ['cells: a, b', '', '[{"name":"a","addr']) {
    const path = fileWith(text);
    expect(() => readCells(path)).toThrow(`the cells of ${path}: it is not valid JSON`);
  }
  expect(() => readCells(fileWith('x'.repeat(2 << 20)))).toThrow(
    'it has 2,097,152 bytes, and a list of cells has at most',
  );
  expect(() => readCells(tmpdir())).toThrow('it is no file');
});

test('two masters that the same Sentinels watch are two cells', () => {
  const list = ['a', 'b'].map((name) => ({ name, address: `redis+sentinel://one:26379,two:26379/${name}` }));
  expect(checkCells(list, 'cells')).toEqual(list);
});

test('two databases of one server are two cells, however they are written', () => {
  for (const [one, other] of [
    ['unix:///run/valkey.sock?db=1', 'unix:///run/valkey.sock?db=2'],
    ['redis://one', 'redis://one:6379?db=1'],
  ] as const)
    expect(() =>
      checkCells(
        [one, other].map((address, at) => ({ name: `c${at}`, address })),
        'cells',
      ),
    ).not.toThrow();
  const same = ['redis://one/1', 'redis://one:6379?db=1'].map((address, at) => ({ name: `c${at}`, address }));
  expect(() => checkCells(same, 'cells')).toThrow('are the same server');
});

test('home is the cell at redisUrl, the first where that is not set, and none that is not in the list', () => {
  expect(homeCell([A, B], undefined)).toBe(A);
  expect(homeCell([A, B], 'redis://user:pw@two')).toBe(B);
  expect(homeCell([A, B], 'redis://two:6379/0')).toBe(B);
  expect(() => homeCell([A, B], 'redis://two:6379/1')).toThrow('which is none of the cells (a at redis://one:6379');
  const cells = JSON.stringify([A, B]);
  expect(withHome(resolveSettings({ flags: { cells } })).redisUrl).toBe(A.address);
  expect(withHome(resolveSettings({ flags: { cells, redisUrl: B.address } })).redisUrl).toBe(B.address);
  const plain = resolveSettings({ flags: { redisUrl: 'redis://two' } });
  expect(withHome(plain)).toBe(plain);
});

test('a folder chooses no cells, and shown settings have no password of one', () => {
  expect(() => resolveSettings({ file: { cells: '/tmp/cells.json' } })).toThrow('"cells" in shoal.config.json');
  const cells = JSON.stringify([{ name: 'a', address: 'redis://me:secret@one:6379' }]);
  expect(JSON.stringify(redactSettings(resolveSettings({ flags: { cells } })))).not.toContain('secret');
});

function messageOf(work: () => unknown): string {
  try {
    work();
  } catch (error) {
    return String(error);
  }
  throw new Error('nothing was thrown');
}
