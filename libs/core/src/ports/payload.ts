// Inputs and results as binary keys.

import type { Lane } from '@shoal/contract';

export interface InputRead {
  /** The SHI1 bytes, or undefined when the key does not exist. */
  readonly input: Buffer | undefined;
  /** This process made it: neither its digest nor its token ids are looked at. */
  readonly isOwn?: boolean | undefined;
  /** Why a payload server has not given it. */
  readonly lost?: string | undefined;
  /** The first bytes of a result that exists already, or undefined. */
  readonly resultHead: Buffer | undefined;
}

/** A job whose result is looked for. */
export interface WantedPayload {
  readonly jobId: string;
  /** Under which its result is kept. Left out: its id. */
  readonly resultId?: string | undefined;
  /** False: only the result's head is looked for (inline jobs have no input key). */
  readonly hasInput: boolean;
  /** On which payload server its input lies, and the fingerprint it was put under. Left out: at its input key. */
  readonly beside?: { readonly store: string; readonly fingerprint: string } | undefined;
}

export interface CommitRequest {
  readonly jobId: string;
  /** As of a wanted payload. */
  readonly resultId?: string | undefined;
  /** Whose lock counts. Left out: the main lane's. */
  readonly lane?: Lane | undefined;
  readonly token: string;
  /** 16 hex digits. */
  readonly fingerprint: string;
  /** Header and body (SHL1). */
  readonly result: Buffer;
  readonly ttlMs: number;
  /** The body may lie on a payload server, if the store has this set of them: its reader reads them. */
  readonly payloads?: string | undefined;
}

/** `already`: a result with this fingerprint is there. `conflict`: one with another fingerprint is. */
export type CommitResult = 'committed' | 'already' | 'conflict' | 'lease-lost';

/** Inputs and results as binary keys. One value per request, in order; connection faults are retried inside. */
export interface PayloadStore {
  read(jobs: readonly WantedPayload[]): Promise<readonly InputRead[]>;
  /**
   * `isUrgent`: not behind other results that are being written. Once it is answered the bytes are the caller's again,
   * who may write over them.
   */
  commit(
    requests: readonly CommitRequest[],
    options?: { readonly isUrgent?: boolean },
  ): Promise<readonly CommitResult[]>;
  stop(): Promise<void>;
}
