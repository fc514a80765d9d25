// For tests: a server of S3's protocol, moto's, from PyPI; its folder stays in the cache. At night, and by day where it is
// in the cache already, because it takes minutes to come the first time.

import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { cacheFolder } from '@shoal/core';
import { isMade, makeOnce } from '@shoal/fetch/testing';

const MOTO = '5.2.5';

/** What it lets in. */
const CREDENTIALS = { AWS_ACCESS_KEY_ID: 'key', AWS_SECRET_ACCESS_KEY: 'secret', AWS_REGION: 'us-east-1' };

/** Of the environment of who asks it. */
export type S3Credentials = Readonly<Record<string, string>>;

export interface S3Server {
  readonly endpoint: string;
  readonly pid: number;
  readonly credentials: S3Credentials;
  /** Empty, and again after everything was lost. */
  makeBucket(name: string): Promise<void>;
  /** Asks for a path of it (`bucket/key?…`) as somebody whom it lets in. Rejects where it refuses. */
  ask(path: string, request?: RequestInit): Promise<Response>;
  /** What a bucket holds, by key. */
  objects(bucket: string): Promise<ReadonlyMap<string, Buffer>>;
  /** Whatever is there. */
  write(bucket: string, key: string, bytes: Uint8Array<ArrayBuffer>): Promise<void>;
  /** What it holds is gone, and its buckets are there again. */
  empty(): Promise<void>;
  /** Of a user who may do this alone (`s3:GetObject`, …); until `trustAll` everybody's rights are looked at. */
  onlyAllow(actions: readonly string[]): Promise<S3Credentials>;
  trustAll(): Promise<void>;
  /** Freezes it, and lets it go on: a store that is away. */
  pause(): void;
  resume(): void;
  kill9(): Promise<void>;
  /** After `kill9`: at its address, with its buckets, which are empty. */
  restart(): Promise<void>;
  stop(): Promise<void>;
}

/** Whether a test may have one: by day none is fetched. */
export const mayHaveS3Server = process.env['SHOAL_TEST_NIGHTLY'] !== undefined || isMade(folderOfMoto());

function folderOfMoto(): string {
  return join(cacheFolder(process.env['SHOAL_CACHE_DIR']), `test-moto-${MOTO}`);
}

/** What it holds is gone when it stops. */
export async function startS3Server(): Promise<S3Server> {
  const folder = folderOfMoto();
  await makeOnce(folder, () => {
    execFileSync('python3', ['-m', 'venv', folder], { stdio: 'inherit' });
    execFileSync(join(folder, 'bin/python'), ['-m', 'pip', 'install', '--quiet', `moto[s3,server]==${MOTO}`], {
      stdio: 'inherit',
      timeout: 500_000,
    });
  });
  const server = new Moto(join(folder, 'bin/python'));
  await server.start();
  return server;
}

class Moto implements S3Server {
  readonly credentials = CREDENTIALS;
  private readonly python: string;
  private readonly buckets = new Set<string>();
  private process: ChildProcess | undefined;
  private port = 0;
  private users = 0;

  constructor(python: string) {
    this.python = python;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get pid(): number {
    return this.process!.pid!;
  }

  async start(): Promise<void> {
    const moto = spawn(this.python, ['-m', 'moto.server', '-H', '127.0.0.1', '-p', String(this.port)], {
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    this.process = moto;
    let said = '';
    this.port = await new Promise<number>((resolve, reject) => {
      moto.once('exit', () => reject(new Error(`moto has ended: ${said}`)));
      moto.stderr.on('data', (chunk) => {
        said = (said + String(chunk)).slice(-2_000); // it names every request
        const port = /Running on http:\/\/127\.0\.0\.1:(\d+)/.exec(said)?.[1];
        if (port !== undefined) resolve(Number(port));
      });
    });
  }

  async ask(path: string, request: RequestInit = {}): Promise<Response> {
    const found = await fetch(`${this.endpoint}/${path}`, { ...request, headers: { authorization: asOf('s3') } });
    if (!found.ok) throw new Error(`moto answers ${found.status} to ${path}: ${await found.text()}`);
    return found;
  }

  async makeBucket(name: string): Promise<void> {
    await this.ask(name, { method: 'PUT' });
    this.buckets.add(name);
  }

  async objects(bucket: string): Promise<ReadonlyMap<string, Buffer>> {
    const list = await (await this.ask(`${bucket}?list-type=2`)).text();
    const keys = [...list.matchAll(/<Key>(.*?)<\/Key>/g)].map(([, key]) => key!);
    const read = async (key: string): Promise<[string, Buffer]> => [
      key,
      Buffer.from(await (await this.ask(`${bucket}/${key}`)).arrayBuffer()),
    ];
    return new Map(await Promise.all(keys.map(read)));
  }

  async write(bucket: string, key: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    await this.ask(`${bucket}/${key}`, { method: 'PUT', body: bytes });
  }

  async empty(): Promise<void> {
    await this.tell('reset', '');
    for (const name of this.buckets) await this.makeBucket(name);
  }

  async onlyAllow(actions: readonly string[]): Promise<S3Credentials> {
    await this.trustAll();
    const user = `user-${++this.users}`;
    await this.iam({ Action: 'CreateUser', UserName: user });
    const made = await this.iam({ Action: 'CreateAccessKey', UserName: user });
    const statement = { Effect: 'Allow', Action: actions, Resource: '*' };
    const policy = JSON.stringify({ Version: '2012-10-17', Statement: [statement] });
    await this.iam({ Action: 'PutUserPolicy', UserName: user, PolicyName: 'rights', PolicyDocument: policy });
    await this.tell('reset-auth', '0');
    const [, id = ''] = /<AccessKeyId>(.*?)</.exec(made) ?? [];
    const [, secret = ''] = /<SecretAccessKey>(.*?)</.exec(made) ?? [];
    return { ...CREDENTIALS, AWS_ACCESS_KEY_ID: id, AWS_SECRET_ACCESS_KEY: secret };
  }

  async trustAll(): Promise<void> {
    await this.tell('reset-auth', 'inf');
  }

  pause(): void {
    this.process!.kill('SIGSTOP');
  }

  resume(): void {
    this.process!.kill('SIGCONT');
  }

  async kill9(): Promise<void> {
    await this.end('SIGKILL');
  }

  async restart(): Promise<void> {
    await this.start();
    for (const name of this.buckets) await this.makeBucket(name);
  }

  async stop(): Promise<void> {
    await this.end('SIGTERM');
  }

  private async end(signal: NodeJS.Signals): Promise<void> {
    const moto = this.process!;
    if (moto.exitCode !== null || moto.signalCode !== null) return;
    const gone = once(moto, 'exit');
    moto.kill(signal);
    await gone;
  }

  private async tell(what: string, body: string): Promise<void> {
    await this.ask(`moto-api/${what}`, { method: 'POST', body });
  }

  /** Asked while everybody is trusted: only where the request belongs is looked at. */
  private async iam(words: Readonly<Record<string, string>>): Promise<string> {
    const answer = await fetch(this.endpoint, {
      method: 'POST',
      headers: { authorization: asOf('iam') },
      body: new URLSearchParams({ ...words, Version: '2010-05-08' }),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`moto refuses ${words['Action']}: ${text}`);
    return text;
  }
}

/** Says which service is asked; the signature is not looked at as long as everybody is trusted. */
function asOf(service: string): string {
  return `AWS4-HMAC-SHA256 Credential=key/20261101/us-east-1/${service}/aws4_request, SignedHeaders=host, Signature=0`;
}
