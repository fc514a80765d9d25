// What the batch budget makes of a device, against an oracle that knows the device's law and picks the best constant
// token budget by trying them all on the same pool and planner. Simulated devices, in simulated time: no process, no
// queue, only Pool, budget and the law of the device (core/src/sim), which is not the form the budget predicts with.
// One micro-batch runs and one is queued behind it, so that the budget learns of a failure one batch late, as in a
// worker.
//
//   node --conditions=@shoal/source bench/device/batch-budget.ts [--batches 10000] [--oracle-batches 500]
//   [--in-flight 2] [--seed 1] [--devices 4,8,12,24,80,141]
//
// Prints a table (stderr) and one JSON line (stdout). Bars, exit code 1 when one is missed: at most 1 OOM in 10,000
// batches and at least 0.95 of the oracle's throughput in every case; a co-tenant that takes half of the memory in
// mid-run, seen by the driver's figures or not, costs at most two OOMs.

import { Pool, createBudget, fitMemoryModel, type Budget, type MemoryPoint, type RunShape } from '@shoal/core';
import { seededRandom } from '@shoal/core/base';
import {
  REFUSAL_MS,
  SimulatedMemory,
  h200Law,
  runMs,
  tensorBytes,
  type DeviceLaw,
  type MemoryForm,
} from '@shoal/core/sim';
import type { PoolRow } from '../../libs/core/src/executor/buckets.ts';
import type { CutLimits } from '../../libs/core/src/executor/cut-plan.ts';
import { halve, type MicroBatch } from '../../libs/core/src/executor/pool.ts';
import { readArguments } from '../rig/arguments.ts';

const args = readArguments(import.meta.url, {
  batches: { type: 'string', default: '10000' },
  'oracle-batches': { type: 'string', default: '500' },
  'in-flight': { type: 'string', default: '2' },
  seed: { type: 'string', default: '1' },
  devices: { type: 'string', default: '4,8,12,24,80,141' },
});
const BATCHES = Number(args.batches);
const ORACLE_BATCHES = Number(args['oracle-batches']);
const SEED = Number(args.seed);
const IN_FLIGHT = Number(args['in-flight']);
const MAX_WIDTH = 512;
/**
 * A tiny run for the floor, short ones for the slack, then the bends of the table; the widest both alone and with
 * others, which an arena that doubles treats differently.
 */
const FIT_SHAPES: readonly RunShape[] = [
  [1, 8],
  [1, 128],
  [4, 128],
  [1, MAX_WIDTH],
  [16, 32],
  [2, 384],
  [8, 256],
  [4, MAX_WIDTH],
].map(([rows, width]) => ({ rows: rows!, width: width! }));
const MAX_ROWS = 16_384;
const MAX_ROW_AGE_MS = 250;
const LEAST_RATIO = 0.95;
const MOST_OOMS_IN_10_000 = 1;
const MOST_OOMS_BY_TENANT = 2;
/** A new executor: open the graph, warm up. */
const RECYCLE_MS = 3_000;
const PROBE_EVERY_MS = 1_000;

// ---- lengths ----------------------------------------------------------------------------------------------------

type Mix = (random: () => number) => number;
const logNormal =
  (median: number, sigma: number): Mix =>
  (random) =>
    Math.max(
      8,
      Math.min(
        MAX_WIDTH,
        Math.round(
          median * Math.exp(sigma * Math.sqrt(-2 * Math.log(random() + 1e-12)) * Math.cos(2 * Math.PI * random())),
        ),
      ),
    );

const MIXES: Readonly<Record<string, Mix>> = {
  ragged: logNormal(52, 0.98),
  short: logNormal(14, 0.4),
  long: logNormal(380, 0.5),
};

/** The mix in force when `part` of the run is over. */
type Stream = (part: number) => Mix;
const STREAMS: Readonly<Record<string, Stream>> = {
  ragged: () => MIXES['ragged']!,
  short: () => MIXES['short']!,
  long: () => MIXES['long']!,
  'short, then long': (part) => MIXES[part < 0.5 ? 'short' : 'long']!,
};

// ---- devices ----------------------------------------------------------------------------------------------------

/** Padded tokens from which larger batches gain next to nothing: 64 k on an H200, less on smaller cards. */
const KNEES: Readonly<Record<string, number>> = {
  4: 16_384,
  8: 16_384,
  12: 24_576,
  24: 32_768,
  80: 65_536,
  141: 65_536,
};
const FORMS: readonly MemoryForm[] = ['plain', 'fused', 'fp16'];

interface Device {
  readonly gigabytes: string;
  readonly binds: 'memory' | 'knee';
  readonly law: DeviceLaw;
}

/** `memory`: all of the room holds half of the knee, at 64 tokens a row. `knee`: twice the knee at the widest row. */
function deviceOf(gigabytes: string, binds: Device['binds'], form: MemoryForm): Device {
  const kneeTokens = KNEES[gigabytes] ?? 65_536;
  const plain = h200Law({
    totalBytes: Number(gigabytes) * 1e9,
    form,
    kneeTokens,
    perTokenMs: (0.31 * 26) / kneeTokens,
    weightsBytes: Number(gigabytes) * 0.1e9,
  });
  const room = plain.totalBytes - plain.contextBytes - plain.weightsBytes;
  const [tokens, width] = binds === 'memory' ? [kneeTokens / 2, 64] : [2 * kneeTokens, MAX_WIDTH];
  return {
    gigabytes,
    binds,
    law: { ...plain, memoryScale: room / tensorBytes(plain, { rows: tokens / width, width }) },
  };
}

// ---- one run ----------------------------------------------------------------------------------------------------

interface Sizing {
  readonly rowsAt: CutLimits['rowsAt'];
  readonly budget?: Budget;
}

interface Tenant {
  readonly isSeen: boolean;
}

interface Figures {
  readonly tokensPerMs: number;
  readonly textsPerSecond: number;
  readonly paddingEfficiency: number;
  readonly ooms: number;
  readonly oomsByTenant: number;
}

function simulate(
  { law }: Device,
  stream: Stream,
  batches: number,
  seed: number,
  { rowsAt, budget }: Sizing,
  tenant?: Tenant,
): Figures {
  const random = seededRandom(seed);
  let memory = warm(law, random);
  const pool = new Pool<PoolRow>();
  const limits: CutLimits = { rowsAt, maxRowAgeMs: MAX_ROW_AGE_MS };
  const poolTokens = 16 * law.kneeTokens;
  const waiting: MicroBatch<PoolRow>[] = [];
  let [nowMs, probedMs, rows, tokens, padded, ooms, oomsBefore] = [0, 0, 0, 0, 0, 0, 0];
  const cut = (part: number): MicroBatch<PoolRow> => {
    const mix = stream(part);
    while (pool.tokens < poolTokens) pool.add({ tokens: mix(random), enteredMs: nowMs, isInteractive: false });
    return fitting(waiting, rowsAt) ?? pool.cut(limits, nowMs)!;
  };
  const inFlight: MicroBatch<PoolRow>[] = [];
  for (let batch = 0; batch < batches; batch++) {
    while (inFlight.length < (budget?.current().isTesting === true ? 1 : IN_FLIGHT))
      inFlight.push(cut(batch / batches));
    const running = inFlight.shift()!;
    if (batch === Math.floor(batches / 2) && tenant !== undefined) {
      [memory.othersBytes, memory.areOthersSeen, oomsBefore] = [law.totalBytes / 2, tenant.isSeen, ooms];
    }
    const shape = { rows: running.rows.length, width: running.width };
    const verdict = memory.take(shape);
    if (verdict === 'fits') {
      const tookMs = runMs(law, shape) * (1 + 0.02 * (2 * random() - 1));
      nowMs += tookMs;
      rows += shape.rows;
      padded += shape.rows * shape.width;
      for (const row of running.rows) tokens += row.tokens;
      budget?.ran({ ...shape, runMs: tookMs, memory: memory.reading() });
    } else {
      ooms++;
      nowMs += REFUSAL_MS;
      budget?.ranOutOfMemory(shape);
      if (shape.rows > 1) waiting.push(...halve(running));
      if (verdict === 'needs-recycle') {
        nowMs += RECYCLE_MS;
        const { othersBytes, areOthersSeen } = memory;
        memory = Object.assign(warm(law, random), { othersBytes, areOthersSeen });
      }
    }
    if (verdict !== 'fits' || nowMs - probedMs > PROBE_EVERY_MS) {
      probedMs = nowMs;
      budget?.deviceMemory(memory.driver(), memory.reading().footprintBytes);
    }
  }
  return {
    tokensPerMs: tokens / nowMs,
    textsPerSecond: (rows * 1000) / nowMs,
    paddingEfficiency: tokens / padded,
    ooms,
    oomsByTenant: ooms - oomsBefore,
  };
}

/** The next half of a batch that failed; halved again where the budget has shrunk below it, as the executor does. */
function fitting(halves: MicroBatch<PoolRow>[], rowsAt: CutLimits['rowsAt']): MicroBatch<PoolRow> | undefined {
  for (let batch = halves.shift(); batch !== undefined; batch = halves.shift()) {
    if (batch.rows.length <= rowsAt(batch.width)) return batch;
    halves.unshift(...halve(batch));
  }
  return undefined;
}

/**
 * A new executor has run one row of each class of widths, before its arena can take the room that the workspaces need.
 */
function warm(law: DeviceLaw, random: () => number): SimulatedMemory {
  const memory = new SimulatedMemory(law, random);
  for (const width of [8, 128, MAX_WIDTH]) memory.take({ rows: 1, width });
  return memory;
}

/** As a worker starts: the memory measured with a few shapes, the knee unknown. */
function startBudget({ law }: Device, seed: number): Budget {
  const random = seededRandom(seed);
  const points = FIT_SHAPES.flatMap((shape): MemoryPoint[] => {
    const memory = new SimulatedMemory(law, random); // a fresh process for each shape
    const loadedBytes = law.contextBytes + law.weightsBytes;
    return memory.take(shape) === 'fits' ? [{ ...shape, loadedBytes, peakBytes: memory.reading().liveBytes! }] : [];
  });
  return createBudget({
    maxPaddedTokens: 1 << 20,
    maxRows: MAX_ROWS,
    maxTokens: MAX_WIDTH,
    model: { hiddenSize: 384, intermediateSize: law.elementsPerToken, heads: 12 },
    memory: { law: fitMemoryModel(points, { arena: 'doubling' }), source: 'fitted' },
    totalBytes: law.totalBytes,
  });
}

interface Oracle extends Figures {
  readonly budgetTokens: number;
}

/** The fastest constant budget; an OOM costs it what it costs anybody. */
function oracleOf(device: Device, stream: Stream): Oracle {
  let best: Oracle | undefined;
  for (
    let budgetTokens = device.law.kneeTokens / 32;
    budgetTokens <= 4 * device.law.kneeTokens;
    budgetTokens *= 2 ** 0.25
  ) {
    const figures = simulate(device, stream, ORACLE_BATCHES, 2_000 + SEED, {
      rowsAt: (width) => Math.max(1, Math.min(MAX_ROWS, Math.floor(budgetTokens / width))),
    });
    if (best === undefined || figures.tokensPerMs > best.tokensPerMs)
      best = { ...figures, budgetTokens: Math.round(budgetTokens) };
  }
  return best!;
}

// ---- the table --------------------------------------------------------------------------------------------------

const misses: string[] = [];
const cases: object[] = [];
const say = (...columns: readonly (string | number)[]): void =>
  void process.stderr.write(`| ${columns.join(' | ')} |\n`);

function judge(device: Device, form: MemoryForm, streamName: string): void {
  const stream = STREAMS[streamName]!;
  const oracle = oracleOf(device, stream);
  const budget = startBudget(device, 1_000 + SEED);
  const ours = simulate(device, stream, BATCHES, 3_000 + SEED, { rowsAt: (width) => budget.rowsAt(width), budget });
  const ratio = ours.tokensPerMs / oracle.tokensPerMs;
  const { maxPaddedTokens, limitedBy, source } = budget.current();
  const name = `${device.gigabytes} GB, ${device.binds}, ${form}, ${streamName}`;
  if (!(ratio >= LEAST_RATIO)) misses.push(`${name}: ${ratio.toFixed(3)} of the oracle`);
  if (ours.ooms > Math.ceil((MOST_OOMS_IN_10_000 * BATCHES) / 10_000)) misses.push(`${name}: ${ours.ooms} OOMs`);
  cases.push({
    gigabytes: Number(device.gigabytes),
    binds: device.binds,
    form,
    stream: streamName,
    ratio: Number(ratio.toFixed(4)),
    ooms: ours.ooms,
    maxPaddedTokens,
    limitedBy,
    source,
    oracleTokens: oracle.budgetTokens,
    oracleOoms: oracle.ooms,
  });
  say(
    device.gigabytes,
    device.binds,
    form,
    streamName,
    ratio.toFixed(3),
    ours.ooms,
    `${maxPaddedTokens} (${limitedBy}, ${source})`,
    `${oracle.budgetTokens} (${oracle.ooms} OOMs)`,
    Math.round(ours.textsPerSecond),
    ours.paddingEfficiency.toFixed(3),
  );
}

function judgeTenant(device: Device, form: MemoryForm, isSeen: boolean): void {
  const budget = startBudget(device, 1_000 + SEED);
  const { ooms, oomsByTenant, textsPerSecond } = simulate(
    device,
    STREAMS['ragged']!,
    BATCHES,
    4_000 + SEED,
    { rowsAt: (width) => budget.rowsAt(width), budget },
    { isSeen },
  );
  const { maxPaddedTokens, limitedBy, source } = budget.current();
  if (oomsByTenant > MOST_OOMS_BY_TENANT)
    misses.push(
      `${device.gigabytes} GB, ${device.binds}, ${form}, co-tenant ${isSeen ? 'seen' : 'unseen'}: ${oomsByTenant} OOMs`,
    );
  cases.push({
    gigabytes: Number(device.gigabytes),
    binds: device.binds,
    form,
    tenant: isSeen ? 'seen' : 'unseen',
    ooms,
    oomsByTenant,
    maxPaddedTokens,
    limitedBy,
  });
  say(
    device.gigabytes,
    device.binds,
    form,
    `ragged, co-tenant ${isSeen ? 'seen' : 'unseen'}`,
    '',
    `${oomsByTenant}`,
    `${maxPaddedTokens} (${limitedBy}, ${source})`,
    '',
    Math.round(textsPerSecond),
    '',
  );
}

say(
  'GB',
  'what binds',
  'form',
  'lengths',
  '÷ oracle',
  'OOMs',
  'budget at the end',
  'oracle’s budget',
  'texts/s',
  'padding',
);
say('---', '---', '---', '---', '---', '---', '---', '---', '---', '---');
for (const [i, gigabytes] of args.devices.split(',').entries()) {
  for (const binds of ['memory', 'knee'] as const) {
    const form = FORMS[(i + (binds === 'knee' ? 1 : 0)) % FORMS.length]!;
    const device = deviceOf(gigabytes, binds, form);
    for (const streamName of Object.keys(STREAMS)) judge(device, form, streamName);
    for (const isSeen of [true, false]) judgeTenant(device, form, isSeen);
  }
}
const ratios = cases.flatMap((one) => ('ratio' in one ? [one.ratio as number] : []));
process.stdout.write(
  `${JSON.stringify({ bench: 'batch-budget', batches: BATCHES, leastRatio: Math.min(...ratios), misses, cases })}\n`,
);
if (misses.length > 0) process.exitCode = 1;
