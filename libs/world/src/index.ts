export type { Refusal, ServerFaults, ServerSession } from './server/interface.ts';
export { RULES, checkHistory, violationText, type HistoryReport } from './history/check.ts';
export type { EventFacts, EventKind, EventOp, HistoryEvent } from './history/event.ts';
export type { CheckOptions } from './history/id-history.ts';
export { readHistory, readHistoryFolder, type ReadHistory } from './history/read-history.ts';
export {
  HistoryWriter,
  MemoryHistory,
  Recorder,
  sharedClockMs,
  type EndCall,
  type HistorySink,
} from './history/recorder.ts';
export type { Rule, Violation } from './history/rules/rule.ts';
