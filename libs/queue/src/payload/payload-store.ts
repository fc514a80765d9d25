// The executor's side of the payload: reads inputs, commits results. Implements core's PayloadStore on binary keys. A
// commit is decided on the server in one step: whoever lost the lease cannot write, and what is there already is never
// replaced. Where job and worker know the same payload servers, the body goes there first, and the commit writes a
// pointer to it: who loses the commit leaves a body behind that nobody points to, until its time to live ends.

import { setMaxListeners } from 'node:events';
import { RESULT_HEADER_BYTES, encodePointer, invariant, isShoalError, keySpace, type KeySpace } from '@shoal/contract';
import type { CommitRequest, CommitResult, InputRead, Logger, PayloadStore, WantedPayload } from '@shoal/core';
import {
  closeConnection,
  connected,
  isServerFull,
  openConnection,
  type ConnectionOptions,
  type Redis,
} from '../redis/connection.ts';
import { inParts } from '../redis/in-parts.ts';
import { askAll, bytesOf, valueOf, type Command, type RetryOptions } from '../redis/command-pipeline.ts';
import { countPayload } from '../redis/process-counts.ts';
import { runScriptOver, type ScriptItem } from '../redis/script.ts';
import { STAGED_FROM_BYTES, STAGED_TTL_MS } from '../redis/staging.ts';
import { COMMIT_RESULTS } from './lua/scripts.generated.ts';
import { inputPlace, resultPlace, type PayloadServers } from './payload-servers.ts';

export interface PayloadStoreOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  /** The main queue of the model: inputs and results are named after it. */
  readonly queue: string;
  /** The model's CPU lane, for executors that get jobs of it. */
  readonly cpuQueue?: string | undefined;
  /** Where large bodies go of jobs whose readers know them; closed by `stop`. Left out: everything by the queue server. */
  readonly payloads?: PayloadServers | undefined;
  /** They are another store's, which closes them. */
  readonly keepsPayloads?: boolean | undefined;
  readonly log: Logger;
}

/**
 * The server takes one large argument from a connection in each turn of its loop, two in three of them in two turns:
 * over one connection 64 rows of 384 dimensions took 2.3 ms each, while it had half a core to spare (800 jobs a second,
 * 2-core Xeon, 2026-11).
 */
const WRITERS = 4;

const OUTCOMES: readonly CommitResult[] = ['committed', 'already', 'conflict', 'lease-lost'];

const NOT_STAGED = 'not-staged';

/** A body outlives the pointer to it, whose time to live begins anew when its job is announced. */
const OUTLIVES_MS = 60_000;

interface Commit {
  /** Writes a large result under its staging name; a small one travels in the call. */
  readonly stages: readonly Command[];
  /** Of COMMIT_RESULTS. */
  readonly item: ScriptItem;
}

export class RedisPayloadStore implements PayloadStore {
  private readonly connection: Redis;
  /** For commits alone, so that inputs are not read behind results that are written. */
  private readonly writers: readonly Redis[];
  /** For results that somebody waits for: not behind others, nor in one of the server's turns with them. */
  private readonly urgentWriter: Redis;
  /** The writer that the next commit begins with: those of one result each would else meet on the first. */
  private nextWriter = 0;
  private readonly options: PayloadStoreOptions;
  private readonly keys: KeySpace;
  private readonly end = new AbortController();

  private constructor(connection: Redis, options: PayloadStoreOptions) {
    this.connection = connection;
    this.writers = Array.from({ length: WRITERS }, () => openConnection(connectionOf(options)));
    this.urgentWriter = openConnection(connectionOf(options));
    this.options = options;
    this.keys = keySpace(options.prefix);
    setMaxListeners(0, this.end.signal);
  }

  /** Throws QUEUE_UNREACHABLE. */
  static async connect(options: PayloadStoreOptions): Promise<RedisPayloadStore> {
    return new RedisPayloadStore(await connected(connectionOf(options)), options);
  }

  async read(jobs: readonly WantedPayload[]): Promise<readonly InputRead[]> {
    const { queue } = this.options;
    if (jobs.length === 0) return [];
    const outputs = jobs.map(({ jobId, resultId = jobId }) => this.keys.output(queue, resultId));
    const inputs = jobs.flatMap((job): Command[] => (isHere(job) ? [['GET', this.keys.input(queue, job.jobId)]] : []));
    const reading = jobs.some(({ beside }) => beside !== undefined)
      ? Promise.all(jobs.map((job) => this.readBeside(job)))
      : undefined;
    const [results, ...replies] = await askAll(this.connection, [['EXISTS', ...outputs], ...inputs], this.retrying());
    const elsewhere = reading === undefined ? [] : await reading;
    let next = 0;
    const read = jobs.map((job, at) => (isHere(job) ? bytesOf(replies[next++]) : elsewhere[at]?.input));
    // An input may also be gone because its job was done in between.
    const mayHaveResults =
      valueOf(results!) !== 0 || jobs.some(({ hasInput }, at) => hasInput && read[at] === undefined);
    const heads = mayHaveResults
      ? await askAll(
          this.connection,
          outputs.map((output): Command => ['GETRANGE', output, 0, RESULT_HEADER_BYTES - 1]),
          this.retrying(),
        )
      : [];
    // GETRANGE has no word for a key that is not there
    return jobs.map((_, at) => {
      const lost = elsewhere[at]?.lost;
      return {
        resultHead: nonEmpty(bytesOf(heads[at])),
        input: read[at],
        ...(lost !== undefined && { lost }),
      };
    });
  }

  private async readBeside({ jobId, beside }: WantedPayload): Promise<Pick<InputRead, 'input' | 'lost'> | undefined> {
    if (beside === undefined) return undefined;
    const { payloads, prefix, queue } = this.options;
    const place = { store: beside.store, key: inputPlace(prefix, queue, jobId, beside.fingerprint) };
    if (payloads === undefined)
      return { input: undefined, lost: `its input lies on payload server ${place.store}, and this worker has none` };
    try {
      return { input: await payloads.get(place) };
    } catch (error) {
      if (!isShoalError(error)) throw error;
      countPayload('lost');
      return { input: undefined, lost: error.message };
    }
  }

  /**
   * A commit whose reply was lost is sent again and comes back as `already`, as does one that another worker made
   * before it died. Nobody needs to tell these apart: the job is completed in both cases, and announcing it again only
   * repeats a message that is allowed to come twice.
   */
  async commit(requests: readonly CommitRequest[], { isUrgent = false } = {}): Promise<readonly CommitResult[]> {
    const { cpuQueue, queue, payloads } = this.options;
    const placed =
      payloads === undefined ? requests : await Promise.all(requests.map((one) => this.placed(one, payloads)));
    const commits = placed.map(({ jobId, resultId = jobId, lane, token, result, fingerprint, ttlMs }): Commit => {
      const claimedFrom = lane === 'cpu' ? cpuQueue : queue;
      invariant(claimedFrom !== undefined, 'only an executor that knows the CPU lane gets jobs of it');
      const inHeader = result.subarray(20, 28);
      invariant(inHeader.toString('hex') === fingerprint, 'a result carries the fingerprint it is committed under');
      const staged = this.keys.staged(queue, jobId, token);
      const isStaged = result.length >= STAGED_FROM_BYTES;
      return {
        stages: isStaged ? [['SET', staged, result, 'PX', STAGED_TTL_MS]] : [],
        item: {
          keys: [this.keys.lock(claimedFrom, jobId), this.keys.output(queue, resultId), staged],
          values: [token, ttlMs, inHeader, isStaged ? '' : result],
        },
      };
    });
    const large = commits.filter(({ stages }) => stages.length > 0).length;
    const writers = isUrgent ? [this.urgentWriter] : this.writersFor(Math.max(1, large)); // small ones share a call
    const parts = inParts(commits, Math.ceil(commits.length / writers.length));
    return (await Promise.all(parts.map((part, at) => this.write(writers[at]!, part)))).flat();
  }

  async stop(): Promise<void> {
    this.end.abort();
    await Promise.all([
      ...[this.connection, this.urgentWriter, ...this.writers].map((connection) => closeConnection(connection)),
      this.options.keepsPayloads === true ? undefined : this.options.payloads?.close(),
    ]);
  }

  /** With a pointer as its result, where the body lies on a payload server now. */
  private async placed(request: CommitRequest, payloads: PayloadServers): Promise<CommitRequest> {
    const { jobId, result, ttlMs } = request;
    if (request.payloads !== payloads.id || result.length < STAGED_FROM_BYTES) return request;
    const key = resultPlace(this.options.prefix, this.options.queue);
    const store = await payloads.put(jobId, key, result, ttlMs + OUTLIVES_MS);
    return store === undefined ? request : { ...request, result: encodePointer(result, { store, key }) };
  }

  /** At most so many of them. */
  private writersFor(count: number): readonly Redis[] {
    const first = this.nextWriter;
    this.nextWriter = (first + count) % WRITERS;
    return [...this.writers.slice(first), ...this.writers.slice(0, first)].slice(0, count);
  }

  private async write(writer: Redis, commits: readonly Commit[]): Promise<readonly CommitResult[]> {
    const answers: string[] = [];
    let open = [...commits.keys()];
    // What was refused at first (the server was full) is staged by the second round. What is not there even then was
    // forgotten in a restart, or expired while the server was away: it is staged again in the third.
    for (let round = 0; open.length > 0; round++) {
      const stages = open.flatMap((index) => (round % 2 === 0 ? commits[index]!.stages : []));
      // Written back to back on one connection, so the script finds what was staged without a round trip between them.
      const [staged, replies] = await Promise.all([
        askAll(writer, stages, this.retrying()),
        runScriptOver(
          writer,
          COMMIT_RESULTS,
          open.map((index) => commits[index]!.item),
          this.retrying(),
        ),
      ]);
      for (const reply of staged) valueOf(reply);
      for (const [at, index] of open.entries()) answers[index] = String(replies[at]);
      open = open.filter((index) => answers[index] === NOT_STAGED);
    }
    return answers.map(toCommitResult);
  }

  private retrying(): RetryOptions {
    return {
      signal: this.end.signal,
      onFault: (fault, count) => {
        if (isServerFull(fault))
          this.options.log.warn(
            { code: 'QUEUE_FULL', count },
            'the memory of the queue server is full, holding results back until there is room',
          );
        else this.options.log.debug({ err: fault, count }, 'the queue server could not answer, asking again');
      },
    };
  }
}

/** Whether its input is to be read from its input key. */
function isHere({ hasInput, beside }: WantedPayload): boolean {
  return hasInput && beside === undefined;
}

function connectionOf({ redisUrl, prefix, queue, log }: PayloadStoreOptions): ConnectionOptions {
  return { url: redisUrl, prefix, name: `shoal:executor:${queue}`, log };
}

function nonEmpty(bytes: Buffer | undefined): Buffer | undefined {
  return bytes !== undefined && bytes.length > 0 ? bytes : undefined;
}

function toCommitResult(text: string): CommitResult {
  const result = OUTCOMES.find((known) => known === text);
  invariant(result !== undefined, 'the commit script answers with one of four words');
  return result;
}
