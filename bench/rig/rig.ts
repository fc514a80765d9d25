// What the benches of the queue share: a queue server with an append-only file, the real worker on a simulated device,
// and a client that adds jobs, hears of their ends, fetches each result once and checks every row of it. Linux only:
// CPU times are read from /proc.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { encodeTokens, fingerprintOf, mainQueue, openResult, type EmbedJobData } from '@shoal/contract';
import { cacheFolder } from '@shoal/core';
import { pacedAxis } from '@shoal/core/sim';
import { openModel, openTokenizer } from '@shoal/models';
import { JobProducer, ResultReader, type AddResult, type AdmissionLimits } from '@shoal/queue';
import { tuning } from '@shoal/private-server';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { openDelay } from './delay-process.ts';
import { childrenOf, processCpuMs } from './processes.ts';
import { randomFrom } from './ragged-corpus.ts';

const MODEL = 'minilm';
export const QUEUE = mainQueue(`${MODEL}-sim`);
const cacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);

/**
 * A device that takes 15 ms for whatever it runs, up to 1,024 rows at a time; one run after the other, unless
 * SHOAL_DEVICE_SESSIONS is given.
 */
export const FIXED_DEVICE = {
  SHOAL_DEVICE: 'sim:1000000+15',
  SHOAL_MAX_PADDED_TOKENS: '65536',
  SHOAL_MAX_ROWS: '1024',
  SHOAL_POOL_TOKENS: '90000',
} as const;

export interface Cpu {
  readonly server: number;
  readonly claimer: number;
  readonly executor: number;
  readonly client: number;
}

export interface Rig {
  readonly server: TestServer;
  /** Where the worker reaches the server, and clients should. */
  readonly url: string;
  readonly worker: ChildProcess;
  /** Of a PING from everybody else to the server, ms; undefined where nothing was put between them. */
  readonly roundTripMs: number | undefined;
  /** CPU so far, ms. */
  cpuMs(): Cpu;
  stop(): Promise<void>;
}

export interface RigOptions {
  readonly serverArgs?: readonly string[];
  /** Round trip between the server and everybody else, ms. Default 0: they share the machine. */
  readonly roundTripMs?: number;
}

/** `environment`: of the worker; it may depend on where the server is. */
export async function openRig(
  environment: Readonly<Record<string, string>> | ((url: string) => Readonly<Record<string, string>>),
  { serverArgs = [], roundTripMs = 0 }: RigOptions = {},
): Promise<Rig> {
  const server = await startTestServer({ appendFsync: 'everysec', args: [...tuning(), ...serverArgs] });
  const delay = roundTripMs > 0 ? await openDelay(server.url, roundTripMs) : undefined;
  const url = delay?.url ?? server.url;
  const worker = fork(fileURLToPath(new URL('../../apps/gpu-worker/src/main.ts', import.meta.url)), [], {
    env: {
      ...process.env,
      REDIS_URL: url,
      SHOAL_REDIS_URL: url,
      SHOAL_MODEL: MODEL,
      SHOAL_MAX_TOKENS: '512',
      SHOAL_LOG_LEVEL: 'warn',
      ...(typeof environment === 'function' ? environment(url) : environment),
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  const killWithUs = (): void => void worker.kill('SIGKILL');
  process.once('exit', killWithUs);
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(1));
  const [message] = (await once(worker, 'message')) as [{ kind: string; failure?: { message: string } }];
  if (message.kind !== 'ready') throw new Error(message.failure?.message ?? 'the worker did not start');
  return {
    server,
    url,
    worker,
    roundTripMs: delay?.roundTripMs,
    cpuMs: () => {
      const [executor] = childrenOf(worker.pid!);
      const { user, system } = process.cpuUsage();
      return {
        server: processCpuMs(server.pid),
        claimer: processCpuMs(worker.pid!),
        executor: executor === undefined ? 0 : processCpuMs(executor),
        client: (user + system) / 1_000,
      };
    },
    stop: async () => {
      const gone = once(worker, 'exit');
      worker.kill('SIGTERM');
      await gone;
      process.off('exit', killWithUs);
      await delay?.close();
      await server.stop();
    },
  };
}

export interface Payload {
  readonly data: EmbedJobData;
  readonly input: Buffer;
  readonly axes: readonly number[];
}

/** Jobs of `rows` texts of 8 to 48 tokens; every row's vector is known beforehand. */
export async function makePayloads(
  rows: number,
  count: number,
  more: Partial<EmbedJobData>,
  poison?: number,
): Promise<Payload[]> {
  const model = await openModel(MODEL, { cacheDir });
  const tokenizer = await openTokenizer(model, { maxTokens: 512 });
  const random = randomFrom(rows);
  return Array.from({ length: count }, () => {
    const ids = Array.from({ length: rows }, () => [
      101,
      ...Array.from({ length: 6 + Math.floor(40 * random()) }, () => 1_000 + Math.floor(20_000 * random())),
      102,
    ]);
    if (poison !== undefined) ids[0]![1] = poison;
    const input = encodeTokens(ids);
    const facts = {
      model: `${MODEL}-sim@${model.revision}`,
      prompt: undefined,
      truncate: 'end',
      output: { dtype: 'f32', dimensions: undefined },
    } as const;
    const tokens = ids.reduce((sum, row) => sum + row.length, 0);
    return {
      data: {
        v: 1,
        input: { form: 'tokens', rows, tokens, tokenizer: tokenizer.hash },
        fingerprint: fingerprintOf(facts, input),
        ...more,
      },
      input,
      axes: ids.map((row) => pacedAxis(row, model.dims)),
    };
  });
}

export interface Ended {
  readonly jobId: string;
  /** From when it was due to when its rows were checked. */
  readonly ms: number;
  /** From when the producer was asked to add it to when this process was told that it had ended. */
  readonly toldMs: number;
  readonly rows: number;
}

export interface LoadOptions {
  readonly url: string;
  readonly name: string;
  readonly rows: number;
  readonly tenant?: string;
  readonly class?: 'interactive' | 'bulk';
  readonly limits?: Partial<AdmissionLimits>;
  /** A token in the first row of each job; see SHOAL_FAULT_TOKEN. */
  readonly poison?: number;
  /** Reads results only while it is true. Default: always. */
  readonly isReading?: () => boolean;
  readonly onEnded?: (ended: Ended) => void;
  /** Whether `ended` lists what ended. Default true. */
  readonly isKeeping?: boolean;
}

/** Results that the SDK reads in one go. */
const FETCHED_AT_ONCE = 32;

/** One client: adds jobs and takes their results, each checked row by row. */
export class Load {
  readonly ended: Ended[] = [];
  failed = 0;
  private readonly producer: JobProducer;
  private readonly reader: ResultReader;
  private readonly payloads: readonly Payload[];
  private readonly options: LoadOptions;
  private readonly open = new Map<
    string,
    { readonly payload: Payload; readonly dueMs: number; readonly askedMs: number; toldMs?: number }
  >();
  private arrived: string[] = [];
  private toMark: string[] = [];
  private readonly fetching = new Set<string>();
  private readonly work = new Set<Promise<void>>();
  private isPumpDue = false;
  private made = 0;
  private heard = 0;
  private wake: () => void = () => undefined;

  private constructor(producer: JobProducer, reader: ResultReader, payloads: readonly Payload[], options: LoadOptions) {
    this.producer = producer;
    this.reader = reader;
    this.payloads = payloads;
    this.options = options;
    reader.onReply(({ completed, failed }) => {
      this.failed += failed.length;
      for (const jobId of failed) this.open.delete(jobId);
      const nowMs = performance.now();
      for (const jobId of completed) {
        const job = this.open.get(jobId);
        if (job !== undefined) job.toldMs ??= nowMs - job.askedMs;
      }
      this.arrived.push(...completed);
      this.fetch();
    });
  }

  static async connect(options: LoadOptions): Promise<Load> {
    const { url: redisUrl, name, rows, tenant = name, class: kind, limits } = options;
    const reader = await ResultReader.connect({ redisUrl, queue: QUEUE, replyName: `bench-${name}` });
    const producer = await JobProducer.connect({ redisUrl, queue: QUEUE, limits });
    const payloads = await makePayloads(
      rows,
      Math.max(4, Math.min(200, Math.ceil(4_000 / rows))),
      { reply: reader.replyChannel, tenant, ...(kind === undefined ? {} : { class: kind }) },
      options.poison,
    );
    return new Load(producer, reader, payloads, options);
  }

  get waiting(): number {
    return this.open.size;
  }

  /** Adds so many jobs that are due now; gives the answers of those that were not let in. */
  add(count: number): Promise<Extract<AddResult, { outcome: 'refused' }>[]> {
    const nowMs = performance.now();
    return this.addDue(Array.from({ length: count }, () => nowMs));
  }

  /** A job for each moment at which one was due. */
  private async addDue(moments: readonly number[]): Promise<Extract<AddResult, { outcome: 'refused' }>[]> {
    const askedMs = performance.now();
    const fresh = moments.map((dueMs) => {
      const payload = this.payloads[this.made % this.payloads.length]!;
      const jobId = `${this.options.name}-${this.made++}`;
      this.open.set(jobId, { payload, dueMs, askedMs });
      return { jobId, data: payload.data, input: payload.input };
    });
    const results = await this.producer.add(fresh);
    const refused = results.filter((result) => result.outcome === 'refused');
    for (const { jobId } of refused) this.open.delete(jobId);
    return refused;
  }

  /**
   * Jobs arrive at random moments, so many a second on average, whatever becomes of them; resolves when all have ended.
   */
  async offer(jobsPerSecond: number, seconds: number): Promise<void> {
    const random = randomFrom(7);
    const startMs = performance.now();
    const adding = new Set<Promise<unknown>>();
    let dueMs = startMs;
    while (dueMs < startMs + seconds * 1_000) {
      const nowMs = performance.now();
      const moments: number[] = [];
      while (dueMs <= nowMs) {
        moments.push(dueMs);
        dueMs -= (Math.log(1 - random()) * 1_000) / jobsPerSecond;
      }
      if (moments.length > 0) {
        const added = this.addDue(moments).finally(() => adding.delete(added));
        adding.add(added);
      }
      await new Promise((resolve) => setTimeout(resolve, 4));
    }
    await Promise.all(adding);
    await this.allEnded();
  }

  /** Resolves when no job is open. A message may be lost: what is silent for 2 s is asked for. */
  async allEnded(): Promise<void> {
    while (this.open.size > 0) {
      const heardBefore = this.heard;
      await Promise.race([
        new Promise<void>((resolve) => (this.wake = resolve)),
        new Promise((resolve) => setTimeout(resolve, 2_000)),
      ]);
      if (this.heard === heardBefore && this.fetching.size === 0) await this.ask();
    }
  }

  async ask(): Promise<void> {
    const states = await this.producer.states([...this.open.keys()]);
    this.arrived.push(...states.filter(({ state }) => state === 'completed').map(({ jobId }) => jobId));
    this.fetch();
  }

  async close(): Promise<void> {
    this.pump();
    while (this.work.size > 0) await Promise.all(this.work);
    await Promise.all([this.producer.close(), this.reader.close()]);
  }

  /**
   * As the SDK does: what came in one turn of the event loop is fetched together, beside what is under way; results are
   * marked taken in the next.
   */
  private fetch(): void {
    if (this.isPumpDue || this.options.isReading?.() === false) return;
    this.isPumpDue = true;
    setImmediate(() => {
      this.isPumpDue = false;
      this.pump();
    });
  }

  private pump(): void {
    const fresh = [...new Set(this.arrived.splice(0))].filter(
      (jobId) => this.open.has(jobId) && !this.fetching.has(jobId),
    );
    for (let at = 0; at < fresh.length; at += FETCHED_AT_ONCE)
      this.track(this.fetchSome(fresh.slice(at, at + FETCHED_AT_ONCE)));
    if (this.toMark.length > 0) this.track(this.reader.markTaken(this.toMark.splice(0)));
  }

  private track(work: Promise<void>): void {
    const ended = work.finally(() => {
      this.work.delete(ended);
      if (this.toMark.length > 0) this.fetch();
    });
    this.work.add(ended);
  }

  private async fetchSome(jobIds: readonly string[]): Promise<void> {
    for (const jobId of jobIds) this.fetching.add(jobId);
    const bodies = await this.reader.peek(jobIds);
    for (const [i, bytes] of bodies.entries()) {
      const jobId = jobIds[i]!;
      if (!Buffer.isBuffer(bytes)) throw new Error(`${jobId} has no result`, { cause: bytes });
      const { payload, dueMs, askedMs, toldMs } = this.open.get(jobId)!;
      this.open.delete(jobId);
      this.fetching.delete(jobId);
      this.toMark.push(jobId);
      const rows = check(jobId, bytes, payload);
      this.reader.release([bytes]); // as the SDK does with what it has copied
      const nowMs = performance.now();
      const ended = { jobId, ms: nowMs - dueMs, toldMs: toldMs ?? nowMs - askedMs, rows };
      this.heard++;
      if (this.options.isKeeping !== false) this.ended.push(ended);
      this.options.onEnded?.(ended);
    }
    this.wake();
  }
}

function check(jobId: string, bytes: Buffer, payload: Payload): number {
  const { header, body } = openResult(bytes);
  const aligned = body.byteOffset % 4 === 0 ? body : Buffer.from(body);
  const values = new Float32Array(aligned.buffer, aligned.byteOffset, header.rows * header.dims);
  if (header.rows !== payload.axes.length) throw new Error(`${jobId} has ${header.rows} rows`);
  for (const [row, axis] of payload.axes.entries())
    if (values[row * header.dims + axis] !== 1) throw new Error(`${jobId}: row ${row} is not what the device gave`);
  return header.rows;
}

export function percentile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}
