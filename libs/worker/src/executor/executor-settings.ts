// What a worker tells its executor at start. It travels in the environment, not in the arguments: the URL may hold a
// password, and arguments are visible to every user of the machine.

import type { LearnedBudget, Settings } from '@shoal/core';

export const EXECUTOR_ENVIRONMENT = 'SHOAL_EXECUTOR_SETTINGS';

export interface ExecutorSettings {
  readonly kind?: 'embed';
  readonly redisUrl: string;
  readonly prefix: string;
  /** The main lane: inputs and results carry its name. */
  readonly queue: string;
  /** For log lines. Left out by benches. */
  readonly workerName?: string;
  /** The CPU lane, whose locks carry its name; undefined where this worker does not claim from it. */
  readonly cpuQueue: string | undefined;
  /** Where large bodies of jobs go whose readers know them. Undefined: by the queue server. */
  readonly payloadServers?: string | undefined;
  /** The lane of parts of files, and where they may lie. Undefined: none are taken. */
  readonly parts?: { readonly queue: string; readonly folders: readonly string[] } | undefined;
  readonly model: string;
  /** The name under which its results go: the model's own, unless the device is simulated and no trial is on. */
  readonly served: string;
  /** auto, cpu, gpu:<index> or sim:… */
  readonly device: Settings['device'];
  readonly precision: Settings['precision'];
  /** Default: auto. */
  readonly encoder?: Settings['encoder'];
  readonly deviceSessions: Settings['deviceSessions'];
  readonly cacheDir: string;
  /** Undefined: models in cacheDir. */
  readonly modelsDir?: string | undefined;
  readonly modelsReadOnly?: boolean | undefined;
  /** Longest row in tokens; undefined: where the model's authors truncate. */
  readonly maxTokens: number | undefined;
  readonly threads: number;
  /** Threads that tokenize jobs which came as text. */
  readonly tokenizerThreads: number;
  readonly limits: Pick<
    Settings,
    | 'maxPaddedTokens'
    | 'maxRows'
    | 'poolTokens'
    | 'memoryFraction'
    | 'maxDeviceBytes'
    | 'latencyTargetMs'
    | 'windowRows'
    | 'maxWaitMs'
    | 'minRows'
    | 'maxRowAgeMs'
  >;
  readonly logLevel: Settings['logLevel'];
  readonly logFormat?: Settings['logFormat'];
  /** What the executor before this one had learned. */
  readonly learned?: LearnedBudget | undefined;
}

/** What an executor that compares is told. */
export interface SimilarityExecutorSettings {
  readonly kind: 'similarity';
  readonly redisUrl: string;
  readonly prefix: string;
  readonly queue: string;
  /** For log lines. Left out by benches. */
  readonly workerName?: string;
  /** The CPU lane, whose locks carry its name. */
  readonly cpuQueue: string;
  /** The folder of collections and graphs. */
  readonly folder: string;
  readonly cacheDir: string;
  /** auto, cpu or gpu:<index> */
  readonly device: Settings['device'];
  readonly kernels: Settings['kernels'];
  readonly smallOnCpu: Settings['smallOnCpu'];
  readonly cudaLibrary: string | undefined;
  readonly gpuRetryMs: number;
  readonly memoryFraction: number;
  /** Most of the GPU's memory that is counted on, bytes. */
  readonly maxDeviceBytes: number | undefined;
  readonly threads: number;
  /** Most queries of one run; undefined: as the device that is found. */
  readonly maxRows: Settings['maxRows'];
  /** Most that is held of collections and graphs in memory of the process. */
  readonly budgetBytes: number;
  readonly logLevel: Settings['logLevel'];
  readonly logFormat?: Settings['logFormat'];
}
