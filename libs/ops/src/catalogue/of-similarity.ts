// What similarity workers tell besides; workers of models have none of these series.

import { SIDES } from '@shoal/core/similarity';
import { FEW, type MetricCatalogue } from './metric-definition.ts';

const MEMORIES = ['host', 'gpu'] as const;

export const OF_SIMILARITY = {
  shoal_similarity_residents: {
    type: 'gauge',
    unit: 'collections',
    help: 'Collections and graphs that the worker holds between runs, and those of them on its GPU.',
    labels: { memory: MEMORIES },
  },
  shoal_similarity_resident_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help: 'Memory of collections and graphs that the worker holds between runs.',
    labels: { memory: MEMORIES },
  },
  shoal_similarity_budget_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help: 'Most memory that they may have.',
    labels: { memory: MEMORIES },
  },
  shoal_similarity_evictions_total: {
    type: 'counter',
    unit: 'collections',
    help: 'Collections and graphs that left to make room for others.',
    labels: { memory: MEMORIES },
  },
  shoal_similarity_calls_total: {
    type: 'counter',
    unit: 'calls',
    help: 'Calls of kernels of a worker on a GPU, by where they ran.',
    labels: { side: SIDES },
  },
  shoal_similarity_fallbacks_total: {
    type: 'counter',
    unit: 'calls',
    help: 'Calls that the GPU could not do and the CPU did.',
    labels: {},
  },
  shoal_similarity_gpu_lost: {
    type: 'gauge',
    unit: '1 or 0',
    help: 'Whether the GPU of this worker has failed and everything runs on its CPU.',
    labels: {},
  },
  shoal_similarity_break_even_values: {
    type: 'gauge',
    unit: 'values',
    help:
      'Values that each query is compared with from which on the GPU is faster, by what is computed and how many ' +
      'queries come together.',
    labels: { kind: FEW, queries: FEW },
  },
} as const satisfies MetricCatalogue;
