// Places where tests make a process die or stop, to prove that whatever happens there nothing is lost or doubled.
// In production `noFaults` stands here; `faultPointsFrom` is used only when SHOAL_FAULT_POINT is set.

export type FaultPoint =
  | 'hand-over-watched'
  | 'before-commit'
  | 'after-commit'
  | 'before-complete'
  | 'after-complete'
  | 'after-announce'
  | 'before-acknowledge'
  | 'after-acknowledge'
  // of parts of files: behind a checkpoint; the object whole on a disk, where it can be committed, committed, under its
  // last name as well (in a bucket), under that alone
  | 'part-checkpoint'
  | 'part-written'
  | 'part-whole'
  | 'part-committed'
  | 'part-copied'
  | 'part-renamed';

export interface FaultPoints {
  reach(point: FaultPoint): void;
}

export const noFaults: FaultPoints = { reach: () => undefined };

/** `spec`: "<point>:<signal>[:<nth time>]", e.g. "after-commit:SIGKILL:3". The signal goes to this process. */
export function faultPointsFrom(spec: string | undefined, signal: (name: NodeJS.Signals) => void): FaultPoints {
  if (spec === undefined || spec === '') return noFaults;
  const [point, name = 'SIGKILL', nth = '1'] = spec.split(':');
  let reached = 0;
  return {
    reach(at) {
      if (at === point && ++reached === Number(nth)) signal(name as NodeJS.Signals);
    },
  };
}
