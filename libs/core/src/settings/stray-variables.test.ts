import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { environmentName, resolveSettings, strayVariables } from './config.ts';
import { settingsSchema } from './schema.ts';
import { isServiceLink } from './stray-variables.ts';

const KEYS = Object.keys(settingsSchema.shape);
const strays = (environment: Record<string, string>): readonly string[] => strayVariables(environment);

/** What a pod gets for services "shoal-http", "shoal-redis-url" and "shoal-metrics" of its namespace. */
const LINKS = {
  SHOAL_HTTP_SERVICE_HOST: '10.96.0.12',
  SHOAL_HTTP_SERVICE_PORT: '8787',
  SHOAL_HTTP_SERVICE_PORT_HTTP: '8787',
  SHOAL_HTTP_PORT: 'tcp://10.96.0.12:8787',
  SHOAL_HTTP_PORT_8787_TCP: 'tcp://10.96.0.12:8787',
  SHOAL_HTTP_PORT_8787_TCP_PROTO: 'tcp',
  SHOAL_HTTP_PORT_8787_TCP_PORT: '8787',
  SHOAL_HTTP_PORT_8787_TCP_ADDR: '10.96.0.12',
  SHOAL_REDIS_URL_SERVICE_HOST: '10.96.0.13',
  SHOAL_REDIS_URL_PORT_6379_TCP_ADDR: '10.96.0.13',
  SHOAL_METRICS_PORT: 'tcp://10.96.0.14:9100',
  SHOAL_DASHBOARD_PORT: 'udp://[fd00::1]:53',
};

describe('what Kubernetes says of the services of a namespace', () => {
  test('is no setting: the defaults hold', () => {
    const { httpPort, metricsPort, dashboardPort, redisUrl } = resolveSettings({ environment: LINKS });
    const defaults = resolveSettings({});
    expect({ httpPort, metricsPort, dashboardPort, redisUrl }).toEqual({
      httpPort: defaults.httpPort,
      metricsPort: defaults.metricsPort,
      dashboardPort: defaults.dashboardPort,
      redisUrl: undefined,
    });
  });

  test('is said once for all of it, with the line that keeps it out', () => {
    const said = strays(LINKS);
    expect(said).toHaveLength(1);
    expect(said[0]).toMatch(/^SHOAL_DASHBOARD_PORT, .* and 9 more: Kubernetes .*enableServiceLinks: false/);
  });

  test('a setting of the same name that a person wrote is one', () => {
    expect(resolveSettings({ environment: { SHOAL_HTTP_PORT: '8080' } }).httpPort).toBe(8080);
    expect(isServiceLink('SHOAL_HTTP_PORT', '8080')).toBe(false);
    expect(strays({ SHOAL_HTTP_PORT: '8080' })).toEqual([]);
    expect(() => resolveSettings({ environment: { SHOAL_HTTP_PORT: 'http://x:1' } })).toThrow(/SHOAL_HTTP_PORT/);
  });
});

describe('a name that begins as ours do', () => {
  test.each([
    ['SHOAL_MAX_PADED_TOKENS', 'SHOAL_MAX_PADDED_TOKENS'],
    ['SHOAL_DEVCIE', 'SHOAL_DEVICE'],
    ['SHOAL_REDIS_URI', 'SHOAL_REDIS_URL'],
    ['SHOAL_LEASEMS', 'SHOAL_LEASE_MS'],
    ['SHOAL_FORCE_CPUS', 'SHOAL_FORCE_CPU'],
  ])('%s is said to be no setting, and which one is like it', (name, meant) => {
    expect(strays({ [name]: '1' })).toEqual([expect.stringMatching(new RegExp(`did you mean ${meant}\\?$`))]);
  });

  test('and is like none is said to be no setting, with the page that lists them', () => {
    expect(strays({ SHOAL_COMPANY_PARTY: 'x', SHOALS: 'y', PATH: 'z' })).toEqual([
      'SHOAL_COMPANY_PARTY is no setting of this version and changes nothing; docs/settings.md lists all settings',
    ]);
  });

  test('and is empty, a setting or one of the switches says nothing', () => {
    const page = readFileSync(new URL('../../../../docs/switches.md', import.meta.url), 'utf8');
    const switches = [...page.matchAll(/`(SHOAL_[A-Z0-9_]+)`/g)].map(([, name]) => name!);
    expect(switches.length).toBeGreaterThan(20);
    const settings = KEYS.map(environmentName);
    const all = Object.fromEntries([...switches, ...settings].map((name) => [name, '1']));
    expect(strays({ ...all, SHOAL_TYPO: '' })).toEqual([]);
  });
});
