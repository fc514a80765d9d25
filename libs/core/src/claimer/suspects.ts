// Who kills executors. Only a job whose rows were at the device when its executor died can have done it; whoever shared
// the executor is innocent. Suspects run in groups, one group alone at the device, halved after every death until the
// culprit is by itself; one that kills its executor alone twice is convicted. A device that dies for reasons of its own
// convicts nobody: its suspects run to their end in the next executor and are forgotten.
//
// Not *isolating*: everybody may run. *Isolating*: only the first group may; when the last of its jobs is forgotten (it
// ended, or its lease is lost) the next group is first, and after the last group everybody may run again. A job may
// also be suspect because it stalled again and again: the whole worker dies where it runs, and can tell nobody.
//
// Why: docs/decisions/claiming-and-order.md#suspects-run-before-everybody-else-and-alone

/** A job that stalled so often is suspect: two workers died while they held it. */
const SUSPECT_STALLS = 2;
/**
 * The sizes of groups of jobs that stalled 2, 3, 4, … times. Nobody who could halve them survives, so they shrink by
 * the count itself.
 */
const STALLED_GROUP_SIZES = [64, 16, 4, 1];
/** Such a job was alone at the device from the fifth stall on, and three more workers died of it. */
const CONVICTING_STALLS = 8;
/** A job that was alone at the device at so many deaths of executors did it. */
const CONVICTING_DEATHS = 2;

export class Suspects {
  /** The jobs of each run that is queued or going on at the device. */
  private readonly runs = new Map<number, Set<string>>();
  private groups: (readonly string[])[] = [];
  /** How many executors died while the job was alone at the device. */
  private readonly deathsAlone = new Map<string, number>();

  get isIsolating(): boolean {
    return this.groups.length > 0;
  }

  /** The jobs that may be at the device now, while isolating. */
  get group(): readonly string[] {
    return this.groups[0] ?? [];
  }

  /** Every job that is under suspicion. */
  all(): readonly string[] {
    return this.groups.flat();
  }

  /** Whether nobody who is still under way was in a run. */
  get isDeviceEmpty(): boolean {
    return [...this.runs.values()].every((jobIds) => jobIds.size === 0);
  }

  began(run: number, jobIds: readonly string[]): void {
    this.runs.set(run, new Set(jobIds));
  }

  /** Jobs whose rows are in a run that began and has not ended. */
  jobsOf(run: number): ReadonlySet<string> | undefined {
    return this.runs.get(run);
  }

  ended(run: number): void {
    this.runs.delete(run);
  }

  /** Takes jobs as they were claimed, with how often they stalled. Returns whether one of them must run alone. */
  claimed(jobs: readonly { readonly jobId: string; readonly stalls: number }[]): boolean {
    const suspects = jobs.filter(({ stalls }) => stalls >= SUSPECT_STALLS);
    for (const [at, size] of STALLED_GROUP_SIZES.entries()) {
      const isLast = at === STALLED_GROUP_SIZES.length - 1;
      const alike = suspects.filter(
        ({ stalls }) => stalls === SUSPECT_STALLS + at || (isLast && stalls > SUSPECT_STALLS + at),
      );
      for (let from = 0; from < alike.length; from += size)
        this.groups.push(alike.slice(from, from + size).map(({ jobId }) => jobId));
    }
    return suspects.length > 0;
  }

  /** Clears a job: it has its ending, or is somebody else's business now. */
  forget(jobId: string): void {
    this.deathsAlone.delete(jobId);
    // a row that failed alone ends its run without a word
    for (const jobIds of this.runs.values()) jobIds.delete(jobId);
    if (this.groups.length > 0)
      this.groups = withoutEmpty(this.groups.map((group) => group.filter((id) => id !== jobId)));
  }

  /** Clears what was at the device: the executor is gone for a reason that is nobody's fault. */
  clearDevice(): void {
    this.runs.clear();
  }

  /**
   * The executor died of what it ran, or of nothing that we know. Returns the jobs that are convicted; the caller
   * forgets them.
   */
  executorDied(): readonly string[] {
    const atDevice = this.takeRuns();
    const [tried = [], ...later] = this.groups;
    const untouched = tried.filter((jobId) => !atDevice.some((run) => run.includes(jobId)));
    const [only] = atDevice;
    const isAlone = atDevice.length === 1 && only?.length === 1;
    if (isAlone) this.deathsAlone.set(only[0]!, (this.deathsAlone.get(only[0]!) ?? 0) + 1);
    // Several runs were at the device: each is tried by itself. The oldest was the one that ran, most likely.
    const next = atDevice.length === 1 && !isAlone ? halves(only!) : atDevice;
    this.groups = withoutEmpty([...next, untouched, ...later]);
    return isAlone && this.deathsAlone.get(only[0]!)! >= CONVICTING_DEATHS ? only : [];
  }

  /** Takes the jobs of each run at the device, oldest run first, each job once. */
  private takeRuns(): string[][] {
    const seen = new Set<string>();
    const runs = [...this.runs.values()].map((jobIds) =>
      [...jobIds].filter((jobId) => !seen.has(jobId) && seen.add(jobId)),
    );
    this.runs.clear();
    return withoutEmpty(runs);
  }
}

/** Whether a job was so often with workers that died, the last times alone, that nobody has to die of it again. */
export function isConvictedByStalls(stalls: number): boolean {
  return stalls >= CONVICTING_STALLS;
}

function halves(group: readonly string[]): (readonly string[])[] {
  const middle = Math.ceil(group.length / 2);
  return [group.slice(0, middle), group.slice(middle)];
}

function withoutEmpty<Group extends readonly string[]>(groups: readonly Group[]): Group[] {
  return groups.filter((group) => group.length > 0);
}
