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
export { KEPT_PLANS, keptPlans, type KeptPlan } from './run/kept-plans.ts';
export { planOf, type Plan, type PlannedFault, type PlannedJob } from './run/plan.ts';
export { PLANTED, faultsIn, plantOf, type PlantedFault } from './run/planted.ts';
export {
  runPlan,
  runSeeds,
  shrinkPlan,
  type OneRunOptions,
  type SeedsOptions,
  type SeedsReport,
} from './run/run-seeds.ts';
export type { Shrunk } from './run/shrink.ts';
export type { RunReport } from './run/simulate.ts';
export type { Flavour } from './server/command.ts';
export type { ModelServerOptions, Refusal, RestartOptions, ServerFaults, ServerSession } from './server/interface.ts';
export { ModelServer } from './server/model-server.ts';
export { Failure, NoList, Status, type Reply } from './server/replies.ts';
export { NotModelled } from './lua/values.ts';
