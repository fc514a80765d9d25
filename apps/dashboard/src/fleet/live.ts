// Tells open pages what changed, every two seconds, as server-sent events: each part of the page whose markup is another
// than this reader has. The fleet is read once for all readers, and not at all while there is none.

import type { ServerResponse } from 'node:http';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Logger } from '@shoal/core';
import type { Visitor } from '../access/visitor.ts';
import { PARTS, fleetParts } from '../page/fleet-page.ts';
import { timeText } from '../page/words.ts';
import type { FleetReading } from './fleet-reading.ts';

export interface LiveParts {
  readonly read: () => Promise<FleetReading>;
  /** Who asked, as of now; undefined: the session is over. */
  readonly find: (request: FastifyRequest) => Promise<Visitor | undefined>;
  readonly log: Logger;
}

interface Reader {
  readonly request: FastifyRequest;
  readonly response: ServerResponse;
  readonly told: Map<string, string>;
}

const EVERY_MS = 2_000;
/** A browser opens six streams to one server at most; this is for a few dozen people. */
const MOST_READERS = 64;

export class LivePages {
  private readonly parts: LiveParts;
  private readonly readers = new Set<Reader>();
  private timer: NodeJS.Timeout | undefined;
  private isTelling = false;

  constructor(parts: LiveParts) {
    this.parts = parts;
  }

  /** Answers a request with the stream; 503 where too many are open. */
  async add(request: FastifyRequest, reply: FastifyReply): Promise<void> {
    if (this.readers.size >= MOST_READERS) {
      await reply.status(503).header('retry-after', '60').send(`${MOST_READERS} pages are open already\n`);
      return;
    }
    const headers = { ...reply.getHeaders(), 'content-type': 'text/event-stream', 'x-accel-buffering': 'no' };
    reply.hijack();
    const { raw: response } = reply;
    if (response.destroyed) return; // gone while it was asked who it is: its "close" has been, and would not come again
    for (const [name, value] of Object.entries(headers)) if (value !== undefined) response.setHeader(name, value);
    response.writeHead(200);
    response.write('retry: 3000\n\n');
    const reader = { request, response, told: new Map<string, string>() };
    this.readers.add(reader);
    response.once('close', () => this.leave(reader));
    this.timer ??= setInterval(() => void this.tellAll(), EVERY_MS);
    await this.tellAll();
  }

  /** Ends all streams. Safe to call twice. */
  stop(): void {
    for (const reader of this.readers) reader.response.end();
    clearInterval(this.timer);
  }

  private leave(reader: Reader): void {
    this.readers.delete(reader);
    if (this.readers.size > 0) return;
    clearInterval(this.timer);
    this.timer = undefined;
  }

  /** One reading at a time; one that fails is made up for by the next, and the page says meanwhile that it is not fresh. */
  private async tellAll(): Promise<void> {
    if (this.isTelling) return;
    this.isTelling = true;
    try {
      const reading = await this.parts.read();
      await Promise.all([...this.readers].map((reader) => this.tell(reader, reading)));
    } catch (error) {
      this.parts.log.debug({ err: error }, 'the fleet could not be read for open pages');
    } finally {
      this.isTelling = false;
    }
  }

  private async tell({ request, response, told }: Reader, reading: FleetReading): Promise<void> {
    const visitor = await this.parts.find(request);
    if (visitor === undefined) {
      response.end('event: over\ndata: {}\n\n');
      return;
    }
    if (response.writableNeedDrain) return; // a reader that does not read gets the next one
    const all = fleetParts(reading, visitor);
    const parts = Object.fromEntries(
      PARTS.flatMap((name) => ((told.get(name) ?? '') === all[name].text ? [] : [[name, all[name].text] as const])),
    );
    for (const [name, text] of Object.entries(parts)) told.set(name, text);
    response.write(`event: fleet\ndata: ${JSON.stringify({ time: timeText(reading.atMs), parts })}\n\n`);
  }
}
