// Ports that only write down what they were told.

import type { Announcement, Announcer } from '../ports/queue.ts';
import type { Logger } from '../ports/logger.ts';
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
