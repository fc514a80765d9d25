export { hostGuard, isLoopbackHost, type HostGuard, type HostGuardOptions, type HostRefusal } from './host-guard.ts';
export { listenFailure, type ListenAddress } from './listen-failure.ts';
export { EXPORTER_METRICS, PRODUCER_METRICS, WORKER_METRICS } from './catalogue/metric-catalogue.ts';
export type { MetricCatalogue, MetricDefinition } from './catalogue/metric-definition.ts';
export { cellsText, type CellText } from './cells-text.ts';
export { createExporterMetrics, type ExporterMetrics, type FleetTold, type QueueTold } from './exporter-metrics.ts';
export { createMetrics, type MetricRegistry } from './metrics.ts';
export { startMetricsServer, type MetricsServer, type MetricsServerOptions, type Probe } from './metrics-server.ts';
export { commitOf, tellProcess, type ProcessFacts, type ServerSeen } from './process-metrics.ts';
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
  cardReader,
  nvidiaMemoryProbe,
  readDevices,
  type DeviceReading,
  type DevicesRead,
  type ReadDevicesOptions,
} from './nvidia-smi.ts';
export {
  createWorkerMetrics,
  serveWorkerMetrics,
  type ServeWorkerMetricsOptions,
  type ServedMetrics,
  type StatusSeen,
  type WorkerIdentity,
  type WorkerMetrics,
  type WorkerMetricsOptions,
} from './worker-metrics.ts';
