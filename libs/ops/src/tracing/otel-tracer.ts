// Core's Tracer over OpenTelemetry's SDK, whose only importer this is: spans are sampled, gathered and sent as OTLP over
// HTTP. A collector that is away costs what it drops, which is counted, and one line; nothing waits for it. The SDK's 2.x
// line runs on Node 22.12, where 3.x wants 22.15.

import {
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  TraceFlags,
  createTraceState,
  trace,
  type Attributes,
  type Context,
  type Link,
  type Span as OtelSpan,
  type SpanContext,
  type Tracer as OtelTracer,
} from '@opentelemetry/api';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { detectResources, envDetector, resourceFromAttributes } from '@opentelemetry/resources';
import {
  AlwaysOffSampler,
  AlwaysOnSampler,
  BasicTracerProvider,
  BatchSpanProcessor,
  ParentBasedSampler,
  SamplingDecision,
  TraceIdRatioBasedSampler,
  type ReadableSpan,
  type Sampler,
  type SamplingResult,
  type Span as SdkSpan,
  type SpanExporter,
  type SpanProcessor,
} from '@opentelemetry/sdk-trace-base';
import {
  redactUrl,
  type Logger,
  type Span,
  type SpanFacts,
  type SpanOptions,
  type TraceContext,
  type Tracer,
} from '@shoal/core';
import type { OpenTracer, Sampling, TracerOptions } from './open-tracer.ts';
import { spanCounts } from './span-counts.ts';

/** A collector that hangs keeps nobody from ending. */
const FLUSH_MS = 5_000;
/** OpenTelemetry's own; OTEL_BSP_MAX_QUEUE_SIZE has another. */
const MOST_WAITING = 2_048;
const DEFAULT_ENDPOINT = 'http://localhost:4318/v1/traces';

const KINDS: Readonly<Record<SpanOptions['kind'], SpanKind>> = {
  server: SpanKind.SERVER,
  producer: SpanKind.PRODUCER,
  consumer: SpanKind.CONSUMER,
  internal: SpanKind.INTERNAL,
};

/** Everything but the sampling is read from the environment, by OpenTelemetry's own rules. */
export function startSdk(
  { environment, name, version, log }: TracerOptions,
  sampling: Sampling,
): OpenTracer & { readonly endpoint: string } {
  const endpoint = redactUrl(
    environment['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'] || environment['OTEL_EXPORTER_OTLP_ENDPOINT'] || DEFAULT_ENDPOINT,
  );
  const most = Number(environment['OTEL_BSP_MAX_QUEUE_SIZE']) || MOST_WAITING;
  const sent = new CountedExporter(new OTLPTraceExporter(), endpoint, log);
  const provider = new BasicTracerProvider({
    sampler: new LinkedSampler(samplerOf(sampling)),
    resource: resourceFromAttributes({ 'service.name': `shoal-${name}`, 'service.version': version }).merge(
      detectResources({ detectors: [envDetector] }),
    ),
    spanProcessors: [new CountedSpans(new BatchSpanProcessor(sent, { maxQueueSize: most }), sent, most)],
  });
  let stopping: Promise<void> | undefined;
  return {
    endpoint,
    tracer: tracerOf(provider.getTracer('shoal', version)),
    stop: () => (stopping ??= within(FLUSH_MS, provider.shutdown())),
  };
}

function samplerOf({ isParentBased, ratio }: Sampling): Sampler {
  const root =
    ratio === 1 ? new AlwaysOnSampler() : ratio === 0 ? new AlwaysOffSampler() : new TraceIdRatioBasedSampler(ratio);
  return isParentBased ? new ParentBasedSampler({ root }) : root;
}

/** A span that begins a trace and is about others, as a micro-batch is, is seen where one of them is. */
class LinkedSampler implements Sampler {
  private readonly others: Sampler;

  constructor(others: Sampler) {
    this.others = others;
  }

  shouldSample(
    context: Context,
    traceId: string,
    name: string,
    kind: SpanKind,
    attributes: Attributes,
    links: Link[],
  ): SamplingResult {
    if (links.length === 0) return this.others.shouldSample(context, traceId, name, kind, attributes, links);
    const isSeen = links.some(({ context: { traceFlags } }) => (traceFlags & TraceFlags.SAMPLED) !== 0);
    return { decision: isSeen ? SamplingDecision.RECORD_AND_SAMPLED : SamplingDecision.NOT_RECORD };
  }

  toString(): string {
    return `LinkedSampler{${this.others.toString()}}`;
  }
}

// ---- spans --------------------------------------------------------------------------------------------------------

function tracerOf(tracer: OtelTracer): Tracer {
  return {
    isOn: true,
    start(name, { kind, parent, links = [], facts = {}, agoMs = 0 }) {
      const remote = parent === undefined ? undefined : contextOf(parent);
      const span = tracer.startSpan(
        name,
        {
          kind: KINDS[kind],
          attributes: { ...facts },
          links: links.flatMap((link) => (link instanceof TracedSpan ? [{ context: link.otel.spanContext() }] : [])),
          ...(agoMs > 0 && { startTime: Date.now() - agoMs }),
        },
        remote === undefined ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, remote),
      );
      return new TracedSpan(span);
    },
  };
}

class TracedSpan implements Span {
  readonly otel: OtelSpan;

  constructor(otel: OtelSpan) {
    this.otel = otel;
  }

  get context(): TraceContext {
    const { traceId, spanId, traceFlags, traceState } = this.otel.spanContext();
    const tracestate = traceState?.serialize() ?? '';
    return {
      traceparent: `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`,
      ...(tracestate !== '' && { tracestate }),
    };
  }

  get isSampled(): boolean {
    return this.otel.isRecording();
  }

  event(name: string, facts: SpanFacts = {}): void {
    this.otel.addEvent(name, { ...facts });
  }

  link(span: Span): void {
    if (span instanceof TracedSpan) this.otel.addLink({ context: span.otel.spanContext() });
  }

  end(facts: SpanFacts = {}, failed?: string): void {
    this.otel.setAttributes({ ...facts, ...(failed !== undefined && { 'error.type': failed }) });
    if (failed !== undefined) this.otel.setStatus({ code: SpanStatusCode.ERROR });
    this.otel.end();
  }
}

/** Undefined where it cannot be read. */
function contextOf({ traceparent, tracestate }: TraceContext): SpanContext | undefined {
  const [, traceId, spanId, flags] =
    /^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/.exec(traceparent ?? '') ?? [];
  if (traceId === undefined || spanId === undefined || flags === undefined) return undefined;
  return {
    traceId,
    spanId,
    traceFlags: Number.parseInt(flags, 16) & TraceFlags.SAMPLED,
    isRemote: true,
    ...(tracestate !== undefined && { traceState: createTraceState(tracestate) }),
  };
}

// ---- what is sent -------------------------------------------------------------------------------------------------

/** Counts what the collector takes and what it does not, and says once that it is away, and once that it is back. */
class CountedExporter implements SpanExporter {
  private readonly exporter: SpanExporter;
  private readonly endpoint: string;
  private readonly log: Logger;
  /** Spans dropped since it is away; 0 while it answers. */
  private lost = 0;
  /** Handed over for good, taken or not. */
  handedOver = 0;

  constructor(exporter: SpanExporter, endpoint: string, log: Logger) {
    this.exporter = exporter;
    this.endpoint = endpoint;
    this.log = log;
  }

  export(spans: ReadableSpan[], done: Parameters<SpanExporter['export']>[1]): void {
    this.handedOver += spans.length;
    this.exporter.export(spans, (result) => {
      if (result.error === undefined && Number(result.code) === 0) this.took(spans.length);
      else this.lose(spans.length, result.error?.message);
      done({ code: 0 }); // it is counted and said; the SDK would say it again
    });
  }

  forceFlush(): Promise<void> {
    return this.exporter.forceFlush?.() ?? Promise.resolve();
  }

  shutdown(): Promise<void> {
    return this.exporter.shutdown();
  }

  private took(spans: number): void {
    spanCounts.exported += spans;
    if (this.lost > 0) this.log.info({ dropped: this.lost }, 'the collector takes spans again');
    this.lost = 0;
  }

  private lose(spans: number, reason: string | undefined): void {
    const isFirst = this.lost === 0;
    spanCounts.dropped += spans;
    this.lost += spans;
    if (isFirst)
      this.log.warn(
        { endpoint: this.endpoint, reason },
        'the collector does not take spans; they are dropped and counted until it does',
      );
  }
}

/** The SDK's processor drops without a word what it has no room for; here that is counted. */
class CountedSpans implements SpanProcessor {
  private readonly inner: SpanProcessor;
  private readonly exporter: CountedExporter;
  private readonly most: number;
  private taken = 0;

  constructor(inner: SpanProcessor, exporter: CountedExporter, most: number) {
    this.inner = inner;
    this.exporter = exporter;
    this.most = most;
  }

  onStart(span: SdkSpan, context: Context): void {
    this.inner.onStart(span, context);
  }

  onEnd(span: ReadableSpan): void {
    if ((span.spanContext().traceFlags & TraceFlags.SAMPLED) === 0) return;
    if (this.taken - this.exporter.handedOver >= this.most) return void spanCounts.dropped++;
    this.taken++;
    this.inner.onEnd(span);
  }

  forceFlush(): Promise<void> {
    return this.inner.forceFlush();
  }

  shutdown(): Promise<void> {
    return this.inner.shutdown();
  }
}

async function within(ms: number, done: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, ms)));
  await Promise.race([done.catch(() => undefined), late]).finally(() => clearTimeout(timer));
}
