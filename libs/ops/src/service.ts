// @shoal/ops/service: what a process needs to start and stop. Carries neither prom-client nor execa, so that it loads
//   at once.

export { createLogger, type LoggerOptions } from './logger.ts';
export {
  REPLACE_ME,
  serviceMain,
  type Service,
  type ServiceMainOptions,
  type ServiceMeans,
  type ServiceReport,
} from './service-main.ts';
export { readSettingsFiles, type SettingsFiles } from './settings-file.ts';
export { openTracer, type OpenTracer, type TracerOptions } from './tracing/open-tracer.ts';
