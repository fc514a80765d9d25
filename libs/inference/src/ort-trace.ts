// What ONNX Runtime's profiler wrote of each node that ran: where it ran, how long, and what the arena of its device
// held by then. Reads the Chrome trace of 1.30; ignores everything in it that is not a node.

import { PROVIDER_NAMES, type Provider } from './provider.ts';

export interface TracedNode {
  readonly operator: string;
  readonly name: string;
  /** "CPUExecutionProvider", "CUDAExecutionProvider", "WebGpuExecutionProvider", … */
  readonly provider: string;
  readonly microseconds: number;
  /** Bytes of tensors alive in the arena of the node's device after the node, and the most so far. */
  readonly inUseBytes: number;
  readonly inUsePeakBytes: number;
  /** What that arena took from the device. */
  readonly heldBytes: number;
}

interface TraceEvent {
  readonly cat?: string;
  readonly name?: string;
  readonly dur?: number;
  readonly args?: Readonly<Record<string, unknown>>;
}

export function readTrace(text: string): readonly TracedNode[] {
  const events = JSON.parse(text) as readonly TraceEvent[];
  return events.flatMap(({ cat, name = '', dur = 0, args = {} }) => {
    if (cat !== 'Node' || !name.endsWith('_kernel_time') || typeof args['provider'] !== 'string') return [];
    const bytes = (key: string): number => Number(args[key] ?? 0);
    return [
      {
        operator: String(args['op_name']),
        name: name.slice(0, -'_kernel_time'.length),
        provider: args['provider'],
        microseconds: dur,
        inUseBytes: bytes('mem_bytes_in_use'),
        inUsePeakBytes: bytes('mem_in_use_peak'),
        heldBytes: bytes('mem_arena_held'),
      },
    ];
  });
}

/**
 * The operators that do the work: everything else of an encoder is bookkeeping, and its shapes are computed on the CPU
 * whatever the provider.
 */
const WORK = /MatMul|Gemm|Attention|LayerNormalization/;

/**
 * Nodes of an encoder's work that ran somewhere else than on this provider, each "Operator on Provider"; undefined when
 * there was no work at all.
 */
export function strays(nodes: readonly TracedNode[], provider: string): readonly string[] | undefined {
  const work = nodes.filter(({ operator }) => WORK.test(operator));
  if (work.length === 0) return undefined;
  return [
    ...new Set(work.filter((node) => node.provider !== provider).map((node) => `${node.operator} on ${node.provider}`)),
  ];
}

/** Throws when the nodes of a first run do not prove that the model's work ran on this provider. */
export function refuseStrays(nodes: readonly TracedNode[], provider: Exclude<Provider, 'cpu'>): void {
  const elsewhere = strays(nodes, PROVIDER_NAMES[provider]);
  if (elsewhere === undefined) throw new Error('the trace of a first run shows no work at all');
  if (elsewhere.length > 0) throw new Error(`parts of the model do not run on ${provider}: ${elsewhere.join(', ')}`);
}
