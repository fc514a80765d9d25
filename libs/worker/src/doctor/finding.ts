// One line of `shoal doctor`.

/** `absent`: not there, which is nobody's fault. */
export interface Finding {
  readonly about: string;
  readonly state: 'ok' | 'warning' | 'broken' | 'absent';
  readonly found: string;
  /** What to do; for everything that is not ok. */
  readonly cure?: string;
}
