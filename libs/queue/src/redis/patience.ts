// How long a queue server is waited for at the first contact, whoever meets it: the connection that is being made, or the
// first question over it.

/** Where connections are refused or hung up on, as by a server that is about to start. */
export const AWAY_MS = 5_000;
/** Where nothing is refused, as by one that is slow or says that it cannot serve yet. */
export const SLOW_MS = 30_000;
