// Mistakes that somebody could make, planted into the product's text as it is loaded, to show that the simulation finds
// them. Each is one change to one file, and realistic: a check that was forgotten, a wrong order, the wrong clock. The
// product itself has no switch for any of them; where its text has changed so that one does not fit any more, loading
// fails and says so.

import { createHash } from 'node:crypto';
import { registerHooks } from 'node:module';
import { runInNewContext } from 'node:vm';

export interface PlantedFault {
  readonly name: string;
  /** What somebody did. */
  readonly mistake: string;
  /** End of the path of the file. */
  readonly file: string;
  /** The Lua script in it. */
  readonly script?: string;
  /** Stands there exactly once. */
  readonly from: string;
  readonly to: string;
  /** By itself it does no harm, because of something else in the product: it is planted with the mistake that takes that away. */
  readonly hiddenBy?: { readonly defence: string; readonly without: string };
}

const PAYLOAD_SCRIPTS = 'libs/queue/src/payload/lua/scripts.generated.ts';
const WORKER_SCRIPTS = 'libs/queue/src/worker/lua/scripts.generated.ts';
const BULLMQ_SCRIPTS = 'libs/queue/src/bullmq/lua/scripts.generated.ts';
const PRODUCER_SCRIPTS = 'libs/queue/src/producer/lua/scripts.generated.ts';
const ADMISSION_SCRIPTS = 'libs/queue/src/admission/lua/scripts.generated.ts';

export const PLANTED: readonly PlantedFault[] = [
  {
    name: 'commit-without-lock',
    mistake: 'a result is written without a look at the lock',
    file: PAYLOAD_SCRIPTS,
    script: 'payload/commit-results',
    from: "if redis.pcall('GET', lock) ~= token then",
    to: "if redis.pcall('GET', lock) == false and false then",
  },
  {
    name: 'commit-over-result',
    mistake: 'a result is written although one is there',
    file: PAYLOAD_SCRIPTS,
    script: 'payload/commit-results',
    from: "redis.call('TYPE', output).ok",
    to: "'none'",
    hiddenBy: {
      defence:
        'an executor looks for a result before it runs a job, and commits under a lock that nobody else had since',
      without: 'result-not-looked-for',
    },
  },
  {
    name: 'mark-before-read',
    mistake: 'a result is marked as taken before its body was put aside',
    file: PAYLOAD_SCRIPTS,
    script: 'payload/take-results',
    from: "redis.call('RENAME', output, body)",
    to: "redis.call('SETRANGE', output, 6, string.char(1))",
  },
  {
    name: 'taken-twice',
    mistake: 'who takes a result forgets to look whether it was taken',
    file: PAYLOAD_SCRIPTS,
    script: 'payload/take-results',
    from: "redis.call('SET', output, markTaken(header), 'PX', math.max(leftMs, 1))",
    to: "redis.call('COPY', body, output)",
  },
  {
    name: 'input-before-ending',
    mistake: 'the input is deleted although the ending is not certain',
    file: WORKER_SCRIPTS,
    script: 'worker/announce-jobs',
    from: 'if isTold then',
    to: "redis.call('UNLINK', input) if isTold then",
  },
  {
    name: 'deadline-by-own-clock',
    mistake: "a deadline is held against the worker's clock instead of the server's",
    file: 'libs/core/src/claimer/executor-keeper.ts',
    from: 'job.deadlineMs - serverNowMs()',
    to: 'job.deadlineMs - Date.now()',
  },
  {
    name: 'settle-any-token',
    mistake: 'the outcome of an older claim ends the present one',
    file: 'libs/core/src/claimer/pipeline.ts',
    from: 'if (open === undefined || open.claim.token !== outcome.token) return;',
    to: 'if (open === undefined) return;',
    hiddenBy: {
      defence:
        'what an older claim committed lies there for the present one as well, and what it did not is told as lost',
      without: 'refused-is-committed',
    },
  },
  {
    name: 'room-half-released',
    mistake: 'what a tenant has reserved is not given back',
    file: ADMISSION_SCRIPTS,
    script: 'admission/release-room',
    from: "subtract('rows ' .. queue .. ' ' .. tenant, rows)",
    to: '',
  },
  {
    name: 'stall-fails-job',
    mistake: 'a worker that died counts as a failure of its jobs',
    file: 'libs/queue/src/bullmq/batch-worker.ts',
    from: 'const MAX_STALLED_COUNT = 1_000_000_000;',
    to: 'const MAX_STALLED_COUNT = 0;',
  },
  {
    name: 'ttl-in-seconds',
    mistake: 'a time to live in milliseconds is taken for one in seconds',
    file: WORKER_SCRIPTS,
    script: 'worker/announce-jobs',
    from: "redis.call('PEXPIRE', output, ttl)",
    to: "redis.call('PEXPIRE', output, math.floor(ttl / 1000))",
  },
  {
    name: 'known-replaced',
    mistake: 'a job that waits or runs is replaced by the same request',
    file: 'libs/queue/src/producer/job-verdict.ts',
    from: "if (!isFinished) return { kind: 'known' };",
    to: "if (!isFinished) return { kind: 'replace' };",
  },
  {
    name: 'settled-on-lost-lock',
    mistake: 'an ending that finds no lock is taken for one that was made before',
    file: 'libs/queue/src/worker/job-endings.ts',
    from: "return finishedOn && isOurs ? 'settled' : 'lease-lost';",
    to: "return isOurs || !finishedOn ? 'settled' : 'lease-lost';",
  },
  {
    name: 'claim-charges-attempt',
    mistake: 'a claim counts as an attempt, so that deaths of workers use attempts up',
    file: BULLMQ_SCRIPTS,
    script: 'bullmq/claim-jobs',
    from: "redis.pcall('HINCRBY', job, 'ats', 1)",
    to: "redis.pcall('HINCRBY', job, 'atm', 1)",
  },
  {
    name: 'lock-for-ever',
    mistake: 'a claim takes a lock that has no end',
    file: BULLMQ_SCRIPTS,
    script: 'bullmq/claim-jobs',
    from: "redis.call('SET', job .. ':lock', options['token'], 'PX', options['lockDuration'])",
    to: "redis.call('SET', job .. ':lock', options['token'])",
  },
  {
    name: 'complete-any-lock',
    mistake: 'whoever completes a job looks whether there is a lock, and not whose it is',
    file: BULLMQ_SCRIPTS,
    script: 'bullmq/complete-jobs',
    from: 'if holders[at] ~= token then',
    to: 'if not holders[at] then',
  },
  {
    name: 'cancel-only-told',
    mistake: 'a cancel is told to whoever listens, and leaves no mark for the next worker',
    file: PRODUCER_SCRIPTS,
    script: 'producer/cancel-claimed-job',
    from: "redis.call('HSET', jobKey, mark, 1)",
    to: '',
  },
  {
    name: 'cancelled-stays-in-line',
    mistake: 'a job that is cancelled while it waits stays in its line',
    file: BULLMQ_SCRIPTS,
    script: 'bullmq/fail-waiting-job',
    from: "waited = redis.call('LREM', waitKey, 1, id)",
    to: "waited = redis.call('LLEN', waitKey)",
  },
  {
    name: 'announced-untaken',
    mistake: 'an ending is announced, and the input deleted, before it is known that the server took it',
    file: WORKER_SCRIPTS,
    script: 'worker/announce-jobs',
    from: 'isCertain or hasEnded(job, outcome)',
    to: 'true',
  },
  {
    name: 'ending-of-the-next',
    mistake: 'an ending that finds no lock is taken for its own when the next worker said the same',
    file: 'libs/queue/src/worker/job-endings.ts',
    from: "if (!isSameClaim) return 'lease-lost';",
    to: '',
  },
  {
    name: 'asked-again-is-taken',
    mistake: 'who takes a result, loses the answer and asks again is told that somebody had it',
    file: PAYLOAD_SCRIPTS,
    script: 'payload/take-results',
    from: "redis.call('EXISTS', body) == 1 and 'body' or 'taken'",
    to: "'taken'",
  },
  {
    name: 'old-result-stays',
    mistake: 'a job that is asked for anew keeps the mark of the result that was taken',
    file: 'libs/queue/src/producer/replacements.ts',
    from: 'transaction.del(this.keys.output(this.options.queue, job.jobId));',
    to: '',
  },
  {
    name: 'room-released-twice',
    mistake: 'room that was given back stays reserved by name, and is given back once more',
    file: ADMISSION_SCRIPTS,
    script: 'admission/release-room',
    from: "redis.call('HDEL', KEYS[1], id)",
    to: '',
  },
  {
    name: 'row-of-the-run',
    mistake: 'a vector goes to the place that its row had at the device instead of the one it has in its job',
    file: 'libs/core/src/executor/device-run.ts',
    from: 'writeScaled(embeddings, i * dims, dims, factor, job.vectors, index * dims)',
    to: 'writeScaled(embeddings, i * dims, dims, factor, job.vectors, (i % job.rows) * dims)',
  },
  {
    name: 'first-death-convicts',
    mistake: 'a job that was alone at the device when its executor died once goes to quarantine',
    file: 'libs/core/src/claimer/suspects.ts',
    from: 'const CONVICTING_DEATHS = 2;',
    to: 'const CONVICTING_DEATHS = 1;',
  },
  {
    name: 'stop-waits-for-a-job',
    mistake: 'a worker that is told to stop lets a claim that waits for jobs go on waiting',
    file: 'libs/queue/src/worker/bull-job-source.ts',
    from: "this.claimingEnd.abort();\n    await this.claims.settled();\n    if (this.state !== 'draining') return;",
    to: "await this.claims.settled();\n    if (this.state !== 'draining') return;",
  },
  {
    name: 'nobody-is-convicted',
    mistake: 'deaths of executors are counted for each of them anew, so that a job that kills them goes on for ever',
    file: 'libs/core/src/claimer/suspects.ts',
    from: 'this.deathsAlone.set(only[0]!, (this.deathsAlone.get(only[0]!) ?? 0) + 1);',
    to: 'this.deathsAlone.set(only[0]!, 1);',
  },
  {
    name: 'refused-is-committed',
    mistake: 'a commit that was refused because the lease was lost is told as done',
    file: 'libs/core/src/executor/commit.ts',
    from: "return { kind: 'lease-lost', jobId, token };",
    to: "return { kind: 'committed', jobId, token, value: this.parts.valueOf(job) };",
    hiddenBy: {
      defence: 'a job is completed under the token of its claim, by a lock that is gone then',
      without: 'settle-any-token',
    },
  },
  {
    name: 'result-not-looked-for',
    mistake: 'an executor runs a job although its result is there',
    file: 'libs/core/src/executor/fill.ts',
    from: 'read.resultHead === undefined ? undefined : decodeResultHeader(read.resultHead)',
    to: 'undefined',
    hiddenBy: {
      defence: 'a commit leaves a result as it is that is there',
      without: 'commit-over-result',
    },
  },
];

/** What is planted to see this mistake: itself, and with it the one that takes away what hides it. */
export function plantOf({ name, hiddenBy }: PlantedFault): string {
  return [name, ...(hiddenBy === undefined ? [] : [hiddenBy.without])].toSorted().join('+');
}

/** The mistakes that a plant names: one, or several joined by "+". Throws for a name that there is not. */
export function faultsIn(named: string): PlantedFault[] {
  return named.split('+').map((name) => {
    const fault = PLANTED.find((one) => one.name === name);
    if (fault !== undefined) return fault;
    const names = PLANTED.map((one) => one.name).join(', ');
    throw new Error(`no planted mistake is called ${name}; there are ${names}; a + between two plants both`);
  });
}

/** To be called before the product is loaded. */
export function plant(name: string): void {
  const faults = faultsIn(name);
  registerHooks({
    load(url, context, next) {
      const loaded = next(url, context);
      const here = faults.filter(({ file }) => url.endsWith(file));
      if (here.length === 0) return loaded;
      return { ...loaded, source: here.reduce((source, fault) => changed(fault, source), String(loaded.source)) };
    },
  });
}

/** A script in a module that tools/build-lua.ts wrote. */
const SCRIPT = /name: '([^']+)',\n\s*sha: '([0-9a-f]{40})',\n\s*keyCount: \d+,\n\s*lua: (\[[\s\S]*?\]\.join\(''\))/g;

/** The text of a module with the mistake in it; of a script, with the hash of the changed one. */
export function changed(fault: PlantedFault, source: string): string {
  if (fault.script === undefined) return replacedOnce(fault, source);
  let isFound = false;
  const scripts = source.replaceAll(SCRIPT, (whole: string, name: string, sha: string, pieces: string) => {
    if (name !== fault.script) return whole;
    isFound = true;
    const lua = replacedOnce(fault, String(runInNewContext(pieces)));
    return whole.replace(sha, createHash('sha1').update(lua).digest('hex')).replace(pieces, () => JSON.stringify(lua));
  });
  if (!isFound) throw unfit(fault, `there is no script ${fault.script}`);
  return scripts;
}

function replacedOnce(fault: PlantedFault, text: string): string {
  const parts = text.split(fault.from);
  if (parts.length !== 2) throw unfit(fault, `what it changes stands there ${parts.length - 1} times`);
  return parts.join(fault.to);
}

function unfit({ name, file }: PlantedFault, why: string): Error {
  return new Error(`the planted fault "${name}" does not fit ${file} any more: ${why}`);
}
