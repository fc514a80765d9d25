// What core says of a run on any device: how large it is, and what it is computed in.

/** A micro-batch as the device sees it. */
export interface RunShape {
  readonly rows: number;
  /** Tokens of each row after padding. */
  readonly width: number;
}

export type Precision = 'fp32' | 'fp16' | 'bf16' | 'int8';
