// The measures of the house on sources so small that each figure can be counted by eye.

import { expect, test } from 'vitest';
import { circles, importGraph, roomsOf } from './figures/arrows.ts';
import { fullestFolder, longLinesIn } from './figures/measure.ts';
import { nativeFunctions } from './figures/native-functions.ts';
import { isProduct } from './figures/source-tree.ts';
import { figuresOf } from './figures/typescript-figures.ts';

const figures = (text: string) => figuresOf({ path: 'a.ts', text });

test('each way that a function can go is a branch, and a named function inside it counts for itself', () => {
  const { functions } = figures(`
    export function judge(a?: number) {
      const inner = () => (a ? 1 : 2);
      for (const x of [1]) if (x && a) return [1].map((y) => y ?? a);
      switch (a) { case 1: case 2: return; default: try { a ||= 3; } catch { inner(); } }
      return undefined;
    }`);
  expect(functions.map(({ name, cyclomatic }) => [name, cyclomatic])).toEqual([
    ['judge', 9],
    ['inner', 2],
  ]);
});

test('a class is as long as its code, and its changeable fields are those that are not readonly', () => {
  const { classes, functions } = figures(`
    class Room {
      // a comment, and a blank line

      static made = 0;
      readonly name = 'x';
      private readonly all = [];
      private open = true;
      #left = 1;
      enter(): void {
        this.open = false;
      }
    }`);
  expect(classes).toEqual([{ name: 'Room', lines: 10, changeable: 2 }]);
  expect(functions).toEqual([{ name: 'Room.enter', lines: 3, cyclomatic: 1 }]);
});

test('imports of types make circles as others do', () => {
  const a = figures(`import type { B } from './b.ts';`);
  const b = figures(`export type C = import('./deep/c.ts').C;`);
  const c = figures(`export { a } from '../a.ts';`);
  const graph = importGraph([
    { ...a, path: 'p/a.ts' },
    { ...b, path: 'p/b.ts' },
    { ...c, path: 'p/deep/c.ts' },
    { path: 'p/deep/d.ts', imports: ['../a.ts', 'elsewhere'] },
  ]);
  expect(circles(graph)).toEqual([['p/a.ts', 'p/b.ts', 'p/deep/c.ts']]);
  expect(roomsOf(graph, 'p/')).toEqual({ rooms: 3, arrows: 4 - 1, arrowsBetweenFiles: 4 });
});

test('exported names are counted whatever their form', () => {
  const text =
    `export { a, type B as C } from './x.ts'; export const d = 1, e = 2; ` +
    'export function f() {} export type G = 1;';
  expect(figures(text).exports).toEqual(['a', 'C', 'd', 'e', 'f', 'G']);
});

test('Lua is counted where a template literal calls the server', () => {
  expect(
    figures("const a = `return redis.call('GET', KEYS[1])`; const b = 'redis.call'; const c = `none`;").luaStrings,
  ).toBe(1);
});

test('native functions are those with parameters and a body, wherever they stand', () => {
  const text = `
namespace shoal {
struct Step {
  int rows = 0;
  bool fits(int most) const { return rows < most; } // {
};
constexpr int kTable[] = {1, 2};

template <int N>
__global__ void __launch_bounds__(256) run(const float *rows) {
  if (rows) {
    auto f = [](int x) { return x; };
  }
}

Line::Line(int n) : rows_{n}, name_("{") {
  go();
}
} // namespace shoal
extern "C" {
int shoal_run(void) {
  return 0;
}
}
`;
  expect(nativeFunctions(text)).toEqual([
    { name: 'fits', lines: 1 },
    { name: 'run', lines: 6 },
    { name: 'Line::Line', lines: 3 },
    { name: 'shoal_run', lines: 3 },
  ]);
});

test('folders are counted with their files and folders, lines by characters', () => {
  expect(fullestFolder(['libs/a/x.ts', 'libs/a/b/y.ts', 'libs/a/b/z.ts', 'libs/c.ts'])).toEqual({
    at: 'libs/a',
    value: 2,
  });
  expect(longLinesIn(`${'𝛼'.repeat(120)}\n${'x'.repeat(121)}`)).toBe(1);
});

test('tests, stand-ins and declarations are no product', () => {
  const paths = ['a.ts', 'a.test.ts', 'a.d.ts', 'testing/a.ts', 'testing.ts', 'sim/a.ts'].map(
    (path) => `libs/core/src/${path}`,
  );
  expect(paths.filter(isProduct)).toEqual(['libs/core/src/a.ts']);
});
