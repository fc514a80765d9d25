// For tests: moto with the bucket `shoal`, which this process and the commands that it starts reach by a way that can be
// taken away. At night alone, because moto takes minutes to come the first time.

import { S3Bucket } from '@shoal/fetch/s3';
import { startS3Server, type S3Server } from '@shoal/queue/testing';
import { Way } from './way.ts';

export class S3BehindWay {
  readonly way: Way;
  /** Reached without the way. */
  readonly bucket: S3Bucket;
  private readonly server: S3Server;

  private constructor(server: S3Server, way: Way, bucket: S3Bucket) {
    this.server = server;
    this.way = way;
    this.bucket = bucket;
  }

  /** The environment of this process has its address from now on. */
  static async start(): Promise<S3BehindWay> {
    const server = await startS3Server();
    const way = new Way(Number(new URL(server.endpoint).port));
    await way.open();
    await server.makeBucket('shoal');
    const s3 = new S3BehindWay(server, way, await S3Bucket.open('shoal', { endpoint: server.endpoint }));
    Object.assign(process.env, s3.environment);
    return s3;
  }

  /** Of who asks it by the way. */
  get environment(): Readonly<Record<string, string>> {
    return { AWS_ENDPOINT_URL_S3: `http://127.0.0.1:${this.way.port}`, ...this.server.credentials };
  }

  async stop(): Promise<void> {
    delete process.env['AWS_ENDPOINT_URL_S3'];
    this.bucket.close();
    await this.way.close();
    await this.server.stop();
  }
}
