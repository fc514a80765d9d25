export { MemoryJobSource, MemoryQueue, type JobRecord, type MemoryJobOptions } from './memory-job-source.ts';
export { describeJobSource, type JobSourceHarness } from './job-source.conformance.ts';
export { ManualClock, settled } from './manual-clock.ts';
export { Gate } from './gate.ts';
export {
  FakeBackend,
  deliveredVector,
  type FakeBackendOptions,
  type RecordedRun,
  type VramRule,
} from './fake-backend.ts';
export { fakeVector } from '../sim/fake-vector.ts';
export { FakeTokenizer } from './fake-tokenizer.ts';
export { MemoryPayloadStore } from './memory-payload-store.ts';
export { RecordingAnnouncer, RecordingLogger, RecordingTracer, type LogLine, type RecordedSpan } from './recorders.ts';
export { describeInferenceBackend, type BackendUnderTest } from './inference-backend.conformance.ts';
export { FakeExecutorLink, READY, type Ready } from './fake-executor-link.ts';
export { InProcessExecutor, type InProcessExecutorOptions } from './in-process-executor.ts';
export { withoutDescriptors } from './no-descriptors.ts';
export { programOf, testsRunBuild, type AppName, type Program } from './programs.ts';
