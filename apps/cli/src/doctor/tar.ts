// A tar of a few small texts, as POSIX describes it (ustar, IEEE 1003.1): what every system can open.

export interface TarFile {
  /** At most 100 bytes. */
  readonly name: string;
  readonly text: string;
}

const BLOCK_BYTES = 512;

export function tarOf(files: readonly TarFile[], nowMs: number): Buffer {
  const parts = files.flatMap(({ name, text }) => {
    const body = Buffer.from(text);
    const padding = Buffer.alloc((BLOCK_BYTES - (body.length % BLOCK_BYTES)) % BLOCK_BYTES);
    return [headerOf(name, body.length, nowMs), body, padding];
  });
  return Buffer.concat([...parts, Buffer.alloc(2 * BLOCK_BYTES)]);
}

function headerOf(name: string, bytes: number, nowMs: number): Buffer {
  const header = Buffer.alloc(BLOCK_BYTES);
  const octal = (value: number, at: number, length: number): void => {
    header.write(`${value.toString(8).padStart(length - 1, '0')}\0`, at, 'latin1');
  };
  header.write(name, 0, 100);
  octal(0o600, 100, 8);
  octal(0, 108, 8);
  octal(0, 116, 8);
  octal(bytes, 124, 12);
  octal(Math.floor(nowMs / 1_000), 136, 12);
  header.write('        ', 148, 'latin1'); // the sum is taken over blanks here
  header.write('0', 156, 'latin1');
  header.write('ustar\u000000', 257, 'latin1');
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  return header;
}
