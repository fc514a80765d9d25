// The addon of native/ort-session, loaded when it was built and fits this machine. Absent is no error: the package's
// own binding runs the same graphs. The only place that knows where the addon lies and what it exports.

import { readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { installedRuntime } from './provider.ts';

/** A thread that opens and runs graphs, one thing after the other, urgent runs first. */
export type NativeLine = object & { readonly brand: 'NativeLine' };

/** Bytes of a graph's arena: in use, most in use so far, held, limit. */
export type ArenaFigures = readonly [inUse: number, mostInUse: number, held: number, limit: number];

/** Arrays must not be touched before the promise is settled. A rejection has the runtime's own words. */
export interface NativeOrt {
  /** Once for the process; its version. */
  load(library: string): string;
  line(): NativeLine;
  /**
   * `trace`: prefix of the file with the runtime's trace, or ''. `providerOptions`: key, value, key, value … of CUDA.
   * `cpuArenaBytes`: 0 for no limit. `ownsStream`: what is replayed needs it.
   */
  open(
    line: NativeLine,
    path: string,
    isCuda: boolean,
    threads: number,
    trace: string,
    providerOptions: readonly string[],
    cpuArenaBytes: number,
    ownsStream: boolean,
  ): Promise<readonly [graph: number]>;
  /**
   * `isReplayed`: what the device is given to do was recorded, see session.h; for a graph that was opened with
   * enable_cuda_graph.
   */
  run(
    line: NativeLine,
    graph: number,
    ids: Int32Array,
    lengths: Int32Array,
    embeddings: Float32Array,
    rows: number,
    width: number,
    dims: number,
    isUrgent: boolean,
    isReplayed: boolean,
  ): Promise<readonly [runMs: number, ...ArenaFigures]>;
  /**
   * Rows that are all of one id, before all that waits; what comes out is thrown away. `shrinks`: afterwards the arena
   * gives back what no tensor lies in.
   */
  runPlain(
    line: NativeLine,
    graph: number,
    rows: number,
    width: number,
    id: number,
    shrinks: boolean,
  ): Promise<ArenaFigures>;
  statistics(line: NativeLine, graph: number): Promise<ArenaFigures>;
  /** Path of the trace. */
  endTrace(line: NativeLine, graph: number): Promise<string>;
  /** The run that goes on is rejected; those that wait stay. */
  cancel(line: NativeLine): void;
  /** Of the run that goes on; 0 when idle. */
  runningMs(line: NativeLine): number;
  /** After everything that was asked before. */
  close(line: NativeLine): Promise<readonly []>;
}

const ADDON = fileURLToPath(new URL('../../../dist/native/ort-session/ort-session.node', import.meta.url));

type Outcome = { readonly addon: NativeOrt } | { readonly problem: string };

let loaded: Outcome | undefined;

function load(): Outcome {
  disableTelemetry();
  try {
    const addon = createRequire(import.meta.url)(ADDON) as NativeOrt;
    addon.load(runtimeLibrary());
    return { addon };
  } catch (error) {
    return { problem: `${ADDON}: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}` };
  }
}

/**
 * ONNX Runtime 1.30 on Linux keeps a device id under the user's cache folder and uploads events unless told not to
 * before it is loaded; Shoal tells nobody what it runs.
 */
export function disableTelemetry(): void {
  process.env['ORT_DISABLE_TELEMETRY'] = '1';
}

/** The very file that onnxruntime-node loads, so that there is one runtime in the process. */
function runtimeLibrary(): string {
  const { folder } = installedRuntime();
  const name = readdirSync(folder).find((file) => /^libonnxruntime\.(so\.1|[\d.]*dylib)$/.test(file));
  if (name === undefined) throw new Error(`ONNX Runtime's library is not in ${folder}`);
  return join(folder, name);
}

export function nativeOrt(): NativeOrt | undefined {
  const outcome = (loaded ??= load());
  return 'addon' in outcome ? outcome.addon : undefined;
}

/** Why there is no native binding; undefined when there is. */
export function nativeOrtProblem(): string | undefined {
  const outcome = (loaded ??= load());
  return 'problem' in outcome ? outcome.problem : undefined;
}
