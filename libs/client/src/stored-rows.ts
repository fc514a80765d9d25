// From the stored form of a result to one Float32Array, row-major, in memory of its own. The reverse of core's
// encodeBody, up to what the smaller types have lost.

import { ShoalError, fromHalves, type OutputDtype, type ResultHeader } from '@shoal/contract';

/** `body`: what `openResult` returned. rows × dims values; set bits of the binary form become 1, clear bits −1. */
export function widen(
  { rows, dims, ...header }: Pick<ResultHeader, 'dtype' | 'rows' | 'dims'>,
  body: Buffer,
): Float32Array {
  const dtype = vectorsDtype(header);
  const own = new Uint8Array(body).buffer; // a copy: aligned, and the reader's memory is free for the next result
  switch (dtype) {
    case 'f32':
      return new Float32Array(own);
    case 'f16':
      return fromHalves(new Uint16Array(own));
    case 'i8':
      return fromInt8(body, rows, dims);
    case 'binary':
      return fromBits(body, rows, dims);
  }
}

/** Throws RESULT_CORRUPT where there are no vectors in the result. */
export function vectorsDtype({ dtype }: Pick<ResultHeader, 'dtype'>): OutputDtype {
  if (dtype === 'ranking')
    throw new ShoalError('RESULT_CORRUPT', 'the result holds a ranking where vectors were asked for');
  return dtype;
}

function fromInt8(body: Buffer, rows: number, dims: number): Float32Array {
  const out = new Float32Array(rows * dims);
  for (let row = 0; row < rows; row++) {
    const scale = body.readFloatLE(rows * dims + row * 4);
    for (let at = row * dims; at < (row + 1) * dims; at++) out[at] = body.readInt8(at) * scale;
  }
  return out;
}

function fromBits(body: Buffer, rows: number, dims: number): Float32Array {
  const rowBytes = Math.ceil(dims / 8);
  const out = new Float32Array(rows * dims);
  for (let row = 0; row < rows; row++) {
    for (let i = 0; i < dims; i++)
      out[row * dims + i] = (body[row * rowBytes + (i >> 3)]! & (0x80 >> (i & 7))) === 0 ? -1 : 1;
  }
  return out;
}
