// The payload store without a server: locks, inputs and results as maps, with the commit rules of DESIGN §4.2. A test
// is also the queue here: it gives and takes locks. Reads and commits can be held back to choose what happens first.

import { decodeResultHeader } from '@shoal/contract';
import type { CommitRequest, CommitResult, InputRead, PayloadStore, WantedPayload } from '../ports/payload.ts';
import { Gate } from './gate.ts';

export class MemoryPayloadStore implements PayloadStore {
  /** Lock token by job id. */
  readonly locks = new Map<string, string>();
  /** SHI1 by job id. */
  readonly inputs = new Map<string, Buffer>();
  /** SHL1 by job id. */
  readonly results = new Map<string, Buffer>();
  /** Every request and its answer, in order. */
  readonly commits: { readonly request: CommitRequest; readonly result: CommitResult }[] = [];
  /** Held, a read or commit has reached the server but its answer has not come back. */
  readonly readGate = new Gate();
  readonly commitGate = new Gate();
  isStopped = false;

  async read(jobs: readonly WantedPayload[]): Promise<readonly InputRead[]> {
    const answers = jobs.map(({ jobId, hasInput }) => ({
      input: hasInput ? copyOf(this.inputs.get(jobId)) : undefined,
      resultHead: this.results.get(jobId)?.subarray(0, 32),
    }));
    await this.readGate.pass();
    return answers;
  }

  async commit(requests: readonly CommitRequest[]): Promise<readonly CommitResult[]> {
    const answers = requests.map((request) => this.commitOne(request));
    await this.commitGate.pass();
    return answers;
  }

  async stop(): Promise<void> {
    this.isStopped = true;
  }

  private commitOne(request: CommitRequest): CommitResult {
    const result = this.decide(request);
    const copy = Buffer.from(request.result); // its bytes are the caller's again
    if (result === 'committed') this.results.set(request.jobId, copy);
    this.commits.push({ request: { ...request, result: copy }, result });
    return result;
  }

  private decide({ jobId, token, fingerprint }: CommitRequest): CommitResult {
    if (this.locks.get(jobId) !== token) return 'lease-lost';
    const existing = this.results.get(jobId);
    if (existing === undefined) return 'committed';
    return decodeResultHeader(existing)?.fingerprint === fingerprint ? 'already' : 'conflict';
  }
}

function copyOf(bytes: Buffer | undefined): Buffer | undefined {
  return bytes === undefined ? undefined : Buffer.from(bytes);
}
