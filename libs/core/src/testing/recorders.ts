// Ports that only write down what they were told.

import { invariant } from '@shoal/contract';
import type { Announcement, Announcer } from '../ports/queue.ts';
import type { Logger } from '../ports/logger.ts';
import { noSpan, type Span, type SpanFacts, type SpanOptions, type Tracer } from '../ports/tracer.ts';
import { Gate } from './gate.ts';

export class RecordingAnnouncer implements Announcer {
  readonly announced: Announcement[] = [];
  /** Held, announcing takes until it is released. */
  readonly gate = new Gate();

  async announce(announcements: readonly Announcement[]): Promise<void> {
    await this.gate.pass();
    this.announced.push(...announcements);
  }
}

export interface LogLine {
  readonly level: 'debug' | 'info' | 'warn' | 'error';
  readonly fields: object;
  readonly message: string;
}

/** Writes nothing out, keeps every line. */
export class RecordingLogger implements Logger {
  readonly lines: LogLine[] = [];

  debug(fields: object, message: string): void {
    this.lines.push({ level: 'debug', fields, message });
  }

  info(fields: object, message: string): void {
    this.lines.push({ level: 'info', fields, message });
  }

  warn(fields: object, message: string): void {
    this.lines.push({ level: 'warn', fields, message });
  }

  error(fields: object, message: string): void {
    this.lines.push({ level: 'error', fields, message });
  }

  messages(level: LogLine['level']): string[] {
    return this.lines.filter((line) => line.level === level).map((line) => line.message);
  }
}

export interface RecordedSpan {
  readonly name: string;
  readonly options: SpanOptions;
  readonly events: string[];
  readonly links: Span[];
  /** Undefined while it is open. */
  ending: { readonly facts: SpanFacts; readonly failed: string | undefined } | undefined;
  readonly span: Span;
}

/** Follows the traces of callers that are sampled, and those that begin here. */
export class RecordingTracer implements Tracer {
  readonly isOn = true;
  readonly spans: RecordedSpan[] = [];

  start(name: string, options: SpanOptions): Span {
    if (options.parent?.traceparent?.endsWith('-00') === true) return noSpan;
    const events: string[] = [];
    const links: Span[] = [...(options.links ?? [])];
    const id = (this.spans.length + 1).toString(16).padStart(16, '0');
    const [, traceId = 'f'.repeat(32)] = options.parent?.traceparent?.split('-') ?? [];
    const span: Span = {
      context: { traceparent: `00-${traceId}-${id}-01` },
      isSampled: true,
      event: (event) => void events.push(event),
      link: (other) => void links.push(other),
      end: (facts = {}, failed) => {
        invariant(recorded.ending === undefined, `the span "${name}" ends once`);
        recorded.ending = { facts, failed };
      },
    };
    const recorded: RecordedSpan = { name, options, events, links, ending: undefined, span };
    this.spans.push(recorded);
    return span;
  }
}
