// What a worker tells, by its claimer: of jobs and claims, of runs, of its executor, of its janitor, of its card.

import { ERROR_CODES, type ErrorCode } from '@shoal/contract';
import { LANE_REASONS, LENGTH_CLASSES, LOSS_REASONS, SPLIT_CODES, STAGES } from '@shoal/core';
import { FEW, type MetricCatalogue } from './metric-definition.ts';

const RUN_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60];
const STAGE_SECONDS = [0.0001, 0.0003, ...RUN_SECONDS];
const WAIT_SECONDS = [0.005, 0.02, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400];
/** A GPU's runs have up to 16,384 rows and a million padded tokens. */
const ROWS = Array.from({ length: 17 }, (_, power) => 2 ** power);
const TOKENS = Array.from({ length: 15 }, (_, power) => 64 * 2 ** power);
const RATIO = [0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 1];
const PREDICTION_RATIO = [0.5, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.5, 2, 3];

const CODES = Object.keys(ERROR_CODES) as ErrorCode[];
/** Failures of jobs that are not their producer's: the first of each is news. */
export const ALARMING_CODES = [
  'INPUT_LOST',
  'INPUT_CORRUPT',
  'JOB_VERSION_UNKNOWN',
  'RESULT_TOO_LARGE',
  'OUT_OF_VRAM',
  'DEVICE_LOST',
  'EXECUTOR_LOST',
  'INFERENCE_FAILED',
] as const satisfies readonly ErrorCode[];

export const OF_WORKERS = {
  // ---- who it is, and whether it works
  shoal_worker_info: {
    type: 'gauge',
    unit: '1 or 0',
    help:
      'Always 1: which queue, model and card the worker of this process serves. gpu_uuid is the driver’s and joins with ' +
      'UUID of dcgm-exporter; encoder is what runs the model.',
    labels: {
      worker: FEW,
      queue: FEW,
      model: FEW,
      revision: FEW,
      device: FEW,
      gpu_uuid: FEW,
      precision: FEW,
      encoder: FEW,
    },
    mayLack: ['gpu_uuid', 'precision', 'encoder'],
  },
  shoal_ready: {
    type: 'gauge',
    unit: '1 or 0',
    help: 'Whether this worker takes jobs: what /readyz says, which names the reasons where it does not.',
    labels: {},
  },
  shoal_executor_up: {
    type: 'gauge',
    unit: '1 or 0',
    help: 'Whether the executor is there and has said that it is ready; 0 while it starts and while it is replaced.',
    labels: {},
  },
  shoal_executor_losses_total: {
    type: 'counter',
    unit: 'executors',
    help:
      'Executors that had to be replaced: killed by a signal, ended with an exit code, killed because they were silent ' +
      'or a run took too long, or because their device was in a state that only a new process leaves (sticky).',
    labels: { reason: LOSS_REASONS },
  },
  shoal_executor_recycles_total: {
    type: 'counter',
    unit: 'executors',
    help: 'Executors that were replaced because nothing could be allocated in them any more.',
    labels: {},
  },

  // ---- jobs
  shoal_claims_total: { type: 'counter', unit: 'jobs', help: 'Jobs claimed.', labels: {} },
  shoal_claim_wait_seconds: {
    type: 'histogram',
    unit: 'seconds',
    help:
      'Time a claimed job had waited in the queue, by class; its end by the clock of the queue server, its beginning by ' +
      'that of whoever added the job.',
    labels: { class: ['interactive', 'bulk'] },
    buckets: WAIT_SECONDS,
  },
  shoal_claims_in_flight: { type: 'gauge', unit: 'jobs', help: 'Jobs claimed and not settled.', labels: {} },
  shoal_jobs_settled_total: {
    type: 'counter',
    unit: 'jobs',
    help: 'Claims that got their ending, by outcome; those that failed, were quarantined or abandoned by error code too.',
    labels: { outcome: ['complete', 'fail', 'return', 'park', 'hand-over', 'quarantine', 'abandon'], code: CODES },
    mayLack: ['code'],
    beginsAtZero: [
      { outcome: 'complete' },
      { outcome: 'return' },
      { outcome: 'park' },
      { outcome: 'hand-over' },
      { outcome: 'quarantine', code: 'QUARANTINED' },
      { outcome: 'abandon', code: 'LEASE_LOST' },
      ...ALARMING_CODES.map((code) => ({ outcome: 'fail', code })),
    ],
  },
  shoal_jobs_stalled_total: {
    type: 'counter',
    unit: 'jobs',
    help: 'Jobs that this worker found without a lease and gave back: the worker that had them died or was cut off.',
    labels: {},
  },
  shoal_leases_lost_total: {
    type: 'counter',
    unit: 'leases',
    help: 'Claims of this worker whose lease could not be renewed in time.',
    labels: {},
  },
  shoal_claiming_braked: {
    type: 'gauge',
    unit: '1 or 0',
    help:
      'Whether claiming is held back for lack of room on the queue server: it is almost full, or results that nobody ' +
      'reads fill their share.',
    labels: { reason: ['memory', 'unread'] },
    beginsAtZero: [{ reason: 'memory' }, { reason: 'unread' }],
  },

  // ---- texts, runs and stages
  shoal_pool_tokens: {
    type: 'gauge',
    unit: 'tokens',
    help: 'Real tokens of the claims in flight; estimated until the executor has counted them.',
    labels: {},
  },
  shoal_pool_age_seconds: {
    type: 'gauge',
    unit: 'seconds',
    help:
      'Age of the row that waits longest in the pool: as the executor told it last, and grown since then while claims ' +
      'are in flight, so that it rises when the device hangs.',
    labels: {},
  },
  shoal_texts_total: { type: 'counter', unit: 'texts', help: 'Texts of completed jobs.', labels: {} },
  shoal_tokens_total: {
    type: 'counter',
    unit: 'tokens',
    help: 'Tokens the device ran: real ones, and rows × width with padding.',
    labels: { kind: ['real', 'padded'] },
  },
  shoal_stage_duration_seconds: {
    type: 'histogram',
    unit: 'seconds',
    help:
      'Time of each stage, where to look when work is slow: fill (read the inputs of some jobs and make rows), tokenize ' +
      '(their texts), plan (cut a micro-batch), run (it at the device), commit (write some results), settle (end a claim ' +
      'at the queue), announce (tell its producer, where that is a call of its own). Similarity workers tell the last two ' +
      'and run alone.',
    labels: { stage: STAGES },
    buckets: STAGE_SECONDS,
  },
  shoal_run_duration_seconds: {
    type: 'histogram',
    unit: 'seconds',
    help: 'Time of one micro-batch at the device.',
    labels: {},
    buckets: RUN_SECONDS,
  },
  shoal_micro_batch_rows: {
    type: 'histogram',
    unit: 'rows',
    help: 'Rows of a micro-batch.',
    labels: {},
    buckets: ROWS,
  },
  shoal_micro_batch_tokens: {
    type: 'histogram',
    unit: 'tokens',
    help: 'Padded tokens of a micro-batch: rows × width.',
    labels: {},
    buckets: TOKENS,
  },
  shoal_padding_efficiency_ratio: {
    type: 'histogram',
    unit: 'ratio',
    help: 'Real tokens ÷ padded tokens of a micro-batch.',
    labels: {},
    buckets: RATIO,
  },
  shoal_duplicate_rows_total: {
    type: 'counter',
    unit: 'rows',
    help: 'Rows that got the vector of an equal row in the same micro-batch.',
    labels: {},
  },
  shoal_rerun_rows_total: {
    type: 'counter',
    unit: 'rows',
    help: 'Rows that ran again in fp32, because their vector was not of length 1.',
    labels: {},
  },
  shoal_parts_running: {
    type: 'gauge',
    unit: 'jobs',
    help: 'Parts of runs of files that this worker has claimed (partFolders).',
    labels: {},
  },
  shoal_part_rows_total: {
    type: 'counter',
    unit: 'rows',
    help:
      'Rows of such parts that were written; those behind the last checkpoint of a worker that died are written, and ' +
      'counted, by its successor again.',
    labels: {},
  },
  shoal_result_payloads_total: {
    type: 'counter',
    unit: 'bodies',
    help:
      'Results that this worker put on payload servers, and results that went by the queue server because none took ' +
      'them: away, full, read-only or slow.',
    labels: { outcome: ['put', 'by_queue_server'] },
  },
  shoal_splits_total: {
    type: 'counter',
    unit: 'micro-batches',
    help: 'Micro-batches that failed and were halved.',
    labels: { code: SPLIT_CODES },
  },
  shoal_device_busy_seconds_total: {
    type: 'counter',
    unit: 'seconds',
    help:
      'Time in which at least so many micro-batches were at the device, as the label says: the rate of lane="1" is the ' +
      'share of time in which the device had work, the rate summed over lane is how many ran side by side.',
    labels: { lane: ['1', '2', '3', '4'] },
  },

  // ---- memory
  shoal_budget_tokens: {
    type: 'gauge',
    unit: 'tokens',
    help: 'Padded tokens that one run may have now, under the name of what limits them.',
    labels: { limited_by: ['memory', 'knee', 'latency', 'integer', 'setting', 'unknown-memory'] },
  },
  shoal_run_memory_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help: 'Peak memory of the last measured run, as predicted before it and as measured after it.',
    labels: { kind: ['predicted', 'measured'] },
  },
  shoal_run_memory_prediction_ratio: {
    type: 'histogram',
    unit: 'ratio',
    help: 'Predicted ÷ measured peak memory of a run; below 1 it took more than was said before it ran.',
    labels: {},
    buckets: PREDICTION_RATIO,
  },
  shoal_run_memory_source: {
    type: 'gauge',
    unit: '1 or 0',
    help:
      'What measured that peak, from which predictions are corrected: 1 for the process, the arena of the ' +
      'runtime, the driver, or a simulated device.',
    labels: { source: ['process', 'arena', 'driver', 'simulated'] },
  },
  shoal_device_memory_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help: 'Memory of the card of this worker, as the driver tells it.',
    labels: { device: FEW, gpu_uuid: FEW, state: ['total', 'used', 'free'] },
    mayLack: ['gpu_uuid'],
  },
  shoal_device_utilization_ratio: {
    type: 'gauge',
    unit: 'ratio',
    help: 'Share of the last sample period in which a kernel ran on the card of this worker, whoever started it.',
    labels: { device: FEW, gpu_uuid: FEW },
    mayLack: ['gpu_uuid'],
  },
  shoal_device_power_watts: {
    type: 'gauge',
    unit: 'watts',
    help: 'Power draw of the card of this worker.',
    labels: { device: FEW, gpu_uuid: FEW },
    mayLack: ['gpu_uuid'],
  },
  shoal_device_temperature_celsius: {
    type: 'gauge',
    unit: 'celsius',
    help: 'Temperature of the card of this worker.',
    labels: { device: FEW, gpu_uuid: FEW },
    mayLack: ['gpu_uuid'],
  },
  shoal_device_uncorrected_errors: {
    type: 'gauge',
    unit: 'errors',
    help:
      'Memory errors of the card of this worker that ECC could not correct, since its driver was loaded; missing for ' +
      'cards without ECC. XIDs are told by dcgm-exporter alone.',
    labels: { device: FEW, gpu_uuid: FEW },
    mayLack: ['gpu_uuid'],
  },

  // ---- for other cells
  shoal_helped_jobs_total: {
    type: 'counter',
    unit: 'jobs',
    help: 'Bulk jobs of another cell that this worker claimed because it had none of its own.',
    labels: { cell: FEW },
  },

  // ---- what a CPU worker decides
  shoal_main_lane_choice: {
    type: 'gauge',
    unit: '1 or 0',
    help: 'Of a CPU worker: 1 for why it takes from the main lane, or does not.',
    labels: { reason: LANE_REASONS },
  },
  shoal_break_even_tokens: {
    type: 'gauge',
    unit: 'tokens',
    help:
      'Of a CPU worker: backlog of the main lane from which on one job more here shortens the total time, by ' +
      'length of rows.',
    labels: { length: LENGTH_CLASSES },
  },

  // ---- the janitor
  shoal_janitor_sweeps_total: {
    type: 'counter',
    unit: 'sweeps',
    help: 'Sweeps of the queue that this worker’s janitor finished.',
    labels: {},
  },
  shoal_janitor_last_sweep_duration_seconds: {
    type: 'gauge',
    unit: 'seconds',
    help: 'Time the last of them took, rests included.',
    labels: {},
  },
  shoal_janitor_last_sweep_timestamp_seconds: {
    type: 'gauge',
    unit: 'Unix time in seconds',
    help: 'When the last of them ended.',
    labels: {},
  },
  shoal_janitor_findings_total: {
    type: 'counter',
    unit: 'things',
    help:
      'What sweeps took away or put right: inputs without a job, results without a time to live, reservations of ' +
      'nobody, jobs with damaged records, without a list entry or without their child, ids without a job, finished ' +
      'jobs that were old.',
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
  shoal_results_expired_unread_total: {
    type: 'counter',
    unit: 'jobs',
    help:
      'Results whose time to live ended before anybody read them, as sweeps of this worker’s janitor find out; of jobs ' +
      'that were added by hand nobody knows it.',
    labels: {},
  },
  shoal_janitor_input_bytes_total: {
    type: 'counter',
    unit: 'bytes',
    help: 'Bytes of the inputs that sweeps took away.',
    labels: {},
  },
} as const satisfies MetricCatalogue;
