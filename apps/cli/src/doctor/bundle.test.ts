import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { resolveSettings } from '@shoal/core';
import { bundleFiles, writeBundle, type BundleParts } from './bundle.ts';
import { secretsHider } from './secrets.ts';

const folder = mkdtempSync(join(tmpdir(), 'shoal-bundle-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const PLANTED = ['Pw-in-url/1', 'Pw-of-file-2', 'master-3-key-of-http', 'aws-secret-4', 'hook-secret-5'];

function parts(logFile: string | undefined): BundleParts {
  const passwordFile = join(folder, 'password');
  writeFileSync(passwordFile, `${PLANTED[1]}\n`);
  const environment = {
    REDIS_URL: `redis://u:${encodeURIComponent(PLANTED[0]!)}@h:6379`,
    SHOAL_HTTP_MASTER_KEY: PLANTED[2],
    SHOAL_WEBHOOK_SECRET: PLANTED[4],
    AWS_SECRET_ACCESS_KEY: PLANTED[3],
    HOME: '/home/ann',
  };
  const settings = {
    ...resolveSettings({ environment: {} }),
    redisUrl: environment.REDIS_URL,
    redisPasswordFile: passwordFile,
    webhookSecret: PLANTED[4],
  };
  const everywhere = PLANTED.join(' and ');
  return {
    version: '0.2.0',
    settings,
    environment,
    findings: [{ about: 'queue server', state: 'broken', found: `no answer: ${everywhere}` }],
    host: {} as BundleParts['host'],
    queues: [{ queue: everywhere } as unknown as BundleParts['queues'][number]],
    info: `redis_version:7\r\nnote:${everywhere}\r\n`,
    audit: `{"what":"${everywhere}"}\n`,
    logFile,
  };
}

test('no secret is in it, wherever it was planted', async () => {
  const log = join(folder, 'worker.log');
  writeFileSync(
    log,
    `${'x'.repeat(300_000)}\nthe last line: ${PLANTED.join(', ')} shoal_abcdefghij_${'k'.repeat(43)}\n`,
  );
  const files = await bundleFiles(parts(log));
  expect(files.map(({ name }) => name.replace('shoal-doctor/', ''))).toEqual([
    'versions.json',
    'findings.json',
    'settings.json',
    'environment.json',
    'host.json',
    'queues.json',
    'server-info.txt',
    'audit.jsonl',
    'log.txt',
  ]);
  const text = files.map((file) => file.text).join('\n');
  for (const secret of [...PLANTED, encodeURIComponent(PLANTED[0]!), 'k'.repeat(43)])
    expect(text).not.toContain(secret);
  expect(text).toContain('the last line: ***');
  expect(text).not.toContain('/home/ann'); // a variable that nobody needs
  expect(text).toContain('redis_version:7');
});

test('it is a tar that others open, for its owner alone', async () => {
  const path = join(folder, 'bundle.tgz');
  await writeBundle(
    path,
    [...(await bundleFiles(parts(undefined))), { name: 'ä/long', text: 'y'.repeat(1_000) }],
    1_700_000_000_000,
  );
  expect(statSync(path).mode & 0o777).toBe(0o600);
  execFileSync('tar', ['-xzf', path, '-C', folder]);
  expect(readdirSync(join(folder, 'shoal-doctor'))).toContain('findings.json');
  expect(readFileSync(join(folder, 'ä/long'), 'utf8')).toBe('y'.repeat(1_000));
  expect(JSON.parse(readFileSync(join(folder, 'shoal-doctor/settings.json'), 'utf8'))).toMatchObject({
    model: 'minilm',
  });
});

test('a log that cannot be read is said by name', async () => {
  await expect(bundleFiles(parts(join(folder, 'none.log')))).rejects.toMatchObject({ code: 'FILE_UNREADABLE' });
});

test('short words of the environment are not taken for secrets', async () => {
  const hide = await secretsHider(resolveSettings({ environment: {} }), {
    SHOAL_TOKEN_MODE: 'on',
    A_KEY_FILE: '/etc/key',
  });
  expect(hide('turned on, see /etc/key')).toBe('turned on, see /etc/key');
});
