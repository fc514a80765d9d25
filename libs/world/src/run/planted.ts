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
}

export const PLANTED: readonly PlantedFault[] = [
  {
    name: 'commit-without-lock',
    mistake: 'a result is written without a look at the lock',
    file: 'libs/queue/src/payload/lua/scripts.generated.ts',
    script: 'payload/commit-results',
    from: "if redis.pcall('GET', lock) ~= token then",
    to: "if redis.pcall('GET', lock) == false and false then",
  },
  {
    name: 'commit-over-result',
    mistake: 'a result is written although one is there',
    file: 'libs/queue/src/payload/lua/scripts.generated.ts',
    script: 'payload/commit-results',
    from: "redis.call('TYPE', output).ok",
    to: "'none'",
  },
  {
    name: 'mark-before-read',
    mistake: 'a result is marked as taken before its body was put aside',
    file: 'libs/queue/src/payload/lua/scripts.generated.ts',
    script: 'payload/take-results',
    from: "redis.call('RENAME', output, body)",
    to: "redis.call('SETRANGE', output, 6, string.char(1))",
  },
  {
    name: 'taken-twice',
    mistake: 'who takes a result forgets to look whether it was taken',
    file: 'libs/queue/src/payload/lua/scripts.generated.ts',
    script: 'payload/take-results',
    from: "redis.call('SET', output, markTaken(header), 'PX', math.max(leftMs, 1))",
    to: "redis.call('COPY', body, output)",
  },
  {
    name: 'input-before-ending',
    mistake: 'the input is deleted although the ending is not certain',
    file: 'libs/queue/src/worker/lua/scripts.generated.ts',
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
  },
  {
    name: 'room-half-released',
    mistake: 'what a tenant has reserved is not given back',
    file: 'libs/queue/src/admission/lua/scripts.generated.ts',
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
    file: 'libs/queue/src/worker/lua/scripts.generated.ts',
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
];

/** To be called before the product is loaded. Throws for a name that there is not. */
export function plant(name: string): void {
  const fault = PLANTED.find((one) => one.name === name);
  if (fault === undefined)
    throw new Error(`no planted fault is called "${name}"; there are ${PLANTED.map((one) => one.name).join(', ')}`);
  registerHooks({
    load(url, context, next) {
      const loaded = next(url, context);
      return url.endsWith(fault.file) ? { ...loaded, source: changed(fault, String(loaded.source)) } : loaded;
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
