// The name of a quarantine; what lies in one is quarantine.ts' business, in ../upkeep.

/** Of the main lane: where its jobs are quarantined. Inputs are at `{shoal}:in:<this>:<jobId>`. */
export function quarantineQueue(mainQueue: string): string {
  return `${mainQueue}-quarantine`;
}
