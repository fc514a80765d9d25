// One producer of the chaos bench, a process of its own: keeps a window of jobs open, holds itself to what the server
// acknowledged, and compares every row of every answer with the undisturbed one. `again` adds a job anew when the
// server no longer knows it, as the SDK does; `once` never does, so that whatever is lost is seen. What a payload server
// lost is asked for again in either, by the queue server.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  decodeResultHeader,
  encodeTokens,
  fingerprintOf,
  isShoalError,
  mainQueue,
  openResult,
  type EmbedJobData,
} from '@shoal/contract';
import { systemClock } from '@shoal/core';
import { HistoryWriter, Recorder, sharedClockMs } from '@shoal/world';
import { failureCode } from './failure-code.ts';
import { isSame } from './same-vectors.ts';
import {
  JobProducer,
  PayloadServers,
  ResultReader,
  connectRaw,
  processCounts,
  type Again,
  type NewJob,
  type Redis,
} from './producer-parts.ts';
import { randomFrom } from '../rig/ragged-corpus.ts';

export interface ProducerOrder {
  readonly redisUrl: string;
  readonly index: number;
  /** 0, and one more for each process that went on with the same ids. */
  readonly life: number;
  readonly seed: number;
  readonly mode: 'again' | 'once';
  readonly window: number;
  /** name@revision */
  readonly model: string;
  readonly slug: string;
  readonly tokenizer: string;
  readonly dims: number;
  readonly rows: readonly (readonly number[])[];
  /** Rows that the small device refuses; in every `refusedEvery`-th job. */
  readonly refusedRows: readonly number[];
  readonly refusedEvery: number;
  /** File with rows × dims f32: what an undisturbed run gave. */
  readonly expectedPath: string;
  /** File that gets what was called and answered; it must not be there. */
  readonly historyPath: string;
  /** As the setting lists them; empty: none. */
  readonly payloadServers: string;
}

export interface ProducerReport {
  readonly acknowledged: number;
  readonly texts: number;
  readonly completed: number;
  readonly failed: Readonly<Record<string, number>>;
  readonly open: number;
  readonly lost: number;
  readonly wrong: number;
  readonly visibleTwice: number;
  readonly addedAgain: number;
  /** Inputs and results that payload servers lost, and inputs that they took. */
  readonly payloadsLost: number;
  readonly payloadsPut: number;
  readonly handedOver: number;
  /** Claims of each job beyond its first, over all whose count could still be read. */
  readonly claimedAgain: number;
  readonly claimsKnown: number;
}

/** Of a job that has not ended. */
export interface OpenSeen {
  readonly jobId: string;
  readonly isAcknowledged: boolean;
}

interface OpenJob {
  job: NewJob;
  readonly rows: readonly number[];
  again: Again;
  isAcknowledged: boolean;
  isHeard: boolean;
  lookAtMs: number;
}

interface Seen {
  readonly state: string;
  readonly failedReason: string | undefined;
}

const LOOK_AFTER_MS = 2_000;
/** Rows whose result is so large (24 KB here) that it is staged before its commit: one job in five. */
const STAGED_ROWS = 192;
/** Most bulk jobs are so large, with rows so long, where inputs (18 KB) and results (32 KB) are to lie beside. */
const BESIDE = { rows: 256, tokens: 33, share: 0.7 };
/** Delivered results that are asked for once more at the end. */
const ASKED_TWICE = 20_000;

class ChaosProducer {
  private readonly order: ProducerOrder;
  private readonly producer: JobProducer;
  private readonly reader: ResultReader;
  private readonly raw: Redis;
  private readonly expected: Float32Array;
  private readonly random: () => number;
  private readonly history: Recorder;
  private readonly open = new Map<string, OpenJob>();
  private readonly delivered: string[] = [];
  /** Numbers of rows that no device refuses. */
  private readonly shortAndLong: readonly number[];
  private readonly longRows: readonly number[];
  private made = 0;
  private isAdding = true;
  private readonly tally = {
    acknowledged: 0,
    texts: 0,
    completed: 0,
    lost: 0,
    wrong: 0,
    visibleTwice: 0,
    addedAgain: 0,
    payloadsLost: 0,
    handedOver: 0,
    claimedAgain: 0,
    claimsKnown: 0,
  };
  private readonly failed: Record<string, number> = {};

  constructor(order: ProducerOrder, producer: JobProducer, reader: ResultReader, raw: Redis) {
    this.order = order;
    this.producer = producer;
    this.reader = reader;
    this.raw = raw;
    this.shortAndLong = Array.from({ length: order.rows.length - order.refusedRows.length }, (_, row) => row);
    this.longRows = this.shortAndLong.filter((row) => order.rows[row]!.length >= BESIDE.tokens);
    const bytes = readFileSync(order.expectedPath);
    this.expected = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
    this.random = randomFrom(order.seed * 1_000 + order.index);
    this.history = new Recorder(`producer-${order.index}.${order.life}`, new HistoryWriter(order.historyPath));
    reader.onReply(({ completed, failed }) => {
      for (const jobId of [...completed, ...failed]) {
        const open = this.open.get(jobId);
        if (open !== undefined) open.isHeard = true;
      }
    });
  }

  report(): ProducerReport {
    const payloadsPut = processCounts().payloads.put;
    return { ...this.tally, payloadsPut, failed: { ...this.failed }, open: this.open.size };
  }

  openNow(): OpenSeen[] {
    return [...this.open].map(([jobId, { isAcknowledged }]) => ({ jobId, isAcknowledged }));
  }

  /** No more new jobs; resolves when every acknowledged one has had its ending. */
  async finish(): Promise<ProducerReport> {
    this.isAdding = false;
    while (this.open.size > 0) await sleep(50);
    for (let from = Math.max(0, this.delivered.length - ASKED_TWICE); from < this.delivered.length; from += 100) {
      const jobIds = this.delivered.slice(from, from + 100);
      const ends = jobIds.map((jobId) => this.history.invoke('take', jobId));
      const answers = await this.reader.acknowledge(jobIds);
      for (const [at, { kind }] of answers.entries()) ends[at]!('ok', { outcome: kind });
      this.tally.visibleTwice += answers.filter(({ kind }) => kind === 'body').length;
    }
    return this.report();
  }

  async run(): Promise<never> {
    for (;;) {
      try {
        await this.add();
        await this.look();
      } catch (error) {
        if (!isShoalError(error)) throw error; // QUEUE_UNREACHABLE, QUEUE_FULL: the whole turn is repeated
        await sleep(100);
      }
      await sleep(5);
    }
  }

  private async add(): Promise<void> {
    while (this.isAdding && this.open.size < this.order.window) this.make();
    const all = [...this.open.values()].filter(({ isAcknowledged }) => !isAcknowledged).slice(0, 32);
    for (const again of ['when-used-up', 'always'] as const)
      await this.addSome(
        all.filter((open) => open.again === again),
        again,
      );
  }

  private async addSome(waiting: readonly OpenJob[], again: Again): Promise<void> {
    if (waiting.length === 0) return;
    const ends = waiting.map(({ job, rows }) =>
      this.history.invoke('add', job.jobId, { fingerprint: job.data.fingerprint!, want: digestOf(rows) }),
    );
    const results = await this.producer
      .add(
        waiting.map(({ job }) => job),
        { again },
      )
      .catch((error: unknown) => {
        for (const end of ends) end('unknown');
        throw error;
      });
    for (const [at, { outcome }] of results.entries()) {
      const open = waiting[at]!;
      ends[at]!(outcome === 'refused' || outcome === 'conflict' ? 'fail' : 'ok', { outcome });
      if (outcome === 'refused') continue; // no room: it was never acknowledged
      if (outcome === 'conflict') throw new Error(`${open.job.jobId}: a conflict over an id that only we use`);
      open.isAcknowledged = true;
      open.again = 'when-used-up';
      open.lookAtMs = systemClock.nowMs() + LOOK_AFTER_MS;
      this.tally.acknowledged++;
      this.tally.texts += open.rows.length;
    }
    if (results.some(({ outcome }) => outcome === 'refused')) await sleep(50);
  }

  private make(): void {
    const { index, rows, refusedRows, refusedEvery, model, tokenizer, payloadServers } = this.order;
    const number = this.made++;
    const isInteractive = this.random() < 0.1;
    const isBeside = payloadServers !== '' && this.random() < BESIDE.share;
    const bulkRows = isBeside ? BESIDE.rows : this.random() < 0.2 ? STAGED_ROWS : 64;
    const some = isBeside ? this.longRows : this.shortAndLong;
    const picked = Array.from(
      { length: isInteractive ? 1 + Math.floor(this.random() * 4) : bulkRows },
      () => some[Math.floor(this.random() * some.length)]!,
    );
    if (number % refusedEvery === 0) picked[0] = refusedRows[Math.floor(this.random() * refusedRows.length)]!;
    const ids = picked.map((row) => rows[row]!);
    const input = encodeTokens(ids);
    const facts = {
      model,
      prompt: undefined,
      truncate: 'end',
      output: { dtype: 'f32', dimensions: undefined },
    } as const;
    const data: EmbedJobData = {
      v: 1,
      fingerprint: fingerprintOf(facts, input),
      reply: this.reader.replyChannel,
      tenant: `tenant-${number % 5}`,
      class: isInteractive ? 'interactive' : 'bulk',
      input: { form: 'tokens', rows: ids.length, tokens: ids.reduce((sum, row) => sum + row.length, 0), tokenizer },
    };
    const jobId = `c${index}~${number}`;
    this.open.set(jobId, {
      job: { jobId, data, input, mayLieBeside: payloadServers !== '' },
      rows: picked,
      again: 'when-used-up',
      isAcknowledged: false,
      isHeard: false,
      lookAtMs: Infinity,
    });
  }

  private async look(): Promise<void> {
    const nowMs = systemClock.nowMs();
    const due = [...this.open.values()]
      .filter((open) => open.isAcknowledged && (open.isHeard || open.lookAtMs <= nowMs))
      .slice(0, 64);
    if (due.length === 0) return;
    const jobIds = due.map(({ job }) => job.jobId);
    const since = sharedClockMs();
    // first: a result is there before its job is completed, not the other way round
    const states = await this.producer.states(jobIds);
    const [bodies, claims] = await Promise.all([
      this.reader.peek(jobIds),
      Promise.all(
        jobIds.map((jobId) => this.raw.hmget(`{shoal}:${mainQueue(this.order.slug)}:${jobId}`, 'ats', 'returnvalue')),
      ),
    ]);
    const taken: string[] = [];
    for (const [at, open] of due.entries()) {
      open.isHeard = false;
      open.lookAtMs = nowMs + LOOK_AFTER_MS;
      const body = bodies[at];
      if (isShoalError(body)) {
        this.addByQueueServer(open); // nothing was seen of it
        continue;
      }
      this.note(open, states[at]!, body, since);
      if (this.judge(open, states[at]!, body)) {
        taken.push(open.job.jobId);
        this.countClaims(claims[at] ?? []);
      }
    }
    if (taken.length === 0) return;
    const ends = taken.map((jobId) => this.history.invoke('take', jobId));
    await this.reader.markTaken(taken).catch((error: unknown) => {
      for (const end of ends) end('unknown');
      throw error;
    });
    for (const end of ends) end('ok', { outcome: 'mark' });
  }

  /** Writes down how a job ended and what is there of its result. */
  private note({ job, rows }: OpenJob, { state, failedReason }: Seen, body: Buffer | undefined, since: number): void {
    if (!['completed', 'failed', 'unknown'].includes(state)) return;
    const code = state === 'failed' ? { code: failureCode(failedReason) } : {};
    this.history.observe('see', job.jobId, { outcome: state, since, ...code });
    if (state === 'failed') return;
    const header = body === undefined ? undefined : decodeResultHeader(body);
    this.history.observe('read', job.jobId, {
      since,
      outcome: header === undefined ? 'absent' : header.isTaken ? 'taken' : 'body',
      ...(header === undefined || header.isTaken
        ? {}
        : { fingerprint: header.fingerprint, got: digestOf(this.rowsIn(openResult(body!).body, rows)) }),
    });
  }

  /** True when its result was delivered now. */
  private judge(open: OpenJob, { state, failedReason }: Seen, body: Buffer | undefined): boolean {
    const { jobId } = open.job;
    if (state === 'failed') {
      const code = failureCode(failedReason);
      if (code === 'PAYLOAD_LOST') return this.addByQueueServer(open);
      if (code === 'INPUT_LOST' && this.order.mode === 'again') return this.addAgain(open);
      this.failed[code] = (this.failed[code] ?? 0) + 1;
      return !this.open.delete(jobId);
    }
    if (state !== 'completed' && state !== 'unknown') return false;
    if (body === undefined) {
      if (this.order.mode === 'again') return this.addAgain(open);
      this.tally.lost++;
      process.stderr.write(`lost: ${jobId} is ${state} and has no result\n`);
      return !this.open.delete(jobId);
    }
    if (state === 'unknown' && openResult(body).header.isTaken) return this.addAgain(open);
    this.check(jobId, body, open.rows);
    this.tally.completed++;
    this.open.delete(jobId);
    this.delivered.push(jobId);
    return true;
  }

  /** A payload server lost its input or its result. */
  private addByQueueServer(open: OpenJob): false {
    this.tally.payloadsLost++;
    open.job = { ...open.job, mayLieBeside: false };
    open.again = 'always';
    return this.addAgain(open);
  }

  private addAgain(open: OpenJob): false {
    open.isAcknowledged = false;
    this.tally.acknowledged--;
    this.tally.texts -= open.rows.length;
    this.tally.addedAgain++;
    return false;
  }

  private check(jobId: string, bytes: Buffer, rows: readonly number[]): void {
    const { dims } = this.order;
    const { header, body } = openResult(bytes);
    const isRight =
      header.rows === rows.length &&
      header.dims === dims &&
      this.rowsIn(body, rows).every((row, at) => row === rows[at]);
    if (isRight) return;
    this.tally.wrong++;
    process.stderr.write(`wrong: ${jobId}\n`);
  }

  /** The rows that the vectors of a body are those of; -1 where one is not that of the row at its place. */
  private rowsIn(body: Buffer, rows: readonly number[]): number[] {
    const { dims } = this.order;
    const values = new Float32Array(Uint8Array.from(body).buffer);
    const rowAt = (all: Float32Array, row: number): Float32Array => all.subarray(row * dims, (row + 1) * dims);
    return rows.map((row, at) => (isSame(rowAt(values, at), rowAt(this.expected, row)) ? row : -1));
  }

  private countClaims([count, value]: readonly (string | null)[]): void {
    if (value?.includes('"handedOver"') === true) this.tally.handedOver++;
    if (count === null || count === undefined) return;
    this.tally.claimsKnown++;
    this.tally.claimedAgain += Math.max(0, Number(count) - 1);
  }
}

/** Of rows by their numbers, in order. */
function digestOf(rows: readonly number[]): string {
  return createHash('sha1').update(rows.join(' ')).digest('hex').slice(0, 12);
}

async function main(): Promise<void> {
  const order = await new Promise<ProducerOrder>((resolve) => process.once('message', resolve));
  const { payloadServers } = order;
  const payloads =
    payloadServers === '' ? undefined : await PayloadServers.connect({ payloadServers, clientName: 'chaos' });
  const common = { redisUrl: order.redisUrl, queue: mainQueue(order.slug), payloads };
  const reader = await ResultReader.connect({ ...common, replyName: `chaos${order.index}` });
  const producer = new ChaosProducer(
    order,
    await JobProducer.connect(common),
    reader,
    await connectRaw(order.redisUrl),
  );
  process.on('message', (message: 'report' | 'finish' | 'open') => {
    if (message === 'report') process.send?.({ to: message, ...producer.report() });
    else if (message === 'open') process.send?.({ to: message, jobs: producer.openNow() });
    else void producer.finish().then((report) => process.send?.({ to: message, ...report }));
  });
  process.on('disconnect', () => process.exit(1));
  await producer.run();
}

await main();
