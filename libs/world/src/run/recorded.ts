// Writes down what the product does where it meets the server: claims and their endings, commits. Changes nothing.

import { decodeResultHeader } from '@shoal/contract';
import type { CommitResult, JobSource, PayloadStore, RawClaim, Settlement } from '@shoal/core';
import type { EndCall, Recorder } from '../history/recorder.ts';
import { digestOf } from './digest.ts';

/** A store whose commits are in the history. */
export function recordedStore(store: PayloadStore, recorder: Recorder): PayloadStore {
  return {
    read: (jobs) => store.read(jobs),
    stop: () => store.stop(),
    commit: async (requests, options) => {
      const ends = requests.map(({ jobId, token, fingerprint, result }) =>
        recorder.invoke('commit', jobId, {
          token,
          fingerprint,
          digest: digestOf(result.subarray(32)),
        }),
      );
      const results = await endedBy(ends, store.commit(requests, options));
      for (const [at, end] of ends.entries()) endCommit(end, results[at]!);
      return results;
    },
  };
}

function endCommit(end: EndCall, outcome: CommitResult): void {
  if (outcome === 'lease-lost' || outcome === 'conflict') end('fail', { outcome });
  else end('ok', { outcome });
}

/** A source whose claims and endings are in the history. `leaseMs`: how long a claim holds. */
export function recordedSource(source: JobSource, recorder: Recorder, nowMs: () => number): JobSource {
  const took = async (claims: Promise<readonly RawClaim[]>): Promise<readonly RawClaim[]> => {
    const since = nowMs();
    const claimed = await claims;
    for (const { jobId, token, attempt } of claimed)
      recorder.observe('claim', jobId, { token, attempts: attempt, since });
    return claimed;
  };
  return {
    start: () => source.start(),
    claim: (limit) => took(source.claim(limit)),
    claimUrgent: (limit) => took(source.claimUrgent(limit)),
    claimable: () => source.claimable(),
    onLeaseLost: (listener) => source.onLeaseLost(listener),
    onCancelled: (listener) => source.onCancelled(listener),
    stopClaiming: () => source.stopClaiming(),
    stop: () => source.stop(),
    async settle(claim, settlement, announcement) {
      const end = recorder.invoke(opOf(settlement), claim.jobId, { token: claim.token, ...codeOf(settlement) });
      const result = await endedBy([end], source.settle(claim, settlement, announcement));
      end(result === 'lease-lost' ? 'fail' : 'ok');
      return result;
    },
  };
}

function opOf({ kind }: Settlement): 'complete' | 'fail' | 'abandon' | 'return' {
  switch (kind) {
    case 'complete':
      return 'complete';
    case 'fail':
    case 'quarantine':
      return 'fail';
    case 'abandon':
      return 'abandon';
    case 'return':
    case 'park':
    case 'hand-over':
      return 'return';
  }
}

function codeOf(settlement: Settlement): { readonly code?: string } {
  return 'failure' in settlement ? { code: settlement.failure.code } : {};
}

/** What throws had an effect or had none. */
async function endedBy<T>(ends: readonly EndCall[], call: Promise<T>): Promise<T> {
  try {
    return await call;
  } catch (error) {
    for (const end of ends) end('unknown');
    throw error;
  }
}

/** Of the header of a result. */
export function fingerprintIn(bytes: Buffer): string | undefined {
  return decodeResultHeader(bytes)?.fingerprint;
}
