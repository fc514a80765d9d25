// What every request passes around its route: the name it was asked by, its connection, the bytes of its body and of
// its answer, its turn, and an eye on whether its answer is read. Knows no route.

import type { IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Trace } from '@shoal/contract';
import { descriptorLimit, loopTurn, processClock } from '@shoal/core/base';
import type { Clock, Logger } from '@shoal/core';
import { hostGuard, type MetricRegistry, type PRODUCER_METRICS } from '@shoal/ops';
import { callerOf, tenantOf } from './access/caller.ts';
import { AnswerWatch, READING, type ReadingLimits } from './answer-watch.ts';
import { ByteBudget, type Hold } from './byte-budget.ts';
import { Connections, connectionsFor } from './connections.ts';
import { parseJson } from './json-body.ts';
import { HEALTH_ROUTES } from './health-routes.ts';
import { JsonList, jsonPieces } from './json-stream.ts';
import { Problem, invalid, overloaded } from './problem.ts';
import { ARRIVAL, readBody, type ArrivalLimits } from './read-body.ts';
import { RequestLine } from './request-line.ts';
import { traceOf } from './trace-of.ts';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** A body that is said to be JSON may be empty. */
    readonly mayLackBody?: boolean;
  }
}

export interface GateOptions {
  /** What the server listens on, and the setting httpHosts. */
  readonly host: string;
  readonly hosts?: string | undefined;
  readonly maxOpenRequests: number;
  readonly maxWaitingRequests: number;
  readonly maxHttpBytes: number;
  readonly maxHttpConnections: number;
  readonly requestTimeoutMs: number;
  readonly metrics: MetricRegistry<typeof PRODUCER_METRICS>;
  readonly log: Logger;
  /** For tests. */
  readonly arrival?: Partial<ArrivalLimits> | undefined;
  readonly reading?: ReadingLimits | undefined;
  readonly clock?: Clock | undefined;
}

/** What a route is given to answer in its turn. */
export interface Answering {
  /** Aborted when nobody waits for the answer any more. */
  readonly gone: AbortSignal;
  /** Of the time that the request has, the rest. */
  readonly leftMs: () => number;
  /** Whose jobs these are. */
  readonly tenant: string;
  /** The request that these are for: its id, and the trace context that its caller sent. */
  readonly trace?: Trace | undefined;
}

/** Less is answered in one piece. */
const STREAMED_ITEMS = 8;
/** A body of so many bytes is parsed as it comes: in less time than a turn of the event loop takes. */
const PARSED_AT_ONCE = 4_096;

export class Gate {
  readonly connections: Connections;
  private readonly options: GateOptions;
  private readonly budget: ByteBudget;
  private readonly line: RequestLine;
  private readonly watch: AnswerWatch;
  private readonly clock: Clock;
  private readonly holds = new WeakMap<FastifyRequest, Hold>();

  constructor(options: GateOptions) {
    const { maxOpenRequests, maxWaitingRequests, maxHttpBytes, maxHttpConnections, metrics, log } = options;
    this.options = options;
    this.clock = options.clock ?? processClock;
    this.budget = new ByteBudget({ totalBytes: maxHttpBytes, onRoom: () => this.line.callNext() });
    this.line = new RequestLine({
      mostOpen: maxOpenRequests,
      mostWaiting: maxWaitingRequests,
      clock: this.clock,
      onChange: (open, waiting) => {
        metrics.set('shoal_http_requests_open', {}, open);
        metrics.set('shoal_http_requests_waiting', {}, waiting);
      },
    });
    this.watch = new AnswerWatch(this.clock, options.reading ?? READING);
    this.connections = new Connections(
      connectionsFor({ most: maxHttpConnections, descriptors: descriptorLimit() }),
      log,
    );
    metrics.onScrape(() => metrics.set('shoal_http_held_bytes', {}, this.budget.usedBytes));
  }

  /** How many requests are answered at a time. */
  get maxOpen(): number {
    return this.options.maxOpenRequests;
  }

  /** To be called before routes are registered, and after what counts requests. */
  addTo(app: FastifyInstance): void {
    const guard = hostGuard(this.options);
    app.addHook('onRequest', async (request, reply) => {
      this.begin(request, reply);
      const refusal = guard({ ...partsOf(request.raw), url: request.originalUrl });
      if (refusal !== undefined) throw invalid(refusal.code, null, refusal.message, refusal.status);
      if (HEALTH_ROUTES.has(request.routeOptions.url) || this.connections.hasRoom) return;
      void reply.header('connection', 'close');
      throw this.line.refusal('as many connections are busy as there may be');
    });
    app.addHook('onSend', async (_request, { raw }) => this.watch.began(raw));
    app.removeAllContentTypeParsers();
    const parseText = app.getDefaultJsonParser('error', 'error');
    app.addContentTypeParser('application/json', async (request: FastifyRequest, payload: IncomingMessage) => {
      const body = await readBody(request.raw, payload, {
        limits: { ...ARRIVAL, ...this.options.arrival },
        hold: this.holdOf(request),
        noRoom: () => this.noRoom(),
      });
      if (body.length === 0 && mayLackBody(request)) return undefined;
      const turn = (): Promise<void> => loopTurn(callerOf(request).tenant);
      if (body.length > PARSED_AT_ONCE) await turn();
      return parseJson(request, body, { parseText, turn });
    });
  }

  /**
   * What `answer` gives, once it is this request's turn and there is room for so many bytes. The turn lasts until the
   * answer is written or its connection closed. `user`: of the caller's tenant, whose turn it is.
   */
  async inTurn<Answer>(
    request: FastifyRequest,
    reply: FastifyReply,
    bytes: number,
    answer: (answering: Answering) => Promise<Answer>,
    user?: string,
  ): Promise<Answer> {
    const { requestTimeoutMs } = this.options;
    const deadlineMs = this.clock.nowMs() + requestTimeoutMs;
    const gone = callerGone(reply);
    const tenant = tenantOf(callerOf(request), user);
    const turn = { bytes, hold: this.holdOf(request), gone, tenant, waitMs: requestTimeoutMs };
    const leave = await this.line.enter(turn);
    whenOver(request, reply, leave);
    const trace = traceOf(request);
    return answer({ gone, tenant, trace, leftMs: () => Math.max(1, Math.ceil(deadlineMs - this.clock.nowMs())) });
  }

  /** Room for what is there already, such as results whose size nobody could know. */
  makeRoom(request: FastifyRequest, bytes: number): void {
    if (!this.holdOf(request).take(bytes)) throw this.noRoom();
  }

  /** The answer, in pieces where it is long: each is made when the one before was taken. */
  send(reply: FastifyReply, list: JsonList): object {
    void reply.type('application/json; charset=utf-8');
    if (list.count < STREAMED_ITEMS) return Buffer.from([...jsonPieces(list)].join(''));
    return Readable.from(this.taken(reply, list), { objectMode: false, highWaterMark: 65_536 });
  }

  /** Bytes as they are, each piece when the one before was taken. */
  sendBytes(reply: FastifyReply, type: string, pieces: AsyncIterable<Uint8Array>): Readable {
    void reply.type(type);
    return Readable.from(this.takenBytes(reply, pieces), { objectMode: false, highWaterMark: 65_536 });
  }

  private async *takenBytes(
    reply: FastifyReply,
    pieces: AsyncIterable<Uint8Array>,
  ): AsyncGenerator<Uint8Array, void, undefined> {
    for await (const piece of pieces) {
      yield piece;
      this.watch.moved(reply.raw, piece.length);
    }
  }

  /**
   * One piece in each turn of the event loop, and turns go round by tenant: a socket takes some 4 MB before it says that
   * it is full, and 60 large answers held the loop for ten seconds.
   */
  private async *taken(reply: FastifyReply, list: JsonList): AsyncGenerator<string, void, undefined> {
    const { tenant } = callerOf(reply.request);
    for (const piece of jsonPieces(list)) {
      this.watch.waits(reply.raw);
      await loopTurn(tenant);
      this.watch.goesOn(reply.raw);
      yield piece;
      this.watch.moved(reply.raw, piece.length);
    }
  }

  private begin(request: FastifyRequest, reply: FastifyReply): void {
    const { socket } = request.raw;
    this.connections.began(socket);
    const hold = this.budget.open();
    this.holds.set(request, hold);
    whenOver(request, reply, () => {
      hold.release();
      this.connections.rested(socket);
    });
  }

  private holdOf(request: FastifyRequest): Hold {
    const hold = this.holds.get(request);
    if (hold === undefined) throw new Error('every request holds bytes from its beginning');
    return hold;
  }

  private noRoom(): Problem {
    const { retryAfterSeconds = 1 } = this.line.refusal('').facts;
    return overloaded(
      'too_many_bytes',
      `bodies and answers of others take up the ${this.budget.totalBytes} bytes that this server holds (its setting ` +
        'maxHttpBytes); send fewer inputs at a time, or try again in a while',
      retryAfterSeconds,
    );
  }
}

/** OpenAI's Python client calls nothing JSON as well. */
function mayLackBody({ method, routeOptions }: FastifyRequest): boolean {
  return method === 'DELETE' || routeOptions.config.mayLackBody === true;
}

function partsOf({ httpVersion, rawHeaders }: IncomingMessage): Pick<IncomingMessage, 'httpVersion' | 'rawHeaders'> {
  return { httpVersion, rawHeaders };
}

/**
 * Calls `over` once: when the answer was written, or the connection is closed. An answer whose turn on its connection
 * never came does not close by itself.
 */
function whenOver({ raw: { socket } }: FastifyRequest, { raw: answer }: FastifyReply, over: () => void): void {
  const once = (): void => {
    answer.off('close', once);
    socket.off('close', once);
    over();
  };
  answer.once('close', once);
  socket.once('close', once);
}

/** Aborted when the connection closes before the answer has been written. */
function callerGone(reply: FastifyReply): AbortSignal {
  const gone = new AbortController();
  if (reply.raw.destroyed || reply.raw.socket?.destroyed === true) gone.abort();
  reply.raw.once('close', () => {
    if (!reply.raw.writableFinished) gone.abort();
  });
  return gone.signal;
}
