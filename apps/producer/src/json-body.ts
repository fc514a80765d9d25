// From the bytes of a body to JSON. What Fastify's own parser lets pass is refused: bytes that are not UTF-8 would
// become U+FFFD and be embedded as such, and a body in another charset or compressed would be called bad JSON, which it
// is not.

import { isUtf8 } from 'node:buffer';
import type { FastifyBodyParser, FastifyRequest } from 'fastify';
import { LARGE_BYTES, parseInTurns } from './json-in-turns.ts';
import { invalid, type Problem } from './problem.ts';

export interface Parsing {
  /** Fastify's, which refuses poisoned prototypes. */
  readonly parseText: FastifyBodyParser<string>;
  /** Resolves when the next piece of long work for this caller may be done. */
  readonly turn: () => Promise<void>;
}

/** Rejects with what is wrong. */
export function parseJson(request: FastifyRequest, body: Buffer, { parseText, turn }: Parsing): Promise<unknown> {
  const problem = problemWith(request, body);
  if (problem !== undefined) return Promise.reject(problem);
  if (body.length > LARGE_BYTES) return parseInTurns(body, turn);
  return new Promise((resolve, reject) => {
    void parseText(request, body.toString(), (error, parsed: unknown) => {
      if (error === null) resolve(parsed);
      else reject(error);
    });
  });
}

function problemWith({ headers }: FastifyRequest, body: Buffer): Problem | undefined {
  const encoding = headers['content-encoding'] ?? 'identity';
  if (encoding.toLowerCase() !== 'identity')
    return invalid(
      'unsupported_media_type',
      null,
      `the body is compressed (content-encoding: ${encoding.slice(0, 80)}); send it as it is`,
      415,
    );
  const charset = /;\s*charset\s*=\s*"?([^\s;"]*)/i.exec(headers['content-type'] ?? '')?.[1] ?? 'utf-8';
  if (!/^utf-?8$/i.test(charset))
    return invalid(
      'unsupported_media_type',
      null,
      `the charset of the body is ${charset.slice(0, 80)}; JSON is sent as UTF-8`,
      415,
    );
  return isUtf8(body) ? undefined : invalid('invalid_json', null, 'the body is not UTF-8; encode the JSON as UTF-8');
}
