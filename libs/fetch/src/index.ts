export { withLock, type LockOptions, type LockOwner } from './lock.ts';
export { identityOf, isAlive, isInSight, ownIdentity, placeOfPids, type ProcessIdentity } from './process-identity.ts';
export { makeOpenFolder, placeAtomically, sha256File, writeAt } from './file.ts';
export { NO_MORE_FILES, diskFailure, onDisk, takesNoMoreFiles } from './disk-failure.ts';
export { fetchReason, mismatch, type FetchReason } from './fetch-failure.ts';
export { fetchUrl, type OnProgress, type UrlOptions } from './fetch-url.ts';
export { fetchWheel, type Platform, type Wheel, type WheelOptions } from './fetch-wheel.ts';
export { ask, named, type Answer, type AskOptions } from './ask.ts';
export { type FileDigest } from './digest.ts';
export {
  RETRIES,
  askPatiently,
  fetchResumed,
  type Promised,
  type ResumedOptions,
  type RetryTerms,
} from './fetch-resumed.ts';
