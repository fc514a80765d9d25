// What of a request travels: names of prompts that every worker knows do; what other names stand for is in the token ids.

import { describe, expect, test } from 'vitest';
import { decodeInput, fingerprintOf } from '@shoal/contract';
import { FakeTokenizer } from '@shoal/core/testing';
import { makeRequest, type RequestTerms } from './embed-request.ts';

const terms = (more: Partial<RequestTerms>): RequestTerms => ({
  requestId: 'default~a',
  model: 'm@0123456789ab',
  tokenizer: undefined,
  prompts: undefined,
  tenant: 'default',
  reply: '{shoal}:reply:me',
  truncate: 'end',
  prompt: undefined,
  output: undefined,
  class: undefined,
  ...more,
});
const prompts = { prompts: { query: 'q : ', 's2p.query': 's p : ' }, defaultPrompt: 's2p.query' };

async function idsOf(more: Partial<RequestTerms>): Promise<readonly number[]> {
  const { job } = await makeRequest('default~a', ['one'], terms({ tokenizer: new FakeTokenizer(), prompts, ...more }));
  const decoded = decodeInput(Buffer.from(job.input!));
  return decoded.form === 'tokens' ? [...decoded.rows[0]!] : [];
}
const idsFor = (text: string): readonly number[] => [...new FakeTokenizer().encode(text).ids];

const dataOf = async (output: RequestTerms['output']): Promise<unknown> =>
  (await makeRequest('default~a', ['one'], terms({ output }))).job.data;

describe('a client that tokenizes', () => {
  test('puts prompts of any name before texts, the default one too, and asks workers for none of them', async () => {
    expect(await idsOf({ prompt: 'query' })).toEqual(idsFor('q : one'));
    expect(await idsOf({ prompt: 's2p.query' })).toEqual(idsFor('s p : one'));
    expect(await idsOf({})).toEqual(idsFor('s p : one'));
    expect(await idsOf({ prompt: 'none' })).toEqual(idsFor('one'));
    const own = terms({ tokenizer: new FakeTokenizer(), prompts, prompt: 's2p.query' });
    const { job, fingerprint } = await makeRequest('default~a', ['one'], own);
    expect(job.data).toMatchObject({ v: 1 });
    expect(job.data).not.toHaveProperty('prompt');
    const output = { dtype: 'f32', dimensions: undefined } as const;
    const facts = { model: own.model, prompt: undefined, truncate: 'end', output } as const;
    expect(fingerprint).toBe(fingerprintOf(facts, Buffer.from(job.input!)));
  });

  test('asks for length 1 only where it was asked for', async () => {
    expect(await dataOf({ normalize: true, dimensions: 3 })).toMatchObject({
      output: { normalize: true, dimensions: 3 },
    });
    for (const output of [undefined, {}, { normalize: false }])
      expect(await dataOf(output)).not.toHaveProperty('output');
  });
});

test('a client without a tokenizer refuses names that workers of every version do not know', async () => {
  await expect(makeRequest('default~a', ['one'], terms({ prompt: 's2p.query' }))).rejects.toMatchObject({
    code: 'JOB_INVALID',
    message: expect.stringMatching(/the prompt "s2p\.query" is put before texts by this client/) as unknown,
  });
  const { job } = await makeRequest('default~a', ['one'], terms({ prompt: 'query' }));
  expect(job.data).toMatchObject({ prompt: 'query', texts: ['one'] });
});
