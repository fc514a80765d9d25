// What the queue server keeps of a run of files as jobs: the pointers of its parts, each committed like every result under
// the lock of its job, and the list of those that are done. Shared by executors and by the command that began the run.

import { RESULT_HEADER_BYTES, RUN_TTL_MS, invariant, keySpace, type KeySpace } from '@shoal/contract';
import type { CommitResult, Logger } from '@shoal/core';
import { askAll, bytesOf, valueOf, type Command, type RetryOptions } from '../redis/command-pipeline.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { runScriptOver } from '../redis/script.ts';
import { COMMIT_RESULTS } from './lua/scripts.generated.ts';

export interface PartLedgerOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  /** The lane of parts. */
  readonly queue: string;
  readonly log: Logger;
}

export class PartLedger {
  private readonly connection: Redis;
  private readonly queue: string;
  private readonly keys: KeySpace;
  private readonly end = new AbortController();
  private readonly log: Logger;

  private constructor(connection: Redis, { prefix, queue, log }: PartLedgerOptions) {
    this.connection = connection;
    this.queue = queue;
    this.keys = keySpace(prefix);
    this.log = log;
  }

  /** Throws QUEUE_UNREACHABLE. */
  static async connect(options: PartLedgerOptions): Promise<PartLedger> {
    const { redisUrl: url, prefix, queue, log } = options;
    return new PartLedger(await connected({ url, prefix, name: `shoal:parts:${queue}`, log }), options);
  }

  /** Where the pointer of a part lies. */
  keyOf(jobId: string): string {
    return this.keys.output(this.queue, jobId);
  }

  /** What was committed for a part, or undefined. */
  async pointer(jobId: string): Promise<Buffer | undefined> {
    const [reply] = await this.ask([['GET', this.keyOf(jobId)]]);
    const bytes = bytesOf(reply);
    return bytes !== undefined && bytes.length >= RESULT_HEADER_BYTES ? bytes : undefined;
  }

  /** Chooses what this claim wrote, if its lease holds and nobody's was chosen before. */
  async commit(part: {
    readonly jobId: string;
    readonly token: string;
    readonly pointer: Buffer;
    readonly ttlMs: number;
  }): Promise<CommitResult> {
    const { jobId, token, pointer, ttlMs } = part;
    const keys = [this.keys.lock(this.queue, jobId), this.keyOf(jobId), this.keys.staged(this.queue, jobId, token)];
    const values = [token, ttlMs, pointer.subarray(20, 28), pointer];
    const [answer] = await runScriptOver(this.connection, COMMIT_RESULTS, [{ keys, values }], this.retrying());
    const result = (['committed', 'already', 'conflict', 'lease-lost'] as const).find((one) => one === String(answer));
    invariant(result !== undefined, 'what is not staged is committed, or not, with one of four words');
    return result;
  }

  /** Puts a done part on the list of its run. Returns how many there are then. */
  async enter(run: string, number: number, entry: string): Promise<number> {
    const key = this.keys.run(run);
    const [set, expire, count] = await this.ask([
      ['HSET', key, number, entry],
      ['PEXPIRE', key, RUN_TTL_MS],
      ['HLEN', key],
    ]);
    for (const reply of [set!, expire!]) valueOf(reply);
    return Number(valueOf(count!));
  }

  /** The done parts of a run by their numbers. */
  async entries(run: string): Promise<Readonly<Record<string, string>>> {
    const [reply] = await this.ask([['HGETALL', this.keys.run(run)]]);
    const flat = valueOf(reply!);
    const found: Record<string, string> = {};
    if (Array.isArray(flat)) for (let at = 0; at < flat.length; at += 2) found[String(flat[at])] = String(flat[at + 1]);
    return found;
  }

  /** The same of some parts alone, in order: a list of many is some megabytes. */
  async entriesOf(run: string, numbers: readonly number[]): Promise<(string | undefined)[]> {
    if (numbers.length === 0) return [];
    const [reply] = await this.ask([['HMGET', this.keys.run(run), ...numbers]]);
    const found = valueOf(reply!);
    return numbers.map((_, at) => {
      const entry: unknown = Array.isArray(found) ? found[at] : undefined;
      return entry === null || entry === undefined ? undefined : String(entry);
    });
  }

  async stop(): Promise<void> {
    this.end.abort();
    await closeConnection(this.connection);
  }

  private ask(commands: readonly Command[]) {
    return askAll(this.connection, commands, this.retrying());
  }

  private retrying(): RetryOptions {
    return {
      signal: this.end.signal,
      onFault: (fault, count) =>
        this.log.debug({ err: fault, count }, 'the queue server could not answer, asking again'),
    };
  }
}
