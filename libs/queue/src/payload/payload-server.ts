// One payload server, which holds bodies until they are taken: another Valkey or Redis than the queue's, a bucket, or a
// shared folder. Unlike the queue server it may be away, full, read-only or slow without anybody waiting for it: a question is
// answered soon or has failed, and after a failure it is left alone for a while. What it loses is computed again. Reads
// and writes fail apart: a full server still gives what it has.

import { randomUUID } from 'node:crypto';
import { redactMessage, type Logger, type PayloadServerFacts } from '@shoal/core';
import { backoffMs, type Backoff } from '@shoal/core/base';
import type { Bodies, Looked, Remark } from './bodies.ts';

export interface PayloadServerOptions {
  /** As pointers have it. */
  readonly name: string;
  readonly bodies: Bodies;
  readonly log?: Logger | undefined;
}

type Told = 'fails' | 'deletes nothing';

/** Whoever is slower than this is slower than computing a job of 256 rows once more. */
const ANSWER_MS = 3_000;
/** One that fails and answers by turns is told of so often, unless so many questions in a row fail. */
const TELL_EVERY_MS = 60_000;
const IN_A_ROW = 3;
/** What is told of a failure; a log line has all of it. */
const MOST_CHARACTERS = 200;
/** So long lies what is only to see whether a server takes something. */
const TRIED_MS = 60_000;
/** How long it is left alone after failures in a row. */
const PAUSE: Backoff = { firstMs: 500, mostMs: 30_000 };

export class PayloadServer {
  readonly name: string;
  private readonly bodies: Bodies;
  private readonly log: Logger | undefined;
  private becomingReady: Promise<void> | undefined;
  /** What was told and is so still. */
  private told: Told | undefined;
  private readonly toldMs = { fails: Number.NEGATIVE_INFINITY, 'deletes nothing': Number.NEGATIVE_INFINITY };
  /** Since that was told. */
  private failures = 0;
  private readonly trouble = { read: new Trouble(), write: new Trouble() };
  private memory: Looked['memory'];

  constructor({ name, bodies, log }: PayloadServerOptions) {
    this.name = name;
    this.bodies = bodies;
    this.log = log;
  }

  /** Which place that is, where its name does not say it. */
  get where(): string | undefined {
    return this.bodies.where;
  }

  /** As of the last question; since when one fails, by this machine's clock. */
  get facts(): PayloadServerFacts {
    const { read, write } = this.trouble;
    const { memory, name } = this;
    const failing = write.failures > 0 ? write : read;
    if (failing.failures === 0) return { name, memory };
    const what = failing === write ? 'takes no body' : 'gives nothing';
    const problem = `${what} (${failing.reason})`.slice(0, MOST_CHARACTERS);
    return { name, problem, sinceMs: failing.sinceMs, memory: read.failures > 0 ? undefined : memory };
  }

  /**
   * For `facts` while nobody has a body for it. One that failed, and has been left alone since, is tried with some bytes:
   * that it answers does not say that it takes them again.
   */
  async look(): Promise<void> {
    const { read, write } = this.trouble;
    if (this.isInTrouble && !read.isFresh && !write.isFresh) await this.tryAgain();
    try {
      this.memory = (await this.inTime(this.bodies.look())).memory;
    } catch (error) {
      this.failed('read', error);
    }
  }

  /** It did not take something a moment ago: whoever has another way takes that one. */
  get isPaused(): boolean {
    return this.trouble.write.isFresh;
  }

  /** Resolves when it can be asked, after two seconds at the latest, and at once while it is known to be away. */
  async ready(): Promise<void> {
    const { isFresh, failures } = this.trouble.read;
    if (isFresh && failures > 1) return;
    this.becomingReady ??= this.bodies
      .ready()
      .catch(() => undefined) // the next question finds out
      .finally(() => (this.becomingReady = undefined));
    await this.becomingReady;
  }

  /** Rejects with what was wrong, or that there was no answer in time; so does `get`. */
  async put(key: string, value: Buffer, ttlMs: number): Promise<void> {
    await this.judged('write', this.bodies.put(key, value, ttlMs));
  }

  /** Undefined where nothing is there. */
  async get(key: string): Promise<Buffer | undefined> {
    return this.judged('read', this.bodies.get(key));
  }

  /** Best effort: nobody waits for it, and what is not deleted ends with its time to live. */
  drop(keys: readonly string[]): void {
    if (!this.isPaused) void this.dropped(keys);
  }

  /** What is wrong where bodies are neither lost nor refused. */
  async remarks(): Promise<readonly Remark[]> {
    return (await this.bodies.remarks?.()) ?? [];
  }

  async close(): Promise<void> {
    await this.bodies.close();
  }

  /** What was wrong, in words; undefined: nothing. */
  async dropped(keys: readonly string[]): Promise<string | undefined> {
    try {
      await this.bodies.drop(keys);
      if (this.told === 'deletes nothing') this.told = undefined;
      return undefined;
    } catch (error) {
      const reason = redactMessage(error);
      if (this.told === undefined && !this.isInTrouble && this.isTimeFor('deletes nothing')) {
        this.tell('deletes nothing');
        this.log?.warn(
          { store: this.name, reason },
          'a payload server deletes nothing: what was read stays there until its time to live is over',
        );
      }
      return reason;
    }
  }

  private async tryAgain(): Promise<void> {
    const key = `{shoal}:tried:${randomUUID()}`;
    await this.put(key, Buffer.from('tried'), TRIED_MS).catch(ignored);
    await this.get(key).catch(ignored);
    this.drop([key]);
  }

  private async judged<Value>(kind: 'read' | 'write', answer: Promise<Value>): Promise<Value> {
    try {
      const value = await this.inTime(answer);
      this.succeeded(kind);
      return value;
    } catch (error) {
      this.failed(kind, error);
      throw error;
    }
  }

  private async inTime<Value>(answer: Promise<Value>): Promise<Value> {
    let timer: NodeJS.Timeout | undefined;
    const tooLate = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        reject(new Error(`no answer within ${ANSWER_MS / 1_000} s`));
        this.bodies.giveUp(); // what is open there would wait behind
      }, ANSWER_MS);
    });
    return Promise.race([answer, tooLate]).finally(() => clearTimeout(timer));
  }

  private succeeded(kind: 'read' | 'write'): void {
    if (this.trouble[kind].failures === 0) return;
    this.trouble[kind].end();
    if (this.isInTrouble || this.told !== 'fails') return;
    this.told = undefined;
    this.log?.info({ store: this.name }, 'the payload server answers again');
  }

  private failed(kind: 'read' | 'write', error: unknown): void {
    this.failures++;
    if (this.trouble[kind].isFresh) return; // asked together with the one that failed first
    this.trouble[kind].grow(redactMessage(error));
    if (this.told === 'fails' || !(this.isTimeFor('fails') || this.trouble[kind].failures >= IN_A_ROW)) return;
    const { failures } = this;
    this.tell('fails');
    this.log?.warn(
      { store: this.name, reason: redactMessage(error), ...(failures > 1 && { failures }) },
      'a payload server failed; until it answers again, payloads go to others or by the queue server',
    );
  }

  private tell(what: Told): void {
    this.told = what;
    this.toldMs[what] = performance.now();
    if (what === 'fails') this.failures = 0;
  }

  private isTimeFor(what: Told): boolean {
    return performance.now() - this.toldMs[what] > TELL_EVERY_MS;
  }

  private get isInTrouble(): boolean {
    return this.trouble.read.failures + this.trouble.write.failures > 0;
  }
}

/** As that of a body, it is told by the server's facts and log line. */
function ignored(): void {
  // nobody waits for what was tried
}

/** Failures of one kind of questions. */
class Trouble {
  /** In a row. */
  failures = 0;
  /** Of the last one, in words. */
  reason = '';
  /** When the first was, epoch ms by this machine's clock. */
  sinceMs = 0;
  private freshUntilMs = 0;

  get isFresh(): boolean {
    return performance.now() < this.freshUntilMs;
  }

  grow(reason: string): void {
    if (this.failures === 0) this.sinceMs = Date.now();
    this.reason = reason;
    this.freshUntilMs = performance.now() + backoffMs(this.failures++, PAUSE);
  }

  end(): void {
    this.failures = 0;
    this.freshUntilMs = 0;
  }
}
