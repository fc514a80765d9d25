import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { resolveSettings, settingsSchema } from '@shoal/core';
import { readSettingsFiles } from './settings-file.ts';

let root: string;
let environment: Record<string, string>;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'shoal-settings-'));
  for (const folder of ['here', 'config/shoal']) mkdirSync(join(root, folder), { recursive: true });
  environment = { XDG_CONFIG_HOME: join(root, 'config') };
});
afterEach(() => {
  rmSync(root, { recursive: true });
});

function write(path: string, content: object | string): void {
  writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content), { mode: 0o600 });
}

/** As services and commands do it, in a folder with this file and with this one at home. */
async function settingsWith(folder: object | string, home?: object, given: object = {}) {
  write(join(root, 'here', 'shoal.config.json'), folder);
  if (home !== undefined) write(join(root, 'config', 'shoal', 'config.json'), home);
  const sources = { flags: { ...given }, environment };
  const files = await readSettingsFiles(sources, join(root, 'here'));
  return { ...resolveSettings({ ...sources, ...files }), warnings: files.warnings };
}

test('a server that the file of a folder chose is said, without its password; one that a flag chose is not', async () => {
  const redisUrl = 'redis://u:secret@elsewhere:1';
  expect(await settingsWith({ redisUrl })).toMatchObject({
    redisUrl,
    warnings: [
      'shoal.config.json of this folder chose redisUrl "redis://***@elsewhere:1": texts and results go to that server',
    ],
  });
  expect((await settingsWith({ redisUrl }, {}, { redisUrl: 'redis://mine' })).warnings).toEqual([]);
  environment['REDIS_URL'] = 'redis://mine';
  expect((await settingsWith({ redisUrl })).warnings).toEqual([]);
  expect((await settingsWith({ httpHost: '0.0.0.0' })).warnings.join()).toMatch(/chose httpHost "0\.0\.0\.0"/);
  expect((await settingsWith({ model: 'minilm' })).warnings).toEqual([]);
});

test('the file of a folder chooses no path, by name, and all at once', async () => {
  await expect(settingsWith({ cudaLibrary: './evil.so', cacheDir: '/tmp/x' })).rejects.toMatchObject({
    code: 'CONFIG_INVALID',
    fields: {
      problems: [
        expect.stringMatching(
          /^"cacheDir" in shoal\.config\.json: .*set --cache-dir or SHOAL_CACHE_DIR, .*\.config\/shoal/,
        ),
        expect.stringMatching(/^"cudaLibrary" in shoal\.config\.json/),
      ],
    },
  });
  await expect(settingsWith({ redisUrl: 'rediss://h?ca=/tmp/x' })).rejects.toThrow(/its parameters ca, cert, key and/);
});

test('every setting that is a path is refused there: what a new one is called shows it', async () => {
  const paths = Object.keys(settingsSchema.shape).filter((key) =>
    /(Dir|Library|File|Path|Program|Ca|Cert|Key)$/.test(key),
  );
  expect(paths.length).toBeGreaterThan(5);
  for (const key of paths) await expect(settingsWith({ [key]: 'x' })).rejects.toThrow(new RegExp(`"${key}" in`));
});

test('the file at home may name paths, and what a folder says beats it', async () => {
  const home = { cacheDir: '/my/cache', model: 'bge' };
  expect(await settingsWith({ model: 'minilm' }, home)).toMatchObject({ cacheDir: '/my/cache', model: 'minilm' });
});

test('a file that others may write is said in a folder and refused at home', async () => {
  await settingsWith({ model: 'minilm' }, { model: 'minilm' });
  chmodSync(join(root, 'here', 'shoal.config.json'), 0o666);
  expect((await readSettingsFiles({ environment }, join(root, 'here'))).warnings).toEqual([
    'shoal.config.json of this folder may be written by others (mode 666)',
  ]);
  chmodSync(join(root, 'config', 'shoal', 'config.json'), 0o622);
  await expect(readSettingsFiles({ environment }, join(root, 'here'))).rejects.toThrow(
    /may be written by others.*chmod 600/,
  );
});

test('a file that is no JSON is not quoted: what stands there may be a password', async () => {
  await expect(settingsWith('{"redisUrl": redis://u:secret@h}')).rejects.toSatisfy(
    (error: Error) => /is not valid JSON/.test(error.message) && !error.message.includes('secret'),
  );
  await expect(settingsWith('[]')).rejects.toThrow(/must hold one JSON object/);
});
