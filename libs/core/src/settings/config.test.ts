// Where a setting comes from, what is said when it is wrong, and what never reaches a log.

import { describe, expect, test } from 'vitest';
import {
  droppedVariables,
  environmentName,
  flagName,
  redactSettings,
  resolveSettings,
  type SettingSources,
} from './config.ts';
import { isShoalError } from '@shoal/contract';
import { settingsSchema } from './schema.ts';
import { sizesOf } from './sizes.ts';

/** What is said about settings that are wrong. */
function problemsOf(sources: SettingSources): unknown {
  try {
    resolveSettings(sources);
    return [];
  } catch (error) {
    return isShoalError(error, 'CONFIG_INVALID') ? error.fields['problems'] : error;
  }
}

test('names follow from keys', () => {
  expect(environmentName('maxPaddedTokens')).toBe('SHOAL_MAX_PADDED_TOKENS');
  expect(flagName('maxPaddedTokens')).toBe('--max-padded-tokens');
  expect([environmentName('model'), flagName('model')]).toEqual(['SHOAL_MODEL', '--model']);
});

test('without any source every setting has its default', () => {
  expect(resolveSettings()).toMatchObject({
    prefix: '{shoal}',
    model: 'minilm',
    device: 'auto',
    leaseMs: 15_000,
    logLevel: 'info',
  });
  expect(resolveSettings().redisUrl).toBeUndefined();
  expect(resolveSettings().maxPaddedTokens).toBeUndefined(); // measured, or the preset's
});

test('every setting says what it is for', () => {
  for (const type of Object.values(settingsSchema.shape)) expect(type.description).toMatch(/^[A-Z].*\.$/);
});

test('sizes of batches that make no sense are refused all at once, by name', () => {
  const problems = problemsOf({
    flags: {
      maxWaitMs: -1,
      memoryFraction: 1.2,
      maxPaddedTokens: 128,
      maxTokens: 512,
      windowRows: 0,
      latencyTargetMs: 0,
      device: 'sim:0GB',
    },
  });
  expect((problems as string[]).map((problem) => problem.split(' = ')[0])).toEqual([
    '--device',
    '--memory-fraction',
    '--latency-target-ms',
    '--window-rows',
    '--max-wait-ms',
    '--max-padded-tokens',
  ]);
  expect((problems as string[]).at(-1)).toBe(
    '--max-padded-tokens = 128: one row of maxTokens (512 padded tokens) does not fit; raise it or lower maxTokens',
  );
});

describe('precedence', () => {
  test('flag beats environment beats file beats default', () => {
    const flags = { maxRows: 4 };
    const environment = { SHOAL_MAX_ROWS: '3' };
    const file = { maxRows: 2 };
    expect(resolveSettings({ flags, environment, file }).maxRows).toBe(4);
    expect(resolveSettings({ environment, file }).maxRows).toBe(3);
    expect(resolveSettings({ file }).maxRows).toBe(2);
    expect(resolveSettings({}).leaseMs).toBe(15_000);
  });

  test('sizes that are not given are those of the device that was found, whatever was asked for', () => {
    const auto = resolveSettings({ flags: { device: 'auto' } });
    for (const device of ['cuda:1', 'webgpu:0', 'sim:24GB'])
      expect(sizesOf(auto, device)).toEqual({ maxRows: 16_384, poolTokens: 1_310_720, aheadTokens: 1_310_720 });
    for (const device of ['cpu', 'cpu:avx512', 'sim:8000'])
      expect(sizesOf(resolveSettings({ flags: { device: 'gpu:1' } }), device)).toEqual({
        maxRows: 1_024,
        poolTokens: 24_576,
        aheadTokens: 0,
      });
    expect(sizesOf(resolveSettings({ flags: { maxRows: 7 } }), 'cuda:0')).toEqual({
      maxRows: 7,
      poolTokens: 1_310_720,
      aheadTokens: 1_310_720,
    });
    expect(sizesOf(resolveSettings({ flags: { poolTokens: 99 } }), 'cpu')).toEqual({
      maxRows: 1_024,
      poolTokens: 99,
      aheadTokens: 0,
    });
    expect(sizesOf(resolveSettings({ flags: { poolTokens: 99 } }), 'cuda:0')).toMatchObject({
      poolTokens: 99,
      aheadTokens: 99,
    });
  });

  test('REDIS_URL and LOG_LEVEL are honoured: above the file, below the names of Shoal’s own', () => {
    const known = { REDIS_URL: 'redis://known', LOG_LEVEL: 'debug' };
    expect(
      resolveSettings({ environment: known, file: { redisUrl: 'redis://file', logLevel: 'error' } }),
    ).toMatchObject({ redisUrl: 'redis://known', logLevel: 'debug' });
    expect(
      resolveSettings({ environment: { ...known, SHOAL_REDIS_URL: 'redis://own', SHOAL_LOG_LEVEL: 'warn' } }),
    ).toMatchObject({ redisUrl: 'redis://own', logLevel: 'warn' });
  });

  test('SHOAL_FORCE_CPU=1 beats even the flag, other values of it nothing', () => {
    expect(resolveSettings({ flags: { device: 'gpu:0' }, environment: { SHOAL_FORCE_CPU: '1' } }).device).toBe('cpu');
    expect(resolveSettings({ flags: { device: 'gpu:0' }, environment: { SHOAL_FORCE_CPU: '0' } }).device).toBe('gpu:0');
  });

  test('an empty variable counts as unset', () => {
    expect(
      resolveSettings({ environment: { SHOAL_MODEL: '', REDIS_URL: '', SHOAL_THREADS: '' }, file: { model: 'bge' } }),
    ).toMatchObject({ model: 'bge', threads: 0 });
  });

  test('other variables are none of ours', () => {
    expect(problemsOf({ environment: { PATH: '/bin', SHOAL_FAULT_POINT: 'after-commit', model: 'x' } })).toEqual([]);
  });
});

describe('what is wrong', () => {
  test('all of it is told at once, with where it came from', () => {
    const problems = problemsOf({
      flags: { maxRows: '0', colour: 'red' },
      environment: { SHOAL_LEASE_MS: 'thirty', LOG_LEVEL: 'loud' },
      file: { prefix: 'shoal', device: 'tpu' },
    });
    expect(problems).toHaveLength(6);
    expect(problems).toEqual(
      expect.arrayContaining([
        '--max-rows = "0": must be a whole number from 1 to 65536',
        '--colour: there is no such setting',
        'SHOAL_LEASE_MS = "thirty": must be a whole number from 1000 to 600000',
        'LOG_LEVEL = "loud": must be one of silent, error, warn, info, debug',
        '"prefix" in shoal.config.json = "shoal": must be a hash tag such as {shoal}',
        expect.stringMatching(/^"device" in shoal\.config\.json = "tpu": must be auto, cpu/),
      ]),
    );
    expect(() => resolveSettings({ flags: { maxRows: '0' } })).toThrow(/^a setting is wrong:\n {2}--max-rows/);
    expect(() => resolveSettings({ flags: { maxRows: '0', minRows: '0' } })).toThrow(/^2 settings are wrong:/);
  });

  test('a file that names a setting of a version before is told what takes its place', () => {
    expect(problemsOf({ file: { runtimeBinding: 'native' } })).toEqual([
      expect.stringMatching(
        /^"runtimeBinding" in shoal\.config\.json: there is no such setting any more: .*remove the setting$/,
      ),
    ]);
  });

  test('a variable of a setting that is gone changes nothing, and is named with what takes its place', () => {
    const environment = { SHOAL_RUNTIME_BINDING: 'native', SHOAL_COLOUR: 'red' };
    expect(resolveSettings({ environment })).toEqual(resolveSettings());
    expect(droppedVariables(environment)).toEqual([
      { variable: 'SHOAL_RUNTIME_BINDING', advice: expect.stringContaining('npm package') },
    ]);
    expect(droppedVariables({ SHOAL_RUNTIME_BINDING: '' })).toEqual([]);
  });

  test.each([
    ['maxTokens', 'abc', 'must be a whole number from 8 to 8192'],
    ['maxTokens', 8.5, 'must be a whole number from 8 to 8192'],
    ['httpPort', 99_999, 'must be a whole number from 0 to 65535'],
    ['maxRows', 1e300, 'must be a whole number from 1 to 65536'],
    ['memoryFraction', '2', 'must be a number from 0.05 to 1'],
    ['kind', 5, 'must be one of embed, similarity'],
    ['model', 'm'.repeat(257), 'must be text of 1 to 256 characters'],
    ['cacheDir', true, 'must be text'],
    ['device', 5, 'must be text'],
  ])('%s = %j is told with what may be there', (key, value, said) => {
    expect(problemsOf({ flags: { [key]: value } })).toEqual([`${flagName(key)} = ${JSON.stringify(value)}: ${said}`]);
  });

  test('no setting is refused in the words of the checking library', () => {
    for (const key of Object.keys(settingsSchema.shape)) {
      for (const value of [null, -1, 1e300, 'x y', {}])
        expect(String(problemsOf({ file: { [key]: value } }))).not.toMatch(/Invalid|Too |expected|undefined/);
    }
  });

  test.each([null, true, false, [], [5], {}, '', ' ', '5.5', 5.5, '5x', Number.NaN, 'Infinity', -1])(
    '%j in a file is not a count',
    (value) => {
      expect(problemsOf({ file: { maxWaitMs: value } })).toHaveLength(value === '' ? 0 : 1);
    },
  );

  test.each([
    ['12', 12],
    [' 12 ', 12],
    [12, 12],
    ['0', 0],
  ])('%j is a count', (value, expected) => {
    expect(resolveSettings({ file: { maxWaitMs: value } }).maxWaitMs).toBe(expected);
  });

  test('a password is not told', () => {
    for (const url of [
      'http://user:secret@host',
      'http://user:a"@secret@host',
      'http://host?sentinelPassword=a"secret',
    ])
      expect(JSON.stringify(problemsOf({ environment: { REDIS_URL: url } }))).not.toContain('secret');
  });
});

describe('redaction', () => {
  test.each([
    ['redis://user:secret@host:6379/0', 'redis://***@host:6379/0'],
    ['rediss://:secret@host', 'rediss://***@host'],
    ['redis://:se/cr@et@host', 'redis://***@host'],
    ['redis://:sec@ret@host:1', 'redis://***@host:1'],
    [
      'redis+sentinel://u:p@host/m?sentinelPassword=hu@sh&db=1',
      'redis+sentinel://***@host/m?sentinelPassword=***&db=1',
    ],
    ['redis+sentinel://host/m?sentinelPassword=hu"sh', 'redis+sentinel://host/m?sentinelPassword=***'],
    ['redis://host:6379', 'redis://host:6379'],
    ['unix:///run/redis.sock', 'unix:///run/redis.sock'],
  ])('%s is logged as %s', (redisUrl, shown) => {
    expect(redactSettings(resolveSettings({ flags: { redisUrl } })).redisUrl).toBe(shown);
  });

  test('passwords of payload servers are in no log and in no message', () => {
    const payloadServers = 'redis://a:6379,redis://user:secret@b:6379,file:///mnt/shoal,s3://b/a,s3://key:secret@b/a';
    const shown = redactSettings(resolveSettings({ flags: { payloadServers } })).payloadServers;
    expect(shown).toMatch(/^redis:\/\/a:6379,redis:\/\/\*\*\*@b:6379,file:\/\/\/mnt\/shoal,s3:\/\/b\/a,/);
    expect(shown).not.toContain('secret');
    const problems = JSON.stringify(
      problemsOf({ flags: { payloadServers: `${payloadServers},http://user:secret@c` } }),
    );
    expect(problems).toContain('payload-servers');
    expect(problems).not.toContain('secret');
  });

  test('a secret is in no log and in no message', () => {
    const secret = `whsec_${'A'.repeat(44)}`;
    expect(redactSettings(resolveSettings({ flags: { webhookSecret: secret } })).webhookSecret).toBe('***');
    const problems = JSON.stringify(problemsOf({ flags: { webhookSecret: `${secret}!` } }));
    expect(problems).toContain('webhook-secret = ***: must be');
    expect(problems).not.toContain(secret);
  });

  test('nothing is changed where there is nothing to hide', () => {
    const settings = resolveSettings();
    expect(redactSettings(settings)).toBe(settings);
  });
});
