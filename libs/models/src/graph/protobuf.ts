// The little of protobuf's wire format that writing an ONNX file needs: whole numbers, floats, strings and nested
// messages. Messages are small; the tensors between them are written straight to the file (onnx-file.ts). Reads
// nothing.

import { invariant } from '@shoal/contract';

const WIRE = { VARINT: 0, BYTES: 2, FIXED32: 5 } as const;
const encoder = new TextEncoder();

export class Message {
  readonly #bytes: number[] = [];

  integer(field: number, value: number): this {
    return this.#varint(field * 8 + WIRE.VARINT).#varint(value);
  }

  float(field: number, value: number): this {
    this.#varint(field * 8 + WIRE.FIXED32);
    this.#bytes.push(...new Uint8Array(Float32Array.of(value).buffer));
    return this;
  }

  text(field: number, value: string): this {
    return this.bytes(field, encoder.encode(value));
  }

  message(field: number, value: Message): this {
    return this.bytes(field, value.finish());
  }

  bytes(field: number, value: Uint8Array): this {
    this.head(field, value.length);
    for (const byte of value) this.#bytes.push(byte);
    return this;
  }

  /** Only the tag and length of a field whose bytes follow later. */
  head(field: number, length: number): this {
    return this.#varint(field * 8 + WIRE.BYTES).#varint(length);
  }

  finish(): Uint8Array {
    return Uint8Array.from(this.#bytes);
  }

  #varint(value: number): this {
    invariant(Number.isSafeInteger(value) && value >= 0, 'only whole numbers from 0 are written as varints');
    let rest = value;
    for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) this.#bytes.push((rest % 0x80) | 0x80);
    this.#bytes.push(rest);
    return this;
  }
}
