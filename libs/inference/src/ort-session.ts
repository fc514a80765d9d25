// An ONNX Runtime session with the options that measured best, on the provider that is asked for and no other; and what
// it really ran on, read from the runtime's own trace. A provider that is missing makes opening fail; nodes that a
// provider has no kernel for go to the CPU silently, which is why the trace is looked at before anybody believes a
// label.
//
// Why: docs/decisions/devices-and-precision.md#a-gpu-is-believed-by-the-runtimes-trace

import { mkdtemp, readFile, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Provider } from './provider.ts';
import { InferenceSession, Tensor } from './runtime.ts';
import { readTrace, type TracedNode } from './ort-trace.ts';

export interface SessionOptions {
  readonly graphPath: string;
  readonly provider: Provider;
  /** Threads of one run, for what runs on the CPU. */
  readonly threads: number;
}

/**
 * Memory patterns off: they cost 24 to 45 % more peak memory at most large shapes. Spinning off: 39 % less CPU time at
 * equal latency (measured 2026-11 on 2 cores, onnxruntime-node 1.30).
 */
export function openSession(
  { graphPath, provider, threads }: SessionOptions,
  traceFolder?: string,
): Promise<InferenceSession> {
  return InferenceSession.create(graphPath, {
    executionProviders: [provider === 'cuda' ? { name: 'cuda', deviceId: 0 } : provider],
    enableMemPattern: false,
    enableCpuMemArena: true,
    interOpNumThreads: 1,
    intraOpNumThreads: threads,
    graphOptimizationLevel: 'all',
    logSeverityLevel: 4, // failed runs are reported by us, with what they meant
    extra: { session: { intra_op: { allow_spinning: '0' } } },
    ...(traceFolder !== undefined && { enableProfiling: true, profileFilePrefix: join(traceFolder, 'trace') }),
  });
}

/** All that a graph may take. */
export interface Inputs {
  /** [rows, width] */
  readonly input_ids: Tensor;
  /** [rows] */
  readonly lengths: Tensor;
  /** [rows] */
  readonly second_from: Tensor;
}

/** What this graph takes of them: only graphs of rerankers know where a second text begins. */
export function feedsFor(
  { inputNames }: Pick<InferenceSession, 'inputNames'>,
  inputs: Inputs,
): Readonly<Record<string, Tensor>> {
  if (inputNames.includes('second_from')) return { ...inputs };
  return { input_ids: inputs.input_ids, lengths: inputs.lengths };
}

export interface TracedSession {
  readonly session: InferenceSession;
  readonly nodes: readonly TracedNode[];
}

/** Opens a session and runs two short rows under the runtime's profiler, which costs nothing afterwards. */
export async function openTracedSession(options: SessionOptions): Promise<TracedSession> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-trace-'));
  try {
    const session = await openSession(options, folder);
    const inputs = {
      input_ids: new Tensor('int32', new Int32Array(16).fill(1), [2, 8]),
      lengths: new Tensor('int32', Int32Array.of(8, 5), [2]),
      second_from: new Tensor('int32', Int32Array.of(4, 2), [2]),
    };
    await session.run(feedsFor(session, inputs));
    session.endProfiling();
    const [name = ''] = await readdir(folder);
    return { session, nodes: readTrace(await readFile(join(folder, name), 'utf8')) };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
