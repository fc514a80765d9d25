// Everything that can go wrong with a request, as the answer to it: status, OpenAI's error body, Retry-After. The one
// place that turns failures into answers; whoever finds something wrong throws a Problem or a ShoalError. What is a bug
// answers 500 without its details, which are for the log.

import { isShoalError, type ErrorCode, type ShoalError } from '@shoal/contract';
import { StorageFailure } from './batches/storage.ts';

/** OpenAI's own words for these. */
export type ProblemType = 'invalid_request_error' | 'rate_limit_error' | 'server_error';

export interface ProblemFacts {
  readonly status: number;
  readonly type: ProblemType;
  /** For programs: model_not_found, context_length_exceeded, … */
  readonly code: string | null;
  /** What of the request it is about: "input[3]". */
  readonly param: string | null;
  readonly retryAfterSeconds?: number | undefined;
}

export class Problem extends Error {
  readonly facts: ProblemFacts;

  constructor(message: string, facts: ProblemFacts, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'Problem';
    this.facts = facts;
  }

  /** OpenAI's error body. */
  get body(): {
    readonly error: {
      readonly message: string;
      readonly type: ProblemType;
      readonly param: string | null;
      readonly code: string | null;
    };
  } {
    const { type, param, code } = this.facts;
    return { error: { message: this.message, type, param, code } };
  }
}

/** The request cannot be answered as it is. */
export function invalid(code: string, param: string | null, message: string, status = 400): Problem {
  return new Problem(message, { status, type: 'invalid_request_error', code, param });
}

/** Asking again later may help. */
export function unavailable(code: string, message: string, retryAfterSeconds: number, cause?: unknown): Problem {
  return new Problem(message, { status: 503, type: 'server_error', code, param: null, retryAfterSeconds }, cause);
}

export function overloaded(code: string, message: string, retryAfterSeconds: number, cause?: unknown): Problem {
  return new Problem(message, { status: 429, type: 'rate_limit_error', code, param: null, retryAfterSeconds }, cause);
}

/** Status of a request whose caller left before the answer, as nginx calls it. Nobody reads the rest. */
export const CALLER_LEFT = 499;

export function callerLeft(): Problem {
  return invalid('caller_left', null, 'the caller left before the answer', CALLER_LEFT);
}

/**
 * What a `Retry-After` says for a wait of so long: up to half as long again and at least three seconds, drawn for each
 * answer, so that callers who were refused together do not come back together.
 */
export function spreadSeconds(seconds: number, random: () => number = Math.random): number {
  return Math.ceil(seconds + random() * mostSpread(seconds));
}

/** What `spreadSeconds` adds on average, the rounding included. */
export function meanSpreadSeconds(seconds: number): number {
  return (mostSpread(seconds) + 1) / 2;
}

function mostSpread(seconds: number): number {
  return Math.max(3, seconds / 2);
}

/** A server that restarts is back in two (facts: 1.1 to 2.1 s); longer outages are not ours to guess. */
export const RETRY_LOST_SERVER_SECONDS = 5;
/** Memory comes back as fast as results are fetched; a disk or a worker, when somebody sees to it. */
const RETRY_FULL_SERVER_SECONDS = 10;

/** `words` are the server's own: its disk or memory is full, it became a replica, it still loads. */
export function writesRefused(words: string, status: 429 | 503 = /\bOOM\b/.test(words) ? 429 : 503): Problem {
  return status === 429
    ? overloaded('queue_full', `the queue server takes no more: ${words}`, RETRY_FULL_SERVER_SECONDS)
    : unavailable('queue_refuses_writes', `the queue server refuses to write: ${words}`, RETRY_FULL_SERVER_SECONDS);
}

/** Insufficient storage, as WebDAV calls it. */
const STORAGE_FULL = 507;

/** Any thrown value as an answer. */
export function toProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (isShoalError(error)) return fromShoalError(error);
  if (error instanceof StorageFailure) return fromStorage(error);
  return (
    fromFastify(error) ??
    new Problem(
      'something unexpected happened while the request was answered; the log of the server says what',
      { status: 500, type: 'server_error', code: 'internal_error', param: null },
      error,
    )
  );
}

/** Callers hear that there is no room and never where: the message of the failure names paths. */
function fromStorage(failure: StorageFailure): Problem {
  const retryAfterSeconds = RETRY_FULL_SERVER_SECONDS;
  if (failure.reason === 'full')
    return new Problem(
      'the disk that files, batches and jobs are stored on is full, nothing of this request was kept there; ask again ' +
        'when whoever runs this server has made room',
      { status: STORAGE_FULL, type: 'server_error', code: 'storage_full', param: null, retryAfterSeconds },
      failure,
    );
  return unavailable(
    'storage_unavailable',
    failure.reason === 'read-only'
      ? 'the disk that files, batches and jobs are stored on is read-only, nothing of this request was kept there; ask ' +
          'again when whoever runs this server has made it writable'
      : 'what files, batches and jobs are stored in does not take or give this now; the log of the server says why',
    retryAfterSeconds,
    failure,
  );
}

/** Statuses of what is wrong with a request and is told as it is. */
const REFUSALS: Readonly<Partial<Record<ErrorCode, number>>> = {
  COLLECTION_UNKNOWN: 404,
  COLLECTION_GONE: 404,
  COLLECTION_EMPTY: 400,
  COLLECTION_MODEL_MISMATCH: 400,
  DIMENSIONS_MISMATCH: 400,
  VECTOR_INVALID: 400,
  SEARCH_INVALID: 400,
  GRAPH_INVALID: 400,
  RESULT_TOO_LARGE: 400,
};

function fromShoalError(cause: ShoalError): Problem {
  const { code, message, fields }: { code: ErrorCode; message: string; fields: Readonly<Record<string, unknown>> } =
    cause;
  const status = REFUSALS[code];
  if (status !== undefined) return invalid(code.toLowerCase(), null, message, status);
  switch (code) {
    case 'INPUT_TOO_LONG':
      return invalid('context_length_exceeded', 'input', message);
    case 'QUEUE_UNREACHABLE':
    case 'QUEUE_DAMAGED':
    case 'JOB_VERSION_UNKNOWN':
    case 'QUEUE_UNSAFE':
      return unavailable(code.toLowerCase(), message, RETRY_LOST_SERVER_SECONDS, cause);
    case 'ADMISSION_REFUSED':
      return overloaded('queue_full', message, Math.ceil(Number(fields['retryAfterMs']) / 1_000), cause);
    case 'QUEUE_REFUSES_WRITES':
    case 'NOT_SERVED':
      return unavailable(code.toLowerCase(), message, RETRY_FULL_SERVER_SECONDS, cause);
    case 'QUEUE_FULL':
      return overloaded('queue_full', message, RETRY_FULL_SERVER_SECONDS, cause);
    case 'DEADLINE_PASSED':
    case 'INTERRUPTED':
      return unavailable(code.toLowerCase(), message, RETRY_LOST_SERVER_SECONDS, cause);
    default:
      return new Problem(message, { status: 500, type: 'server_error', code: code.toLowerCase(), param: null }, cause);
  }
}

/** What Fastify refuses before a route sees the request. */
function fromFastify(error: unknown): Problem | undefined {
  if (!(error instanceof Error)) return undefined;
  const status: unknown = Reflect.get(error, 'statusCode');
  if (typeof status !== 'number' || status < 400 || status > 499) return undefined;
  switch (Reflect.get(error, 'code')) {
    case 'FST_ERR_CTP_BODY_TOO_LARGE':
      return invalid(
        'request_too_large',
        null,
        'the body of the request is too large; send fewer inputs at a time',
        413,
      );
    case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
      return invalid(
        'unsupported_media_type',
        null,
        'the body must be JSON: send it with "content-type: application/json"',
        415,
      );
    case 'FST_ERR_CTP_EMPTY_JSON_BODY':
      return invalid('invalid_json', null, 'the body of the request is empty; it must be a JSON object');
    case 'FST_ERR_BAD_URL':
      return invalid('invalid_url', null, `the request cannot be read: ${error.message}`);
    case 'FST_ERR_MAX_PARAM_LENGTH':
      return invalid(
        'url_too_long',
        null,
        'the last part of the path is too long to be the id of anything; see /v1/models',
        414,
      );
    default:
      return invalid(
        status === 400 ? 'invalid_json' : 'bad_request',
        null,
        `the request cannot be read: ${error.message}`,
        status,
      );
  }
}
