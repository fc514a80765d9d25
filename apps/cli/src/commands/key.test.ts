// `shoal key` as its users meet it: a key is shown once, what is kept does not hold it, and a revoked one is said so.

import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { apiKeyId } from '@shoal/core';
import { runHere } from '../testing/command-here.ts';
import { Sandbox } from '../testing/shoal-process.ts';

let box: Sandbox;
beforeAll(() => {
  box = new Sandbox();
});
afterAll(() => box.remove());

test('a key is made, listed and revoked in a file, and shown once', async () => {
  const file = ['--http-key-file', 'keys.json'];
  const made = await runHere(box, [
    'key',
    'create',
    'search box',
    '--tenant',
    'acme',
    '--texts-per-minute',
    '500',
    ...file,
  ]);
  const key = made.stdout.trim();
  const id = apiKeyId(key);
  expect(id).toBeDefined();
  expect(made.stderr).toMatch(/shown once.*tenant acme: embed, rerank, similarity, batches/s);
  expect(made.stderr).toContain('HTTP answers nobody without a key from now on');
  const kept = readFileSync(box.path('keys.json'), 'utf8');
  expect(kept).not.toContain(key.slice('shoal_'.length + id!.length + 1));

  const listed = await runHere(box, ['key', 'list', '--json', ...file]);
  expect(JSON.parse(listed.stdout)).toMatchObject([{ id, name: 'search box', limits: { texts: 500 }, state: 'good' }]);
  const revoked = await runHere(box, ['key', 'revoke', id!, 'aaaaaaaaaa', ...file]);
  expect(revoked).toMatchObject({ code: 2, stderr: expect.stringContaining(`key ${id} (search box) is revoked`) });
  expect(revoked.stderr).toContain('there is no key aaaaaaaaaa');
  expect((await runHere(box, ['key', 'list', ...file])).stdout).toMatch(/search box .* 500 texts .* revoked\n/);
});

test('a scope that nobody knows and an empty name are called wrongly', async () => {
  const file = ['--http-key-file', 'other.json'];
  const [scope, name] = await Promise.all([
    runHere(box, ['key', 'create', 'a', '--scopes', 'embed,emebd', ...file]),
    runHere(box, ['key', 'create', '', ...file]),
  ]);
  expect(scope).toMatchObject({ code: 2, stdout: '' });
  expect(scope.stderr).toContain(
    'there is no scope "emebd"; there are embed, rerank, similarity, batches, metrics, admin',
  );
  expect(name).toMatchObject({ code: 2, stdout: '', stderr: expect.stringContaining('name') });
});

test('keys of the dashboard are kept in its file, and have scopes of their own', async () => {
  const file = ['--dashboard', '--dashboard-key-file', 'board.json'];
  const [viewer, strange, noFile, ofHttp] = await Promise.all([
    runHere(box, ['key', 'create', 'wall', ...file]),
    runHere(box, ['key', 'create', 'a', '--scopes', 'embed', ...file]),
    runHere(box, ['key', 'create', 'a', '--dashboard']),
    runHere(box, ['key', 'create', 'a', '--scopes', 'operate', '--http-key-file', 'http.json']),
  ]);
  expect(viewer).toMatchObject({ code: 0, stderr: expect.stringContaining('view. It is typed into the page /login') });
  expect(viewer.stderr).not.toContain('HTTP answers nobody');
  expect(strange).toMatchObject({ code: 2, stderr: expect.stringContaining('those of the dashboard have view or') });
  expect(noFile).toMatchObject({ code: 2, stderr: expect.stringContaining('SHOAL_DASHBOARD_KEY_FILE') });
  expect(ofHttp).toMatchObject({ code: 2, stderr: expect.stringContaining('say --dashboard') });
  const listed = await runHere(box, ['key', 'list', '--json', ...file]);
  expect(JSON.parse(listed.stdout)).toMatchObject([{ name: 'wall', scopes: ['view'], state: 'good' }]);
});
