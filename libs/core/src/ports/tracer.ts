// What is told to whoever follows a request through processes: spans, as OpenTelemetry has them. Nothing of a text, a
// vector or a key is ever told.

import type { Trace } from '@shoal/contract';

/** A span as another process knows it: W3C's headers (https://www.w3.org/TR/trace-context/). */
export type TraceContext = Pick<Trace, 'traceparent' | 'tracestate'>;

/** Facts are ids, sizes, codes and words of closed sets. One that is undefined is left out. */
export type SpanFacts = Readonly<Record<string, string | number | boolean | undefined>>;

export interface SpanOptions {
  readonly kind: 'server' | 'producer' | 'consumer' | 'internal';
  /** Left out, or unreadable: the span begins a trace. */
  readonly parent?: TraceContext | undefined;
  /** Spans that it is about and no child of. */
  readonly links?: readonly Span[];
  readonly facts?: SpanFacts;
  /** It began so many milliseconds ago. Default: now. */
  readonly agoMs?: number;
}

export interface Span {
  /** For whoever goes on with what this span began; undefined where nothing is traced. */
  readonly context: TraceContext | undefined;
  /** Whether anybody will see it. */
  readonly isSampled: boolean;
  event(name: string, facts?: SpanFacts): void;
  /** To a span that began later. */
  link(span: Span): void;
  /** Once. `failed`: a code, of what ended it badly. */
  end(facts?: SpanFacts, failed?: string): void;
}

export interface Tracer {
  /** Where nothing is traced nobody need gather what a span would be told. */
  readonly isOn: boolean;
  /** Calls are cheap and do not fail. */
  start(name: string, options: SpanOptions): Span;
}

export const noSpan: Span = {
  context: undefined,
  isSampled: false,
  event: () => undefined,
  link: () => undefined,
  end: () => undefined,
};

export const noTracer: Tracer = { isOn: false, start: () => noSpan };
