import { modelSlug } from '@shoal/contract';
import { expect, test } from 'vitest';
import { KNOWN_HUB_MODELS, knownHubModel } from './known-hub-models.ts';
import { COMMIT, parseHubName } from './hub-name.ts';

test('the table names at least 40 repositories, each once, by names and commits that a hub can have', () => {
  expect(KNOWN_HUB_MODELS.length).toBeGreaterThanOrEqual(40);
  const names = KNOWN_HUB_MODELS.map(({ repository }) => modelSlug(repository));
  expect(new Set(names).size).toBe(names.length);
  for (const { repository, commit, licence } of KNOWN_HUB_MODELS) {
    expect(parseHubName(repository)).toEqual({ repository, revision: undefined });
    expect(commit ?? '0'.repeat(40)).toMatch(COMMIT);
    expect(licence).toMatch(/^[\w.-]+$/);
  }
  const commits = KNOWN_HUB_MODELS.flatMap(({ commit }) => commit ?? []);
  expect(commits.length).toBeGreaterThanOrEqual(40);
  expect(new Set(commits).size).toBe(commits.length);
});

test('a repository is found however its letters are written, and others are not', () => {
  expect(knownHubModel('INTFLOAT/e5-Small-v2')?.prompts).toEqual({ query: 'query: ', passage: 'passage: ' });
  expect(knownHubModel('intfloat/e5-small-v3')).toBeUndefined();
});
