// How many spans this process has sent, and how many nobody will see. Counted for the whole process, as its metrics are.

/** `dropped`: the collector did not take them, or more waited for it than may. */
export const spanCounts = { exported: 0, dropped: 0 };
