// The thread in which ONNX Runtime runs, and nothing else: `run()` blocks its thread for the whole call. It must never be
// terminated, and its process must not exit, while a run is in flight (both abort the process); SIGKILL is the hard way out.

import { parentPort, workerData } from 'node:worker_threads';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import { invariant } from '@shoal/core';
import type { OrtThreadData, OrtThreadMessage, RunRequest } from './ort-thread-protocol.ts';

invariant(parentPort !== null, 'this file runs as a worker thread');
const port = parentPort;
const { graphPath, provider, threads, dims, slots } = workerData as OrtThreadData;
const say = (message: OrtThreadMessage): void => port.postMessage(message);

/**
 * Memory patterns off: they cost 24 to 45 % more peak memory at most large shapes. Spinning off: 39 % less CPU time at equal
 * latency (measured 2026-11 on 2 cores, onnxruntime-node 1.30).
 */
function openSession(): Promise<InferenceSession> {
  return InferenceSession.create(graphPath, {
    executionProviders: [provider],
    enableMemPattern: false,
    enableCpuMemArena: true,
    interOpNumThreads: 1,
    intraOpNumThreads: threads,
    graphOptimizationLevel: 'all',
    logSeverityLevel: 4, // failed runs are reported by us, with what they meant
    extra: { session: { intra_op: { allow_spinning: '0' } } },
  });
}

function firstLine(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).split('\n', 1)[0] ?? '';
}

async function run(session: InferenceSession, { slot, rows, width }: RunRequest): Promise<void> {
  const { ids, lengths, embeddings } = slots[slot]!;
  const feeds = {
    input_ids: new Tensor('int32', new Int32Array(ids, 0, rows * width), [rows, width]),
    lengths: new Tensor('int32', new Int32Array(lengths, 0, rows), [rows]),
  };
  const fetches = { embeddings: new Tensor('float32', new Float32Array(embeddings, 0, rows * dims), [rows, dims]) };
  say({ kind: 'started', slot });
  const startedMs = performance.now();
  try {
    await session.run(feeds, fetches);
    say({ kind: 'ran', slot, runMs: performance.now() - startedMs });
  } catch (error) {
    say({ kind: 'failed', slot, message: firstLine(error) });
  }
}

try {
  const session = await openSession();
  // Requests are served one after the other, in the order they came: run() is synchronous inside a setImmediate.
  let last = Promise.resolve();
  port.on('message', (request: RunRequest | 'close') => {
    last = last.then(() => (request === 'close' ? session.release().then(() => port.close()) : run(session, request)));
  });
  say({ kind: 'ready' });
} catch (error) {
  say({ kind: 'unfit', message: firstLine(error) });
}
