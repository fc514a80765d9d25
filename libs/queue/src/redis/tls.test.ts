// TLS as it is: certificates by openssl, a proxy of node:tls in front of a real server, and whoever connects through it.

import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect, type AddressInfo, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer, type TlsOptions } from 'node:tls';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { encodeTexts } from '@shoal/contract';
import { JobProducer } from '../producer/job-producer.ts';
import { ResultReader } from '../producer/result-reader.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { closeConnection, openConnection, untilReady } from './connection.ts';

const SIGNED = ['-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial'];
const folder = mkdtempSync(join(tmpdir(), 'shoal-tls-'));
const why = openssl();
if (why !== undefined) console.log(`TLS is not tried: ${why}`);

let server: TestServer;
const proxies: Server[] = [];

function run(...args: readonly string[]): void {
  execFileSync('openssl', args, { cwd: folder, stdio: 'pipe' });
}

/** Certificates in the folder, or why there are none. */
function openssl(): string | undefined {
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  try {
    run('req', '-x509', ...key, '-keyout', 'ca.key', '-out', 'ca.pem', '-subj', '/CN=our authority', '-days', '9');
    for (const [name, subject, san, days] of [
      ['server', 'queue', 'DNS:localhost,IP:127.0.0.1', '9'],
      ['other', 'other', 'DNS:queue.example', '9'],
      ['client', 'worker', 'DNS:worker', '9'],
      ['late', 'late', 'DNS:localhost,IP:127.0.0.1', '-1'],
    ] as const) {
      writeFileSync(join(folder, `${name}.cnf`), `subjectAltName=${san}\n`);
      run('req', ...key, '-keyout', `${name}.key`, '-out', `${name}.csr`, '-subj', `/CN=${subject}`);
      run(
        'x509',
        '-req',
        '-in',
        `${name}.csr`,
        ...SIGNED,
        '-out',
        `${name}.pem`,
        '-extfile',
        `${name}.cnf`,
        '-days',
        days,
      );
    }
    return undefined;
  } catch (error) {
    return `openssl makes no certificates here (${(error as Error).message.slice(0, 300)})`;
  }
}

beforeAll(async () => {
  server = await startTestServer();
});

afterAll(async () => {
  for (const proxy of proxies) proxy.close();
  await server.stop();
  rmSync(folder, { recursive: true });
});

const file = (name: string): string => join(folder, name);

/** A TLS port in front of the server, with this certificate. Returns host:port. */
async function port(certificate: string, options: TlsOptions = {}): Promise<string> {
  const to = new URL(server.url);
  const proxy = createServer(
    { cert: readFileSync(file(`${certificate}.pem`)), key: readFileSync(file(`${certificate}.key`)), ...options },
    (socket) => {
      const behind = connect(Number(to.port), to.hostname);
      socket.on('error', () => behind.destroy());
      behind.on('error', () => socket.destroy());
      socket.pipe(behind).pipe(socket);
    },
  );
  proxy.on('tlsClientError', () => undefined);
  proxy.listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  proxies.push(proxy);
  return `127.0.0.1:${(proxy.address() as AddressInfo).port}`;
}

const mutual = (): TlsOptions => ({ requestCert: true, rejectUnauthorized: true, ca: readFileSync(file('ca.pem')) });

async function failureOf(url: string): Promise<string> {
  try {
    const connection = openConnection({ url, name: 'test' });
    try {
      await untilReady(connection, url, { waitMs: 2_000 });
      return 'none';
    } finally {
      await closeConnection(connection);
    }
  } catch (error) {
    return (error as Error).message;
  }
}

const isTried = why === undefined && process.env['SHOAL_TEST_TOPOLOGY'] === undefined;

test.skipIf(!isTried)('jobs and results go through TLS with an own authority and a certificate of ours', async () => {
  const where = await port('server', mutual());
  const redisUrl = `rediss://${where}?ca=${file('ca.pem')}&cert=${file('client.pem')}&key=${file('client.key')}`;
  const producer = await JobProducer.connect({ redisUrl, queue: 'embed-tls' });
  const reader = await ResultReader.connect({ redisUrl, queue: 'embed-tls', replyName: 'tls' });
  const job = {
    jobId: 'a~1',
    data: { v: 1, fingerprint: '00000000000000aa', input: { form: 'texts', rows: 1 } } as const,
    input: encodeTexts(['a']),
  };
  expect(await producer.add([job])).toMatchObject([{ outcome: 'added' }]);
  expect((await producer.counts()).waiting).toBe(1);
  await Promise.all([reader.close(), producer.close()]);
});

test.skipIf(!isTried)('a name in the certificate that is not the host can be said', async () => {
  const where = await port('other');
  expect(await failureOf(`rediss://${where}?ca=${file('ca.pem')}`)).toMatch(/for another name.*redisServerName/);
  expect(await failureOf(`rediss://${where}?ca=${file('ca.pem')}&serverName=queue.example`)).toBe('none');
});

test.skipIf(!isTried)('every handshake that fails has its cure', async () => {
  const [plain, asking, late] = [await port('server'), await port('server', mutual()), await port('late')];
  const ca = `ca=${file('ca.pem')}`;
  const tls12 = await port('server', { ...mutual(), maxVersion: 'TLSv1.2' });
  expect(await failureOf(`rediss://${plain}`)).toMatch(/verify the first certificate\. .*set redisCa/);
  expect(await failureOf(`rediss://${asking}?${ca}`)).toMatch(/set redisCert and redisKey/);
  expect(await failureOf(`rediss://${tls12}?${ca}`)).toMatch(/set redisCert and redisKey/);
  expect(await failureOf(`rediss://${late}?${ca}`)).toMatch(/has expired/);
  expect(await failureOf(server.url.replace('redis://', 'rediss://'))).toMatch(/If it speaks no TLS, write redis:\/\//);
  expect(await failureOf(`redis://${plain}`)).toMatch(/if it speaks TLS, write rediss:\/\//);
});

test.skipIf(!isTried)('a file that is none is named before anything connects', async () => {
  writeFileSync(file('text.pem'), 'hello');
  const pair = (cert: string, key: string) => `rediss://h?cert=${file(cert)}&key=${file(key)}`;
  expect(await failureOf(`rediss://h?ca=${file('none.pem')}`)).toMatch(/redisCa cannot be read: ENOENT/);
  expect(await failureOf(`rediss://h?ca=${file('text.pem')}`)).toMatch(/redisCa, .*text\.pem, is not PEM/);
  expect(await failureOf(`rediss://h?cert=${file('client.pem')}`)).toMatch(/belong together/);
  expect(await failureOf(pair('client.pem', 'server.key'))).toMatch(/do not make a certificate/);
  expect(await failureOf(`redis://h?ca=${file('ca.pem')}`)).toMatch(/"ca" is about TLS, which begins with rediss/);
});
