// Every metric that Shoal exports: name with unit, type, help, labels and their values, buckets. Dashboards and alerts
// are written against this page, so a name changes only with a CHANGELOG line. A label has either a closed set of
// values or, marked FEW, values that this machine or this fleet bounds: a GPU's index, a queue's name, a route's
// pattern. Ids, texts and addresses are never labels.

import { ERROR_CODES } from '@shoal/contract';
import { LANE_REASONS, LENGTH_CLASSES } from '@shoal/core';
import { SIDES } from '@shoal/core/similarity';

/** Values that are not listed here, but are few. */
export const FEW = 'few';

export interface MetricDefinition {
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  readonly labels: Readonly<Record<string, readonly string[] | typeof FEW>>;
  /** Upper bounds of a histogram. */
  readonly buckets?: readonly number[];
}

export type MetricCatalogue = Readonly<Record<`shoal_${string}`, MetricDefinition>>;

const RUN_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60];
const WAIT_SECONDS = [0.005, 0.02, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400];
const REQUEST_SECONDS = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60];
const ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];
const RATIO = [0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 1];

/** Code of what did not fail. */
export const NO_CODE = 'NONE';
const CODES = [NO_CODE, ...Object.keys(ERROR_CODES)];

/** Of a worker process, told by its claimer. */
export const WORKER_METRICS = {
  shoal_claims_total: { type: 'counter', help: 'Jobs claimed.', labels: {} },
  shoal_claim_wait_seconds: {
    type: 'histogram',
    help: 'Time a claimed job had waited in the queue.',
    labels: {},
    buckets: WAIT_SECONDS,
  },
  shoal_claims_in_flight: { type: 'gauge', help: 'Jobs claimed and not settled.', labels: {} },
  shoal_pool_tokens: {
    type: 'gauge',
    help: 'Real tokens of the claims in flight; estimated until the executor has counted them.',
    labels: {},
  },
  shoal_jobs_settled_total: {
    type: 'counter',
    help: 'Claims that got their ending, by outcome, and by error code when they failed.',
    labels: { outcome: ['complete', 'fail', 'return', 'hand-over', 'quarantine', 'abandon'], code: CODES },
  },
  shoal_texts_total: { type: 'counter', help: 'Texts of completed jobs.', labels: {} },
  shoal_tokens_total: {
    type: 'counter',
    help: 'Tokens the device ran: real ones, and rows × width with padding.',
    labels: { kind: ['real', 'padded'] },
  },
  shoal_run_duration_seconds: {
    type: 'histogram',
    help: 'Time of one micro-batch at the device.',
    labels: {},
    buckets: RUN_SECONDS,
  },
  shoal_micro_batch_rows: { type: 'histogram', help: 'Rows of a micro-batch.', labels: {}, buckets: ROWS },
  shoal_padding_efficiency_ratio: {
    type: 'histogram',
    help: 'Real tokens ÷ padded tokens of a micro-batch.',
    labels: {},
    buckets: RATIO,
  },
  shoal_duplicate_rows_total: {
    type: 'counter',
    help: 'Rows that got the vector of an equal row in the same micro-batch.',
    labels: {},
  },
  shoal_rerun_rows_total: {
    type: 'counter',
    help: 'Rows that ran again in fp32, because their vector was not of length 1.',
    labels: {},
  },
  shoal_pool_age_seconds: {
    type: 'gauge',
    help: 'Age of the row that waits longest in the pool, after the last run.',
    labels: {},
  },
  shoal_budget_tokens: {
    type: 'gauge',
    help: 'Padded tokens that one run may have now, under the name of what limits them.',
    labels: { limited_by: ['memory', 'knee', 'latency', 'integer', 'setting', 'unknown-memory'] },
  },
  shoal_run_memory_bytes: {
    type: 'gauge',
    help: 'Peak memory of a run, as predicted before it and as measured after it.',
    labels: { kind: ['predicted', 'measured'] },
  },
  shoal_run_memory_source: {
    type: 'gauge',
    help:
      'What measured that peak, from which predictions are corrected: 1 for the process, the arena of the ' +
      'runtime, the driver, or a simulated device.',
    labels: { source: ['process', 'arena', 'driver', 'simulated'] },
  },
  shoal_splits_total: { type: 'counter', help: 'Micro-batches that failed and were halved.', labels: { code: CODES } },
  shoal_claiming_braked: {
    type: 'gauge',
    help:
      'Whether claiming is held back for lack of room on the queue server, 1 or 0: it is almost full, or results ' +
      'that nobody reads fill their share.',
    labels: { reason: ['memory', 'unread'] },
  },
  shoal_janitor_sweeps_total: {
    type: 'counter',
    help: 'Sweeps of the queue that this worker’s janitor finished.',
    labels: {},
  },
  shoal_janitor_last_sweep_seconds: { type: 'gauge', help: 'Time the last of them took, rests included.', labels: {} },
  shoal_janitor_findings_total: {
    type: 'counter',
    help:
      'What sweeps took away or put right: inputs without a job, results without a time to live, reservations of ' +
      'nobody, jobs with damaged records, without a list entry or without their child, ids without a job, finished jobs that were old.',
    labels: {
      finding: [
        'inputs',
        'strayResults',
        'reservations',
        'jobsMended',
        'jobsFailed',
        'jobsRequeued',
        'parentsReleased',
        'idsRemoved',
        'finishedRemoved',
      ],
    },
  },
  shoal_janitor_input_bytes_total: { type: 'counter', help: 'Bytes of the inputs that sweeps took away.', labels: {} },
  shoal_leases_lost_total: { type: 'counter', help: 'Claims whose lease could not be renewed.', labels: {} },
  shoal_executor_losses_total: {
    type: 'counter',
    help: 'Executors that died or were killed and had to be replaced.',
    labels: {},
  },
  shoal_executor_recycles_total: {
    type: 'counter',
    help: 'Executors that were replaced because nothing could be allocated in them any more.',
    labels: {},
  },
  shoal_handed_over_waiting: {
    type: 'gauge',
    help: 'Jobs that wait in the CPU lane. Above 0 while shoal_cpu_lane_workers is 0: start a CPU worker.',
    labels: {},
  },
  shoal_cpu_lane_workers: {
    type: 'gauge',
    help: 'Live workers that serve the CPU lane and are not drained.',
    labels: {},
  },
  shoal_main_lane_choice: {
    type: 'gauge',
    help: 'Of a CPU worker: 1 for why it takes from the main lane, or does not.',
    labels: { reason: LANE_REASONS },
  },
  shoal_break_even_tokens: {
    type: 'gauge',
    help:
      'Of a CPU worker: backlog of the main lane from which on one job more here shortens the total time, by ' +
      'length of rows.',
    labels: { length: LENGTH_CLASSES },
  },
  shoal_similarity_residents: {
    type: 'gauge',
    help: 'Of a similarity worker: collections and graphs that it holds between runs, and those of them on its GPU.',
    labels: { memory: ['host', 'gpu'] },
  },
  shoal_similarity_resident_bytes: {
    type: 'gauge',
    help: 'Memory of collections and graphs that a similarity worker holds between runs.',
    labels: { memory: ['host', 'gpu'] },
  },
  shoal_similarity_budget_bytes: {
    type: 'gauge',
    help: 'Most memory that they may have.',
    labels: { memory: ['host', 'gpu'] },
  },
  shoal_similarity_evictions_total: {
    type: 'counter',
    help: 'Collections and graphs that left to make room for others.',
    labels: { memory: ['host', 'gpu'] },
  },
  shoal_similarity_calls_total: {
    type: 'counter',
    help: 'Of a similarity worker on a GPU: calls of kernels, by where they ran.',
    labels: { side: SIDES },
  },
  shoal_similarity_fallbacks_total: {
    type: 'counter',
    help: 'Calls that the GPU could not do and the CPU did.',
    labels: {},
  },
  shoal_similarity_gpu_lost: {
    type: 'gauge',
    help: 'Whether the GPU of this worker has failed and everything runs on its CPU, 1 or 0.',
    labels: {},
  },
  shoal_similarity_break_even_values: {
    type: 'gauge',
    help:
      'Values that each query is compared with from which on the GPU is faster, by what is computed and how many ' +
      'queries come together.',
    labels: { kind: FEW, queries: FEW },
  },
  shoal_process_resident_bytes: {
    type: 'gauge',
    help: 'Resident memory of a process of this worker.',
    labels: { process: ['claimer', 'executor'] },
  },
  shoal_device_memory_bytes: {
    type: 'gauge',
    help: 'Device memory as the driver tells it.',
    labels: { device: FEW, state: ['total', 'used', 'free'] },
  },
  shoal_device_utilization_ratio: {
    type: 'gauge',
    help: 'Share of the last sample period in which a kernel ran, 0 to 1.',
    labels: { device: FEW },
  },
  shoal_device_power_watts: { type: 'gauge', help: 'Power draw of a device.', labels: { device: FEW } },
} as const satisfies MetricCatalogue;

/** Of the HTTP producer. */
export const PRODUCER_METRICS = {
  shoal_http_requests_total: {
    type: 'counter',
    help: 'Requests answered, by route pattern and status.',
    labels: { route: FEW, status: FEW },
  },
  shoal_http_request_duration_seconds: {
    type: 'histogram',
    help: 'Time from the first byte of a request to the last of its answer.',
    labels: { route: FEW },
    buckets: REQUEST_SECONDS,
  },
  shoal_http_requests_open: { type: 'gauge', help: 'Requests for embeddings that are being answered.', labels: {} },
  shoal_http_requests_waiting: { type: 'gauge', help: 'Requests that wait for their turn.', labels: {} },
  shoal_http_held_bytes: { type: 'gauge', help: 'Memory that bodies and answers take for callers.', labels: {} },
  shoal_http_texts_total: { type: 'counter', help: 'Inputs of answered requests.', labels: {} },
  shoal_http_tokens_total: { type: 'counter', help: 'Real tokens of answered requests.', labels: {} },
  shoal_queue_jobs: {
    type: 'gauge',
    help: 'Jobs of a queue by state. Completed, failed and cancelled ones are kept for a while only.',
    labels: { queue: FEW, state: ['waiting', 'active', 'delayed', 'completed', 'failed', 'cancelled'] },
  },
  shoal_queue_oldest_waiting_seconds: {
    type: 'gauge',
    help: 'Age of the job of each class that waits longest; 0 when none waits.',
    labels: { queue: FEW, class: ['interactive', 'bulk'] },
  },
  shoal_queue_workers: { type: 'gauge', help: 'Workers that serve a queue.', labels: { queue: FEW } },
  shoal_process_resident_bytes: {
    type: 'gauge',
    help: 'Resident memory of this process.',
    labels: { process: ['producer'] },
  },
} as const satisfies MetricCatalogue;
