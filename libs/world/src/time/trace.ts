// What a run did, step by step: as one hash, so that two runs can be compared without keeping either, and as lines for
// whoever asked for them. A step is its kind, its process, its virtual time and the bytes that moved.

export interface TraceStep {
  readonly kind: string;
  readonly process: string;
  readonly atMs: number;
  readonly what?: string | undefined;
  readonly bytes?: Uint8Array | undefined;
}

export class Trace {
  steps = 0;
  private readonly onLine: ((line: string) => void) | undefined;
  private low = 0x811c_9dc5 | 0;
  private high = 0x9e37_79b9 | 0;

  constructor(onLine?: (line: string) => void) {
    this.onLine = onLine;
  }

  add(kind: string, process: string, atMs: number, what?: string, bytes?: Uint8Array): void {
    this.steps++;
    this.addText(kind);
    this.addText(process);
    this.addNumber(Math.round(atMs * 1_000));
    if (what !== undefined) this.addText(what);
    if (bytes !== undefined) this.addBytes(bytes);
    this.onLine?.(
      `${this.steps} ${atMs.toFixed(3)} ${process} ${kind}${what === undefined ? '' : ` ${what}`}` +
        `${bytes === undefined ? '' : ` ${bytes.length} B ${excerpt(bytes)}`} ${this.hash}`,
    );
  }

  /** 16 hex digits over everything so far. */
  get hash(): string {
    return (this.low >>> 0).toString(16).padStart(8, '0') + (this.high >>> 0).toString(16).padStart(8, '0');
  }

  private addNumber(value: number): void {
    this.mix(value | 0);
    this.mix((value / 0x1_0000_0000) | 0);
  }

  private addText(text: string): void {
    for (let i = 0; i < text.length; i++) this.mix(text.charCodeAt(i));
  }

  private addBytes(bytes: Uint8Array): void {
    for (let i = 0; i < bytes.length; i++) this.mix(bytes[i]!);
  }

  /** FNV-1a, and a second lane that turns. */
  private mix(value: number): void {
    this.low = Math.imul(this.low ^ value, 0x0100_0193);
    this.high = Math.imul(((this.high << 5) | (this.high >>> 27)) ^ value, 0x85eb_ca6b);
  }
}

const SHOWN_BYTES = 400;

function excerpt(bytes: Uint8Array): string {
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, Math.min(bytes.length, SHOWN_BYTES)).toString('latin1');
  return JSON.stringify(text) + (bytes.length > SHOWN_BYTES ? '…' : '');
}
