// protobuf's wire format, read field by field without copying: enough to look into an ONNX file and to put it together
// again with some fields changed. Refuses with MODEL_CORRUPT what ends early or is no protobuf.

import { ShoalError } from '@shoal/contract';

export interface Field {
  readonly number: number;
  /**
   * Of a varint; 0 for other kinds. Whole numbers beyond 2⁵³ lose digits; none that ONNX gives meaning to is that
   * large.
   */
  readonly integer: number;
  /** Content of a nested message, string or packed list; empty for other kinds. */
  readonly bytes: Uint8Array;
  /** The field as it is in the file, tag included. */
  readonly raw: Uint8Array;
}

const WIRE = { VARINT: 0, FIXED64: 1, BYTES: 2, FIXED32: 5 } as const;
/** 2²⁹ − 1, by protobuf's own rule; there is no field 0 either. */
const LAST_NUMBER = 536_870_911;
const NOTHING: Uint8Array = new Uint8Array(0);

export function* readFields(message: Uint8Array, where: string): Generator<Field> {
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let power = 1; ; power *= 128) {
      const byte = message[at];
      if (byte === undefined || power > 2 ** 63) throw damaged(where);
      at += 1;
      value += (byte & 127) * power;
      if (byte < 128) return value;
    }
  };
  while (at < message.length) {
    const start = at;
    const tag = varint();
    const [number, wire] = [Math.floor(tag / 8), tag % 8];
    if (number < 1 || number > LAST_NUMBER) throw damaged(where);
    let integer = 0;
    let bytes = NOTHING;
    if (wire === WIRE.VARINT) integer = varint();
    else {
      const length = wire === WIRE.BYTES ? varint() : wire === WIRE.FIXED32 ? 4 : wire === WIRE.FIXED64 ? 8 : Infinity;
      if (length > message.length - at) throw damaged(where);
      if (wire === WIRE.BYTES) bytes = message.subarray(at, at + length);
      at += length;
    }
    yield { number, integer, bytes, raw: message.subarray(start, at) };
  }
}

export function textOf(field: Field): string {
  return new TextDecoder().decode(field.bytes);
}

function damaged(where: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where} is not a whole ONNX file`, { where });
}
