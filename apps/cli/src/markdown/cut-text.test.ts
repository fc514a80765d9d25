import { describe, expect, test } from 'vitest';
import { cutText, weightOf } from './cut-text.ts';

const LIMITS = { aim: 90, most: 130 };
const withoutSpace = (text: string): string => text.replaceAll(/\s/g, '');

describe('pieces of a text', () => {
  test.each([
    ['Chinese', '这是第一句话，它说了一些重要的事情。'.repeat(60)],
    ['Chinese without sentences', '魚'.repeat(1_136)],
    ['Thai', 'มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ'.repeat(20)],
    ['Russian', 'Все люди рождаются свободными и равными. '.repeat(60)],
    ['Korean', '모든 인간은 태어날 때부터 자유로우며 동등하다. '.repeat(30)],
    ['families of emoji', '👩‍👩‍👧‍👦'.repeat(300)],
    ['a letter under marks', `a${'\u0301'.repeat(2_000)}`],
    ['a key', 'a3f9'.repeat(500)],
    ['a line of numbers', '3.14159 '.repeat(400)],
  ])('have all of it and are below the limit: %s', (_, text) => {
    const pieces = cutText(text, LIMITS);
    expect(withoutSpace(pieces.join(''))).toBe(withoutSpace(text));
    expect(pieces.length).toBeGreaterThan(1);
    expect(Math.max(...pieces.map(weightOf))).toBeLessThanOrEqual(LIMITS.most);
  });

  test('end with sentences where a sentence fits, and never inside what a reader takes for a character', () => {
    expect(
      cutText('这是第一句话，它说了一些重要的事情。'.repeat(20), LIMITS).every((piece) => piece.endsWith('。')),
    ).toBe(true);
    const family = '👩‍👩‍👧‍👦';
    expect(cutText(family.repeat(300), LIMITS).every((piece) => piece.replaceAll(family, '') === '')).toBe(true);
  });

  test('of a text below the limit are the text', () => {
    expect(cutText(' one. two. ', LIMITS)).toEqual(['one. two.']);
    expect(cutText(' \n ', LIMITS)).toEqual([]);
  });
});
