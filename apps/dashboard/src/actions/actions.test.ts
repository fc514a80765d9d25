// Who may do what on the dashboard, and that it happens: with keys, behind a proxy, and with neither. The queue server is
// a real one.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { makeApiKey } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { FileApiKeys, Quarantine } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createDashboard, type Dashboard, type DashboardOptions } from '../dashboard.ts';
import { PREFIX, QUEUE, SimulatedFleet } from '../testing/simulated-fleet.ts';

let server: TestServer;
let folder: string;
let keyFile: string;
let fleet: SimulatedFleet;
let dashboard: Dashboard | undefined;
let log: RecordingLogger;
const keys = { viewer: '', operator: '' };

beforeAll(async () => {
  server = await startTestServer();
  folder = await mkdtemp(join(tmpdir(), 'shoal-dashboard-'));
});
afterAll(async () => {
  await server.stop();
  await rm(folder, { recursive: true });
});
beforeEach(async () => {
  await server.command('FLUSHALL');
  fleet = new SimulatedFleet(server);
  await fleet.queue().waitUntilReady();
  log = new RecordingLogger();
  keyFile = join(folder, `${Math.random()}.json`);
  keys.viewer = await makeKey('vera', 'view');
  keys.operator = await makeKey('otto', 'operate');
});
afterEach(async () => {
  await dashboard?.stop();
  dashboard = undefined;
  await fleet.stop();
});

async function makeKey(name: string, scope: 'view' | 'operate', more: { expiresMs?: number } = {}): Promise<string> {
  const { text, kept } = makeApiKey({ name, scopes: [scope], ...more }, Date.now());
  await new FileApiKeys(keyFile).add(kept);
  return text;
}

async function open(options: Partial<DashboardOptions> = { keyFile }): Promise<string> {
  dashboard = await createDashboard({
    redisUrl: server.url,
    prefix: PREFIX,
    host: '127.0.0.1',
    port: 0,
    log,
    ...options,
  });
  return dashboard.url;
}

/** A browser without a screen: keeps its cookie, sends forms from pages of this dashboard. */
class Person {
  private cookie = '';
  private readonly headers: Readonly<Record<string, string>>;

  constructor(headers: Readonly<Record<string, string>> = {}) {
    this.headers = headers;
  }

  async get(
    path: string,
  ): Promise<{ readonly status: number; readonly text: string; readonly location: string | null }> {
    return this.ask(path, { headers: { accept: 'text/html' } });
  }

  async post(
    path: string,
    fields: readonly (readonly [string, string])[],
    origin = dashboard!.url,
  ): Promise<{ readonly status: number; readonly text: string; readonly location: string | null }> {
    const body = new URLSearchParams(fields.map(([name, value]): [string, string] => [name, value]));
    return this.ask(path, { method: 'POST', body, headers: { origin } });
  }

  async logIn(key: string): Promise<number> {
    return (await this.post('/login', [['key', key]])).status;
  }

  /** Confirms what a page asks for. */
  async confirm(path: string): Promise<{ readonly status: number; readonly text: string; readonly asked: string }> {
    const asked = await this.get(path);
    const done = await this.post(path.split('?')[0]!, fieldsIn(asked.text));
    return { ...done, asked: plain(asked.text) };
  }

  private async ask(
    path: string,
    init: RequestInit,
  ): Promise<{ readonly status: number; readonly text: string; readonly location: string | null }> {
    const headers = { ...this.headers, cookie: this.cookie, ...(init.headers as Record<string, string>) };
    const response = await fetch(`${dashboard!.url}${path}`, { ...init, headers, redirect: 'manual' });
    const set = response.headers.get('set-cookie');
    if (set !== null) this.cookie = set.split(';')[0]!;
    return { status: response.status, text: await response.text(), location: response.headers.get('location') };
  }
}

function fieldsIn(markup: string): [string, string][] {
  const form = /<form method="post" action="\/act\/[^]*?<\/form>/.exec(markup)?.[0] ?? '';
  return [...form.matchAll(/name="([^"]*)"\s+value="([^"]*)"/g)].map(([, name, value]) => [name!, value!]);
}

function plain(markup: string): string {
  return markup.replaceAll(/<[^>]*>/g, ' ').replaceAll(/\s+/g, ' ');
}

async function audits(): Promise<readonly Record<string, unknown>[]> {
  const entries = (await server.command('XRANGE', `${PREFIX}:audit`, '-', '+')) as [string, [string, string]][];
  return entries.map(([, [, entry]]) => JSON.parse(entry) as Record<string, unknown>);
}

const isPaused = async (): Promise<boolean> => fleet.queue().isPaused();

async function person(key: string): Promise<Person> {
  const one = new Person();
  expect(await one.logIn(key)).toBe(303);
  return one;
}

describe('with keys', () => {
  test('nobody sees anything without one, and a wrong one is refused', async () => {
    await open();
    const nobody = new Person();
    expect(await nobody.get('/')).toMatchObject({ status: 303, location: '/login?next=%2F' });
    expect((await fetch(`${dashboard!.url}/queues/api/queues`)).status).toBe(401);
    expect((await fetch(`${dashboard!.url}/events`)).status).toBe(401);
    expect(await nobody.logIn(keys.operator.slice(0, -1))).toBe(401);
    expect(await nobody.logIn(await makeKey('late', 'view', { expiresMs: Date.now() - 1 }))).toBe(401);
    expect(await nobody.get('/login?next=//evil.example/')).toMatchObject({
      status: 200,
      text: expect.stringContaining('name="next" value="/"'),
    });
  });

  test('a viewer sees no actions and is refused each', async () => {
    await open();
    const viewer = await person(keys.viewer);
    await fleet.add({ workerId: 'one-00000001' });
    const { text } = await viewer.get('/');
    expect(text).toContain('vera');
    expect(text).not.toContain('/act/');
    for (const name of ['pause', 'resume', 'drain', 'claim', 'retry', 'cancel', 'return', 'drop']) {
      const path = `/act/${name}`;
      expect((await viewer.get(`${path}?queue=${QUEUE}&worker=all&id=a`)).status).toBe(403);
      expect(
        (
          await viewer.post(path, [
            ['queue', QUEUE],
            ['worker', 'all'],
            ['id', 'a'],
            ['csrf', tokenIn(text)],
          ])
        ).status,
      ).toBe(403);
    }
    expect(await isPaused()).toBe(false);
    expect(await server.command('SMEMBERS', `${PREFIX}:drained:${QUEUE}`)).toEqual([]);
    expect(await audits()).toEqual([]);
  });

  test('an operator pauses and resumes a queue, with counts before and a line in the audit after', async () => {
    await open();
    const operator = await person(keys.operator);
    await fleet.queue().addBulk([1, 2, 3].map((n) => ({ name: 'embed', data: {}, opts: { jobId: `job-${n}` } })));
    const paused = await operator.confirm(`/act/pause?queue=${QUEUE}`);
    expect(paused.asked).toContain('3 jobs that wait will not be claimed');
    expect(paused).toMatchObject({ status: 200, text: expect.stringContaining(`${QUEUE} is paused`) });
    expect(await isPaused()).toBe(true);
    await operator.confirm(`/act/resume?queue=${QUEUE}`);
    expect(await isPaused()).toBe(false);
    const who = expect.stringMatching(/^otto \(key [a-z0-9]{10}\)$/);
    expect(await audits()).toMatchObject([
      { who, program: 'dashboard', what: 'queue pause', queue: QUEUE, count: 3 },
      { who, program: 'dashboard', what: 'queue resume', queue: QUEUE },
    ]);
  });

  test('a worker is drained and let claim again', async () => {
    await open();
    const operator = await person(keys.operator);
    await fleet.add({ workerId: 'one-00000001' });
    const drained = await operator.confirm(`/act/drain?queue=${QUEUE}&worker=one-00000001`);
    expect(drained.asked).toContain('1 worker claims nothing more until resumed, and 12 claimed jobs are finished');
    expect(await server.command('SMEMBERS', `${PREFIX}:drained:${QUEUE}`)).toEqual(['one-00000001']);
    await operator.confirm(`/act/claim?queue=${QUEUE}&worker=one-00000001`);
    expect(await server.command('SMEMBERS', `${PREFIX}:drained:${QUEUE}`)).toEqual([]);
    expect(await operator.get(`/act/drain?queue=${QUEUE}&worker=nobody`)).toMatchObject({ status: 400 });
    expect((await audits()).map(({ ids }) => ids)).toEqual([['one-00000001'], ['one-00000001']]);
  });

  test('failed jobs are retried, waiting ones cancelled', async () => {
    await open();
    const operator = await person(keys.operator);
    await fleet.queue().add('embed', { v: 1, texts: ['a'] }, { jobId: 'failed-job' });
    await fleet.fail(QUEUE, 1, 'INFERENCE_FAILED: the device had a bad day');
    const retried = await operator.confirm(`/act/retry?queue=${QUEUE}`);
    expect(retried.asked).toContain('1 failed job waits again');
    expect(retried.text).toContain('1 job wait again');
    const cancelled = await operator.confirm(`/act/cancel?queue=${QUEUE}&id=failed-job`);
    expect(cancelled.text).toContain('1 job cancelled');
    expect((await audits()).map(({ what, ids }) => [what, ids])).toEqual([
      ['queue retry', ['failed-job']],
      ['queue cancel', ['failed-job']],
    ]);
  });

  test('what is confirmed is dropped from quarantine, and nothing that came meanwhile', async () => {
    await open();
    const operator = await person(keys.operator);
    const quarantine = new Quarantine({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
    const put = async (id: string): Promise<void> =>
      quarantine.put(
        QUEUE,
        { id, name: 'embed', data: { v: 1, texts: ['x'] }, timestamp: 1 },
        { code: 'QUARANTINED', message: 'm' },
      );
    await put('poison-1');
    await put('poison-2');
    const asked = await operator.get(`/act/drop?queue=${QUEUE}`);
    expect(plain(asked.text)).toContain('2 jobs and what was to be computed are deleted for good');
    await put('poison-3');
    const done = await operator.post('/act/drop', fieldsIn(asked.text));
    expect(done.text).toContain('2 jobs dropped');
    expect((await quarantine.list()).map(({ jobId }) => jobId)).toEqual(['poison-3']);
    await operator.confirm(`/act/return?queue=${QUEUE}&id=poison-3`);
    expect(await quarantine.list()).toEqual([]);
    expect(await fleet.queue().getJobCountByTypes('waiting')).toBe(1);
    await quarantine.close();
  });

  test('a form of another page, of another session or without a token does nothing', async () => {
    await open();
    const operator = await person(keys.operator);
    const { text } = await operator.get(`/act/pause?queue=${QUEUE}`);
    const fields = fieldsIn(text);
    expect((await operator.post('/act/pause', fields, 'http://evil.example')).status).toBe(403);
    expect((await operator.post('/act/pause', fields, 'null')).status).toBe(403);
    expect((await operator.post('/act/pause', [['queue', QUEUE]])).status).toBe(403);
    const other = await person(keys.operator);
    expect((await other.post('/act/pause', fields)).status).toBe(403);
    expect(await isPaused()).toBe(false);
  });

  test('a key that is revoked ends its sessions, and so does logging out', async () => {
    await open();
    const [operator, viewer] = [await person(keys.operator), await person(keys.viewer)];
    await new FileApiKeys(keyFile).revoke(keys.operator.split('_')[1]!, Date.now());
    await expect.poll(async () => (await operator.get('/')).status, { timeout: 10_000 }).toBe(303);
    const { text } = await viewer.get('/');
    expect(await viewer.post('/logout', [['csrf', tokenIn(text)]])).toMatchObject({ status: 303, location: '/login' });
    expect((await viewer.get('/')).status).toBe(303);
  });

  test('no key is in the log, and the cookie is kept from scripts and other sites', async () => {
    const url = await open();
    await person(keys.operator);
    await new Person().logIn(`${keys.viewer}x`);
    const said = JSON.stringify(log);
    for (const key of Object.values(keys)) expect(said).not.toContain(key.slice(-20));
    const response = await fetch(`${url}/login`, {
      method: 'POST',
      body: new URLSearchParams({ key: keys.viewer }),
      headers: { origin: url },
      redirect: 'manual',
    });
    expect(response.headers.get('set-cookie')).toMatch(/; HttpOnly; SameSite=Strict;/);
  });

  test('a file without keys of the dashboard is refused', async () => {
    keyFile = join(folder, 'empty.json');
    await expect(open()).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining('shoal key create'),
    });
  });
});

function tokenIn(markup: string): string {
  return /name="csrf" value="([^"]*)"/.exec(markup)?.[1] ?? '';
}

describe('behind a proxy', () => {
  const settings = { proxyHeader: 'x-forwarded-user', proxies: '127.0.0.1', operators: 'anna, group-b' };

  test('who it names looks, and acts where the settings say so', async () => {
    await open(settings);
    expect((await new Person().get('/')).status).toBe(401);
    const ben = new Person({ 'x-forwarded-user': 'ben' });
    expect((await ben.get('/')).text).toContain('ben, viewer');
    expect((await ben.get(`/act/pause?queue=${QUEUE}`)).status).toBe(403);
    const anna = new Person({ 'x-forwarded-user': 'anna' });
    expect((await anna.confirm(`/act/pause?queue=${QUEUE}`)).status).toBe(200);
    expect(await audits()).toMatchObject([{ who: 'anna', what: 'queue pause' }]);
    const token = fieldsIn((await anna.get(`/act/resume?queue=${QUEUE}`)).text);
    const cleo = new Person({ 'x-forwarded-user': 'cleo, group-b' });
    expect((await cleo.post('/act/resume', token)).status).toBe(403);
  });

  test('from other addresses the header means nothing', async () => {
    await open({ ...settings, proxies: '10.0.0.0/8' });
    expect((await new Person({ 'x-forwarded-user': 'anna' }).get('/')).status).toBe(401);
  });

  test('addresses that are none are refused, and so is no address', async () => {
    await expect(open({ ...settings, proxies: '10.0.0.0/33' })).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
    await expect(open({ ...settings, proxies: undefined })).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining('anybody could write that header'),
    });
  });
});

test('without keys and proxy everybody looks and nobody acts', async () => {
  await open({});
  const anybody = new Person();
  expect((await anybody.get('/')).status).toBe(200);
  expect((await anybody.get(`/act/pause?queue=${QUEUE}`)).status).toBe(403);
  expect(
    (
      await anybody.post('/act/pause', [
        ['queue', QUEUE],
        ['csrf', ''],
      ])
    ).status,
  ).toBe(403);
});
