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

const dataOf = async (output: RequestTerms['output'], isNormalized?: boolean): Promise<unknown> =>
  (await makeRequest('default~a', ['one'], terms({ output, isNormalized }))).job.data;

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

  test('asks for lengths only where it was asked for and the model has others', async () => {
    expect(await dataOf({ normalize: true, dimensions: 3 })).toMatchObject({
      v: 2,
      output: { normalize: true, dimensions: 3 },
    });
    expect(await dataOf({ normalize: false })).toMatchObject({ v: 2, output: { normalize: false } });
    expect(await dataOf({ normalize: true }, false)).toMatchObject({ v: 2, output: { normalize: true } });
    for (const [output, isNormalized] of [
      [undefined, undefined],
      [{}, undefined],
      [{ normalize: false }, false],
      [{ normalize: true }, true],
    ] as const) {
      const data = await dataOf(output, isNormalized);
      expect(data).toMatchObject({ v: 1 });
      expect(data).not.toHaveProperty('output');
    }
  });
});

describe('a client without a tokenizer', () => {
  test('lets texts and the name of a prompt travel, as version 2 where older workers do not know it', async () => {
    for (const prompt of ['s2p.query', 'clustering', 'none', 'document']) {
      const { job, fingerprint } = await makeRequest('default~a', ['one'], terms({ prompt }));
      expect(job.data).toMatchObject({ v: 2, prompt, texts: ['one'], fingerprint });
    }
  });

  test('writes ordinary jobs as every worker knows them, byte for byte', async () => {
    const common = { v: 1, tenant: 'default', reply: '{shoal}:reply:me' };
    for (const [more, also] of [
      [{}, {}],
      [{ prompt: 'query' }, { prompt: 'query' }],
      [
        { prompt: 'passage', truncate: 'error' },
        { truncate: 'error', prompt: 'passage' },
      ],
    ] as const) {
      const { job, fingerprint } = await makeRequest('default~a', ['one'], terms(more));
      const { v, ...rest } = common;
      expect(JSON.stringify(job.data)).toBe(JSON.stringify({ v, fingerprint, ...rest, ...also, texts: ['one'] }));
    }
  });
});
