// The thread that reads one Arrow file for arrow-thread.ts: rows when they are asked for, a sign of life at most twice
// a second while the file is being read.

import { parentPort, workerData } from 'node:worker_threads';
import { invariant, isShoalError, toFailure } from '@shoal/contract';
import { readArrowRows } from './arrow-rows.ts';
import type { FromThread, ThreadOrder } from './arrow-thread.ts';

const ALIVE_MS = 500;

invariant(parentPort !== null, 'this file runs as a worker thread');
const port = parentPort;
const { path, copy, column } = workerData as ThreadOrder;
let saidMs = 0;
const rows = readArrowRows(path, {
  ...(column === undefined ? {} : { column }),
  ...(copy === undefined ? {} : { copy }),
  onRead: () => {
    const nowMs = performance.now();
    if (nowMs - saidMs < ALIVE_MS) return;
    saidMs = nowMs;
    tell({ kind: 'alive' });
  },
});

port.on('message', () => void answer());

async function answer(): Promise<void> {
  try {
    const { done, value } = await rows.next();
    if (done === true) return tell({ kind: 'end' });
    // A piece that is a view of something larger is copied by the message.
    const { vectors } = value;
    const isWhole = vectors.byteLength === vectors.buffer.byteLength;
    tell({ kind: 'rows', batch: value }, isWhole ? [vectors.buffer as ArrayBuffer] : []);
  } catch (error) {
    tell({
      kind: 'failed',
      failure: toFailure(error, 'INPUT_INVALID'),
      fields: isShoalError(error) ? { ...error.fields } : {},
    });
  }
}

function tell(message: FromThread, transfer: ArrayBuffer[] = []): void {
  port.postMessage(message, transfer);
}
