// Halves exactly as IEEE 754 says, one by one and by the array.

import { describe, expect, test } from 'vitest';
import { fromHalves, toHalves } from './half.ts';

const toHalf = (value: number): number => toHalves(Float32Array.of(value))[0]!;

/** The value of a binary16, straight from its definition. */
function valueOf(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 0x1f;
  const mantissa = half & 0x3ff;
  if (exponent === 0x1f) return mantissa === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return exponent === 0 ? sign * mantissa * 2 ** -24 : sign * (1 + mantissa / 1024) * 2 ** (exponent - 15);
}

function isNanHalf(half: number): boolean {
  return (half & 0x7c00) === 0x7c00 && (half & 0x3ff) !== 0;
}

describe('one value', () => {
  test('gives back every one of the 65,536 halves', () => {
    const wrong: number[] = [];
    for (let half = 0; half < 0x1_0000; half++) {
      const again = toHalf(valueOf(half));
      if (isNanHalf(half) ? !isNanHalf(again) : again !== half) wrong.push(half);
    }
    expect(wrong).toEqual([]);
  });

  test('rounds what lies between two halves to the nearer one, and the middle to the even one', () => {
    const wrong: number[] = [];
    for (let half = 0; half < 0x7c00; half++) {
      const [low, high] = [valueOf(half), half === 0x7bff ? 65_536 : valueOf(half + 1)];
      const middle = (low + high) / 2; // exact in f32, and so are the steps to either side of it
      const step = Math.max(2 ** -149, middle * 2 ** -23);
      const even = half & 1 ? half + 1 : half;
      if (
        toHalf(middle) !== even ||
        toHalf(Math.fround(middle - step)) !== half ||
        toHalf(Math.fround(middle + step)) !== half + 1
      )
        wrong.push(half);
      if (toHalf(-middle) !== (even | 0x8000)) wrong.push(-half);
    }
    expect(wrong).toEqual([]);
  });

  test.each([
    [0, 0x0000],
    [-0, 0x8000],
    [1, 0x3c00],
    [-2, 0xc000],
    [65_504, 0x7bff],
    [65_519.99, 0x7bff],
    [65_520, 0x7c00],
    [1e10, 0x7c00],
    [-1e10, 0xfc00],
    [Number.POSITIVE_INFINITY, 0x7c00],
    [2 ** -24, 0x0001],
    [2 ** -25, 0x0000],
    [2 ** -25 * 1.0001, 0x0001],
    [1e-40, 0x0000],
    [1 / 3, 0x3555],
  ])('%d is %i', (value, half) => {
    expect(toHalf(value)).toBe(half);
  });
});

describe('arrays', () => {
  const all = Uint16Array.from({ length: 0x1_0000 }, (_, half) => half);

  test('fromHalves gives the value of every half, alone and among others', () => {
    const values = Array.from(all, valueOf);
    expect(Array.from(all, (half) => fromHalves(Uint16Array.of(half))[0]!)).toEqual(values);
    expect([...fromHalves(all)]).toEqual(values);
  });

  test('toHalves rounds each value as it does alone, also out of a larger buffer and into one', () => {
    const values = Float32Array.from(all, (half) => valueOf(half) * 1.0003).subarray(1);
    const into = new Uint16Array(values.length + 3);
    toHalves(values, into.subarray(2, -1));
    expect([...toHalves(values)]).toEqual(Array.from(values, toHalf));
    expect([...into.subarray(2, -1)]).toEqual(Array.from(values, toHalf));
    expect([into[0], into[1], into.at(-1)]).toEqual([0, 0, 0]);
  });
});
