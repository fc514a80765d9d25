// Who looks at the dashboard, and what that one may do.

export type Role = 'viewer' | 'operator';

export interface Visitor {
  readonly role: Role;
  /** A name for the audit line and the page; undefined where nobody is asked who comes. */
  readonly who: string | undefined;
  /** What forms carry that change something; empty for who may change nothing. */
  readonly csrf: string;
  /** Came with a session of ours, and may end it. */
  readonly canLeave: boolean;
}

/** Whoever comes where neither keys nor a proxy tell one from another. */
export const ANYBODY: Visitor = { role: 'viewer', who: undefined, csrf: '', canLeave: false };
