// The private queue server: found, started, shared between the commands of one user, stopped behind the last of them.
// An entry point of its own, because it needs neither bullmq nor ioredis.

export { attachRunningServer, attachServer, type AttachedServer, type AttachOptions } from './attach.ts';
export { serverEnvironment, tuning } from './queue-server.ts';
export { findPresentProgram, findServerProgram, type FindOptions, type ServerProgram } from './program.ts';
