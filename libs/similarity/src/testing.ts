// What tests and benches of other packages take from this one.

export { openStandIn, standInEngine, standInLibrary, withStandIn } from './testing/stand-in.ts';
