// By night: TLS in front of HTTP and the dashboard by the nginx that infra/proxy/nginx.conf sets up, with certificates of
// an authority made for the test. Both are reached under their names alone, HTTP asks for keys behind it as before, the
// dashboard for a password, and metrics stay inside.

import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { request } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { programOf } from '@shoal/core/testing';
import { freePort, startTestServer, type TestServer } from '@shoal/queue/testing';
import { aptTools, hasProgram, type Had } from './tools-of-others.ts';

const CONFIGURATION = join(import.meta.dirname, '../../infra/proxy/nginx.conf');
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const folder = mkdtempSync(join(tmpdir(), 'shoal-proxy-'));
const file = (name: string): string => join(folder, name);
const processes: ChildProcess[] = [];
let has: Had<undefined> = { why: 'by day' };
let server: TestServer;
let port: number;

beforeAll(async () => {
  if (!isNight) return;
  has = await aptTools(['nginx', 'openssl'], ['nginx-light', 'openssl']);
  if ('why' in has) return console.log(`the proxy is not tried, because ${has.why}`);
  server = await startTestServer();
  const [http, board] = await Promise.all([
    start('producer', { SHOAL_MODEL: 'tiny-random', SHOAL_HTTP_PORT: '0', SHOAL_HTTP_ACCESS: 'keys' }),
    start('dashboard', {
      SHOAL_DASHBOARD_PORT: '0',
      SHOAL_DASHBOARD_PROXY_HEADER: 'x-forwarded-user',
      SHOAL_DASHBOARD_PROXIES: '127.0.0.1',
    }),
  ]);
  makeCertificate();
  port = await freePort();
  const configuration = readFileSync(CONFIGURATION, 'utf8')
    .replaceAll('listen 443 ssl', `listen 127.0.0.1:${port} ssl`)
    .replaceAll('/etc/shoal/tls', folder)
    .replaceAll('127.0.0.1:8787', new URL(http).host)
    .replaceAll('127.0.0.1:8788', new URL(board).host);
  chmodSync(folder, 0o755); // its workers are another user
  for (const name of ['body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']) mkdirSync(file(name));
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map((name, at) => `  ${name}_temp_path ${file(['body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'][at]!)};\n`)
    .join('');
  writeFileSync(file('nginx.conf'), configuration.replace('http {\n', `http {\n${temporary}  access_log off;\n`));
  const args = ['-p', folder, '-c', file('nginx.conf'), '-e', file('error.log')];
  processes.push(spawn('nginx', [...args, '-g', `daemon off; pid ${file('pid')};`], { stdio: 'ignore' }));
  await vi.waitFor(() => ask('embed.example.com', '/livez'), { timeout: 60_000 });
});

afterAll(async () => {
  for (const child of processes) child.kill('SIGTERM');
  await server?.stop();
  rmSync(folder, { recursive: true, force: true });
});

function makeCertificate(): void {
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '9'];
  const names = 'subjectAltName=DNS:embed.example.com,DNS:board.example.com';
  const made = ['-keyout', file('privkey.pem'), '-out', file('fullchain.pem'), '-subj', '/CN=shoal', '-addext', names];
  execFileSync('openssl', ['req', '-x509', ...key, ...made], { stdio: 'pipe' });
  writeFileSync(file('board.htpasswd'), 'night:{PLAIN}shift\n');
}

/** The address of a service that knows the names of the proxy. */
function start(app: 'producer' | 'dashboard', environment: Readonly<Record<string, string>>): Promise<string> {
  const { main, execArgv } = programOf(app);
  const child = spawn(process.execPath, [...execArgv, main], {
    env: {
      ...process.env,
      REDIS_URL: server.url,
      SHOAL_HTTP_HOSTS: 'embed.example.com,board.example.com',
      ...environment,
    },
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  processes.push(child);
  return new Promise((resolve, reject) => {
    child.on('message', (told: { readonly kind?: string; readonly url?: string }) => {
      if (told.kind === 'ready') resolve(told.url!);
    });
    child.once('exit', (code) => reject(new Error(`${app} ended with ${code}`)));
  });
}

/** The status of an answer through the proxy, whose certificate is looked at. */
function ask(host: string, path: string, auth?: string): Promise<number | undefined> {
  const address = { host: '127.0.0.1', port, servername: host, ca: readFileSync(file('fullchain.pem')) };
  return new Promise((resolve, reject) => {
    request({ ...address, path, headers: { host }, ...(auth === undefined ? {} : { auth }) }, (response) => {
      response.resume();
      resolve(response.statusCode);
    })
      .on('error', reject)
      .end();
  });
}

describe.skipIf(!isNight)('(nightly) nginx as infra/proxy sets it up', () => {
  test('HTTP answers under its name and asks for a key behind it', async (context) => {
    if ('why' in has || !hasProgram('nginx')) return context.skip();
    expect(await ask('embed.example.com', '/readyz')).toBe(200);
    expect(await ask('embed.example.com', '/v1/models')).toBe(401);
  });

  test('metrics are not passed on', async (context) => {
    if ('why' in has) return context.skip();
    expect(await ask('embed.example.com', '/metrics')).toBe(404);
  });

  test('the dashboard asks for a password', async (context) => {
    if ('why' in has) return context.skip();
    expect(await ask('board.example.com', '/')).toBe(401);
    expect(await ask('board.example.com', '/', 'night:shift')).toBe(200);
  });

  test('a name that the certificate does not have is refused by who asks', async (context) => {
    if ('why' in has) return context.skip();
    await expect(ask('other.example.com', '/livez')).rejects.toThrow(/altnames/);
  });
});
