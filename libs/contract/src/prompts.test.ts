// Which words go before a text: by the model's own names first, then by what sides of a search are called.

import { describe, expect, test } from 'vitest';
import { askablePrompts, hasPrompts, missingPrompt, notAskable, promptText, sidePrompt } from './prompts.ts';

const both = { prompts: { query: 'q: ', document: 'd: ' } };
const queryAlone = { prompts: { query: 'q: ', document: '' } };
const others = { prompts: { 'retrieval.query': 'r: ', s2p: 's: ' } };
const withDefault = { prompts: { query: 'q: ', document: 'd: ' }, defaultPrompt: 'document' };

describe('what goes before a text', () => {
  test.each([
    ['a prompt by its name', both, 'query', 'q: '],
    ['the side by another name', both, 'passage', 'd: '],
    ['the side by a third name', both, 'corpus', 'd: '],
    ['nothing where none is asked for', both, undefined, ''],
    ['nothing on the side that has none on purpose', queryAlone, 'passage', ''],
    ['nothing on a side that is not there beside the other', { prompts: { query: 'q: ' } }, 'passage', ''],
    ['the default where none is asked for', withDefault, undefined, 'd: '],
    ['nothing where "none" is asked for', withDefault, 'none', ''],
    ['a prompt that is called "none"', { prompts: { none: 'n: ' } }, 'none', 'n: '],
    ['a prompt of any name', others, 'retrieval.query', 'r: '],
    ['no side where there are other names alone', others, 'query', undefined],
    ['no name that is not there', both, 'clustering', undefined],
    ['no name of every object', both, 'toString', undefined],
    ['no side where there are no prompts', { prompts: { query: '', document: '' } }, 'query', undefined],
    ['no other side where there are no prompts', { prompts: { query: '', document: '' } }, 'passage', undefined],
    ['nothing where there are no prompts and none is asked for', { prompts: {} }, 'none', ''],
  ])('%s', (_, model, asked, expected) => {
    expect(promptText(model, asked)).toBe(expected);
  });

  test('sides are asked for where the model has them', () => {
    expect(sidePrompt(both, 'passage')).toEqual({ prompt: 'passage' });
    for (const model of [others, { prompts: {} }, { prompts: { query: '' } }])
      expect(sidePrompt(model, 'query')).toEqual({});
  });

  test('all that may be asked for has words, or is nothing on purpose', () => {
    expect(askablePrompts(both)).toEqual(['query', 'document', 'passage', 'corpus', 'none']);
    expect(askablePrompts(others)).toEqual(['retrieval.query', 's2p', 'none']);
    for (const model of [{ prompts: {} }, { prompts: { query: '' } }]) expect(askablePrompts(model)).toEqual(['none']);
    for (const model of [both, queryAlone, others, withDefault])
      for (const name of askablePrompts(model)) expect(promptText(model, name)).toBeDefined();
    expect(notAskable(askablePrompts(others))).toBe(missingPrompt(others));
  });

  test('what is missing is said with what is there', () => {
    expect(hasPrompts({ query: '', document: '' })).toBe(false);
    expect(missingPrompt({ prompts: {} })).toMatch(/has no prompts: .*--query-prompt/);
    expect(missingPrompt(others)).toMatch(/has "retrieval\.query", "s2p": .*"none"/);
  });
});
