// Log lines of refused requests. A refusal is the caller's to read, and an operator's to find when a caller asks why: by
// its request id, its key or its tenant. The first of a kind is written at once; of those that follow within ten
// seconds, one line says how many there were. No line has anything that a caller wrote but the id of its request, which
// is checked: neither texts nor keys, and no message, since messages quote.

import type { FastifyRequest } from 'fastify';
import type { Clock, Logger } from '@shoal/core';
import { callerOf } from './access/caller.ts';
import type { ProblemFacts } from './problem.ts';

/** Of one kind, that is one route, status and code. */
const LINE_EVERY_MS = 10_000;
/** Routes, statuses and codes are closed sets; should they not be, what is beyond is counted under this code. */
const MOST_KINDS = 500;
const OTHER = 'other';

interface Kind {
  /** Since its last line. */
  refused: number;
  last: Readonly<Record<string, unknown>>;
  readonly cancel: () => void;
}

export class RefusalLines {
  private readonly log: Logger;
  private readonly clock: Clock;
  private readonly kinds = new Map<string, Kind>();

  constructor(log: Logger, clock: Clock) {
    this.log = log;
    this.clock = clock;
  }

  /** `request`: left out where nobody has read one. */
  add({ status, code }: Pick<ProblemFacts, 'status' | 'code'>, request?: FastifyRequest): void {
    const route = request?.routeOptions.url;
    const name = `${route ?? ''} ${status} ${code ?? ''}`;
    const isKnown = this.kinds.has(name) || this.kinds.size < MOST_KINDS;
    const facts = { route, status, code: isKnown ? code : OTHER, ...idsOf(request) };
    const kind = this.kinds.get(isKnown ? name : OTHER);
    if (kind === undefined) return this.begin(isKnown ? name : OTHER, facts);
    kind.refused++;
    kind.last = facts;
  }

  /** Writes what was counted since the last lines. Safe to call twice. */
  stop(): void {
    for (const [name, kind] of this.kinds) this.end(name, kind);
  }

  private begin(name: string, facts: Readonly<Record<string, unknown>>): void {
    this.write(facts, 1);
    const cancel = this.clock.after(LINE_EVERY_MS, () => this.end(name, kind));
    const kind: Kind = { refused: 0, last: facts, cancel };
    this.kinds.set(name, kind);
  }

  private end(name: string, { refused, last, cancel }: Kind): void {
    cancel();
    this.kinds.delete(name);
    if (refused > 0) this.write(last, refused);
  }

  /** Of several, ids are those of the last one. */
  private write(facts: Readonly<Record<string, unknown>>, refused: number): void {
    const said = refused === 1 ? 'request refused' : 'requests refused, the last one of them';
    const line = { ...facts, ...(refused > 1 && { refused }) };
    if (facts['status'] === 429) this.log.warn(line, said);
    else this.log.info(line, said);
  }
}

function idsOf(request: FastifyRequest | undefined): Readonly<Record<string, unknown>> {
  if (request === undefined) return {};
  const { keyId, tenant } = callerOf(request);
  return { requestId: request.id, ...(keyId !== undefined && { keyId }), tenant };
}
