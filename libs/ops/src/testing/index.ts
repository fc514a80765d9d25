export * from './parse-metrics.ts';
export { OtlpReceiver, type ReceivedSpan } from './otlp-receiver.ts';
