// For tests: a collector that takes spans as OTLP over HTTP, in protobuf. It reads the wire format by itself, by the
// numbers of opentelemetry/proto/trace/v1/trace.proto, so that what is sent is seen by other eyes than those that wrote
// it.

import { createServer } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { gunzipSync } from 'node:zlib';

export interface ReceivedSpan {
  readonly service: string;
  readonly name: string;
  /** 1 internal, 2 server, 3 client, 4 producer, 5 consumer. */
  readonly kind: number;
  readonly traceId: string;
  readonly spanId: string;
  /** '' where it begins a trace. */
  readonly parentId: string;
  readonly startMs: number;
  readonly endMs: number;
  readonly attributes: Readonly<Record<string, string | number | boolean>>;
  readonly events: readonly { readonly name: string; readonly attributes: ReceivedSpan['attributes'] }[];
  readonly links: readonly { readonly traceId: string; readonly spanId: string }[];
  /** 0 unset, 1 ok, 2 error. */
  readonly status: number;
}

export class OtlpReceiver {
  /** Of every request, as it came. */
  readonly bodies: Buffer[] = [];
  readonly spans: ReceivedSpan[] = [];
  /** What it answers; 503 for a collector that takes nothing. */
  status = 200;
  private readonly server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const isZipped = request.headers['content-encoding'] === 'gzip';
      if (this.status === 200) this.take(isZipped ? gunzipSync(Buffer.concat(chunks)) : Buffer.concat(chunks));
      response.writeHead(this.status, { 'content-type': 'application/x-protobuf' }).end();
    });
  });

  static async start(): Promise<OtlpReceiver> {
    const receiver = new OtlpReceiver();
    receiver.server.listen(0, '127.0.0.1');
    await once(receiver.server, 'listening');
    return receiver;
  }

  /** For OTEL_EXPORTER_OTLP_ENDPOINT. */
  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  async stop(): Promise<void> {
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, 'close');
  }

  private take(body: Buffer): void {
    this.bodies.push(body);
    for (const resourceSpans of messages(body, 1)) {
      const service = String(attributesOf(only(resourceSpans, 1), 1)['service.name']);
      for (const scopeSpans of messages(resourceSpans, 2))
        for (const span of messages(scopeSpans, 2)) this.spans.push(toSpan(span, service));
    }
  }
}

function toSpan(span: Buffer, service: string): ReceivedSpan {
  const numberOf = (field: number): number => Number(fieldsOf(span).find(({ number }) => number === field)?.value ?? 0);
  return {
    service,
    name: only(span, 5).toString(),
    kind: numberOf(6),
    traceId: only(span, 1).toString('hex'),
    spanId: only(span, 2).toString('hex'),
    parentId: only(span, 4).toString('hex'),
    startMs: numberOf(7) / 1e6,
    endMs: numberOf(8) / 1e6,
    attributes: attributesOf(span, 9),
    events: messages(span, 11).map((event) => ({
      name: only(event, 2).toString(),
      attributes: attributesOf(event, 3),
    })),
    links: messages(span, 13).map((link) => ({
      traceId: only(link, 1).toString('hex'),
      spanId: only(link, 2).toString('hex'),
    })),
    status: Number(fieldsOf(only(span, 15)).find(({ number }) => number === 3)?.value ?? 0),
  };
}

function attributesOf(message: Buffer, field: number): ReceivedSpan['attributes'] {
  return Object.fromEntries(
    messages(message, field).map((pair) => {
      const [value] = fieldsOf(only(pair, 2));
      return [only(pair, 1).toString(), value === undefined ? '' : plain(value)];
    }),
  );
}

/** AnyValue: 1 string, 2 bool, 3 int, 4 double. */
function plain({ number, value }: Field): string | number | boolean {
  if (Buffer.isBuffer(value)) return number === 4 ? value.readDoubleLE() : value.toString();
  return number === 2 ? value === 1n : number === 4 ? doubleOf(value) : Number(value);
}

function doubleOf(bits: bigint): number {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(bits);
  return bytes.readDoubleLE();
}

interface Field {
  readonly number: number;
  readonly value: bigint | Buffer;
}

function messages(message: Buffer, field: number): Buffer[] {
  return fieldsOf(message).flatMap(({ number, value }) => (number === field && Buffer.isBuffer(value) ? [value] : []));
}

function only(message: Buffer, field: number): Buffer {
  return messages(message, field)[0] ?? Buffer.alloc(0);
}

/** The wire format of protobuf (https://protobuf.dev/programming-guides/encoding/). */
function fieldsOf(message: Buffer): Field[] {
  const fields: Field[] = [];
  let at = 0;
  const varint = (): bigint => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = message[at++] ?? 0;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.length) {
    const tag = Number(varint());
    const number = tag >> 3;
    switch (tag & 7) {
      case 0:
        fields.push({ number, value: varint() });
        break;
      case 1:
        fields.push({ number, value: message.readBigUInt64LE(at) });
        at += 8;
        break;
      case 2: {
        const length = Number(varint());
        fields.push({ number, value: message.subarray(at, at + length) });
        at += length;
        break;
      }
      case 5:
        fields.push({ number, value: BigInt(message.readUInt32LE(at)) });
        at += 4;
        break;
      default:
        throw new Error(`wire type ${tag & 7} is none`);
    }
  }
  return fields;
}
