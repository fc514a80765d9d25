export { SmallDisk } from './small-disk.ts';
export { isMade, makeOnce } from './make-once.ts';
