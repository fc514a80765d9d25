// BullMQ itself, required. It is CommonJS, and an `import` of it reads each of its 218 modules twice, once for the
// names that it might export: 0.27 s of CPU of every process that starts, instead of 0.1 (2-core EPYC, 2026-11-27). Who
// imports it gets the same classes.

import { createRequire } from 'node:module';
import type * as BullMq from 'bullmq';

const require = createRequire(import.meta.url);

export type Job = BullMq.Job;
export type Queue = BullMq.Queue;
export type Worker = BullMq.Worker;
export type UnrecoverableError = BullMq.UnrecoverableError;

export const { Job, Queue, UnrecoverableError, Worker } = require('bullmq') as typeof BullMq;
