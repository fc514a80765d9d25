export { hostGuard, isLoopbackHost, type HostGuard, type HostGuardOptions, type HostRefusal } from './host-guard.ts';
export { listenFailure, type ListenAddress } from './listen-failure.ts';
export { PRODUCER_METRICS, WORKER_METRICS, type MetricCatalogue, type MetricDefinition } from './metric-catalogue.ts';
export { createMetrics, type MetricRegistry } from './metrics.ts';
export { startMetricsServer, type MetricsServer, type MetricsServerOptions } from './metrics-server.ts';
export {
  readDetails,
  readProcesses,
  readSlices,
  type DeviceDetails,
  type DeviceProcess,
  type DeviceSlice,
} from './nvidia-details.ts';
export {
  cachedReader,
  nvidiaMemoryProbe,
  readDevices,
  type DeviceReading,
  type DevicesRead,
  type ReadDevicesOptions,
} from './nvidia-smi.ts';
export {
  createWorkerMetrics,
  serveWorkerMetrics,
  type ServedMetrics,
  type WorkerMetrics,
  type WorkerMetricsOptions,
} from './worker-metrics.ts';
