// docs/jobs.md and examples/plain-bullmq.mjs are contracts with producers that are not ours: what they show must be
// true.

import { readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { encodeTexts, fingerprintOf, parseJob } from '@shoal/contract';

const page = await readFile(new URL('../../../docs/jobs.md', import.meta.url), 'utf8');

test('the page shows the bytes and the fingerprint of its own example', () => {
  const input = encodeTexts(['hello', '']);
  expect(page).toContain(input.toString('hex').replaceAll(/(..)(?=.)/g, '$1 '));
  const fingerprint = fingerprintOf(
    {
      model: 'minilm@53aa51172d14',
      prompt: undefined,
      truncate: 'end',
      output: { dtype: 'f32', dimensions: undefined },
    },
    input,
  );
  expect(page).toContain(`\`${fingerprint}\``);
});

test('every field in the page’s table of data is one, and every option of the schema is in it', () => {
  const section = page.slice(page.indexOf('## `data`'), page.indexOf('## Input key'));
  const named = [...section.matchAll(/^\| `(\w+)`/gm)].map((match) => match[1]);
  const values: Record<string, unknown> = {
    v: 2,
    fingerprint: '7a46bcc903f08498',
    class: 'bulk',
    tenant: 't',
    deadline: 1,
    reply: '{shoal}:reply:x',
    resultTtlMs: 5_000,
    truncate: 'end',
    prompt: 'query',
    output: {},
    meta: { userId: 5 },
    trace: { requestId: 'r' },
    payloads: '0123456789abcdef',
  };
  expect(new Set(named)).toEqual(new Set([...Object.keys(values), 'texts', 'input', 'returnVectors']));
  expect(parseJob('j', 'embed', { ...values, texts: ['a'], returnVectors: true }).rows).toBe(1);
  expect(
    parseJob('j', 'embed', { ...values, input: { form: 'tokens', rows: 1, tokens: 2, tokenizer: '0123456789abcdef' } })
      .rows,
  ).toBe(1);
});
