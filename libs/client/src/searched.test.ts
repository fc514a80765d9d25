// Whether texts may be compared with rows, by what workers say of their collections.

import { describe, expect, test } from 'vitest';
import { searchedIn } from '@shoal/contract';
import { refuseUntold, searchedOf, withSearched } from './searched.ts';

const texts = { model: 'minilm@aaa' };
const of = (...models: readonly (string | undefined)[]) =>
  models.map((model) => ({ collection: 'docs@3', ...(model === undefined ? {} : { model }) }));

describe('the rows of a collection', () => {
  test('of the model of the texts, with or without its revision, are searched', () => {
    expect(searchedOf('docs', of('minilm@aaa', 'minilm'), texts)).toEqual({
      collection: 'docs@3',
      collectionModel: 'minilm@aaa',
    });
  });

  test.each([['bge@aaa'], ['minilm@bbb'], ['bge']])('of %s are refused, by both names', (model) => {
    const both = new RegExp(`embedded by minilm@aaa, and the rows of docs@3 by ${model}: `);
    expect(() => searchedOf('docs@3', of(undefined, model), texts)).toThrow(both);
    expect(() => searchedOf('docs@3', of(model), texts)).toThrow(
      expect.objectContaining({ code: 'COLLECTION_MODEL_MISMATCH', fields: expect.objectContaining(texts) }),
    );
  });

  test('of any model are compared with vectors', () => {
    expect(searchedOf('docs@3', of('bge@aaa'), undefined)).toEqual({
      collection: 'docs@3',
      collectionModel: 'bge@aaa',
    });
  });

  test('are not known as soon as those of one job are not', () => {
    expect(searchedOf('docs@3', of('minilm@aaa', undefined), texts)).toEqual({
      collection: 'docs@3',
      collectionModel: undefined,
    });
    expect(searchedOf('docs@3', [], texts)).toEqual({ collection: 'docs@3', collectionModel: undefined });
  });

  test('that workers have of two models under one name, or of two versions, are no answer', () => {
    expect(() => searchedOf('docs@3', of('bge@1', 'minilm@1'), undefined)).toThrow(
      /different collections called docs@3/,
    );
    expect(() => searchedOf('docs', [{ collection: 'docs@3' }, { collection: 'docs@4' }], undefined)).toThrow(
      /docs became another version .* from docs@3 and docs@4/,
    );
  });
});

test('more queries are not asked for a version that nobody knows', () => {
  expect(() => refuseUntold('docs')).toThrow(/from which version of docs; ask again/);
  expect(() => refuseUntold('docs@3')).not.toThrow();
});

test('return values of older workers, of nobody and of what is none say nothing', () => {
  expect(searchedIn('{"v":1,"collection":"docs@3"}')).toEqual({ collection: 'docs@3' });
  for (const value of [undefined, '', 'null', '7', '{"collection":3,"model":null}', '{"v":'])
    expect(searchedIn(value)).toEqual({});
});

test('a list with what was searched is still the list', () => {
  const rankings = withSearched([1, 2], { collection: 'docs@3', collectionModel: undefined });
  expect(rankings).toEqual([1, 2]);
  expect([rankings.collection, rankings.collectionModel]).toEqual(['docs@3', undefined]);
});
