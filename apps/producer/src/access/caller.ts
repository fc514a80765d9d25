// Who asks: the tenant that a request's jobs belong to, and what its key is for. A route says which scope it needs
// (`config: { scope: 'batches' }`), or that everybody may ask (`config: { isOpen: true }`); one that says nothing needs
// a key of whatever scope. Where no keys are asked for, everybody is one tenant and may do everything.

import type { FastifyRequest } from 'fastify';
import { DEFAULT_TENANT, userTenant } from '@shoal/contract';
import { SCOPES, type KeyLimits, type Scope } from '@shoal/core';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** What a key has to be for. */
    readonly scope?: Scope;
    /** Answered without a key. */
    readonly isOpen?: boolean;
  }
}

export interface Caller {
  /** The public part of the key, for logs; undefined for the master key and where no keys are asked for. */
  readonly keyId: string | undefined;
  /** Whose jobs, files and batches these are. Others' look as if they were not there. */
  readonly tenant: string;
  readonly scopes: ReadonlySet<Scope>;
  /** What the key may use a minute. */
  readonly limits: KeyLimits;
}

/** Everybody, where no keys are asked for; and who has the master key. */
export const ANYBODY: Caller = { keyId: undefined, tenant: DEFAULT_TENANT, scopes: new Set(SCOPES), limits: {} };

const callers = new WeakMap<FastifyRequest, Caller>();

/** Who asks. Known from the first hook of a request on, in every route. */
export function callerOf(request: FastifyRequest): Caller {
  return callers.get(request) ?? ANYBODY;
}

export function setCaller(request: FastifyRequest, caller: Caller): void {
  callers.set(request, caller);
}

/** Whose jobs of the queue are made: of the caller's tenant, or of one of its users. */
export function tenantOf({ tenant }: Pick<Caller, 'tenant'>, user: string | undefined): string {
  return user === undefined ? tenant : userTenant(tenant, user);
}

export function mayUse({ scopes }: Caller, scope: Scope): boolean {
  return scopes.has(scope) || scopes.has('admin');
}
