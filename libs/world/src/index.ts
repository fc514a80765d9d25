export type { Refusal, ServerFaults, ServerSession } from './server/interface.ts';
