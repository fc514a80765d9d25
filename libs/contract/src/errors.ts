// Every failure that a caller, an operator or a job record may see, as one closed set of codes.
// A message says what was asked, what was found and what to do. Adapters translate their library's
// errors into these at their edge; nothing else is ever stored with a failed job.

export const ERROR_CODES = {
  // verdicts about a job's input: asking again gives the same answer
  JOB_INVALID: 'The job does not follow the public format.',
  JOB_VERSION_UNKNOWN: 'The job was written for a newer worker.',
  JOB_ID_CONFLICT: 'This job id is already used for other input.',
  FINGERPRINT_MISMATCH: 'The fingerprint sent with the job is not the one of its input and model.',
  TOKENIZER_MISMATCH: 'The token ids were made by another tokenizer than the model has.',
  INPUT_CORRUPT: 'The input key does not hold a well-formed input.',
  INPUT_TOO_LONG: 'A text has more tokens than the model takes, and the job asked not to truncate.',
  SOURCE_CHANGED: 'A file is not the one any more that the part of a run was cut from.',
  INPUT_LOST: 'The job has neither an input nor a result.',
  RESULT_TOO_LARGE: 'The result would be larger than one result may be.',
  TEXTS_NOT_EMBEDDED: 'A similarity job has texts as queries; workers compare vectors.',
  DEADLINE_PASSED: 'The deadline of the job passed before it ran.',
  CANCELLED: 'Somebody took the job back before it was done.',
  QUARANTINED: 'The job killed its executor when it ran alone.',
  // the result
  RESULT_EXPIRED: 'The job completed, but its result is no longer stored.',
  RESULT_TAKEN: 'The result was acknowledged before.',
  RESULT_CORRUPT: 'The result does not have the form or checksum it should have.',
  PAYLOAD_ELSEWHERE: 'The result lies on a payload server that this reader does not know.',
  PAYLOAD_LOST: 'A payload server does not have what a result points to, or has other bytes.',
  // the device and its process
  OUT_OF_VRAM: 'The device has too little memory for this run.',
  DEVICE_LOST: 'The device stopped working.',
  EXECUTOR_LOST: 'The executor process died or stopped answering.',
  INFERENCE_FAILED: 'The model could not be run on this input.',
  // the queue
  LEASE_LOST: 'Another worker may have the job by now.',
  QUEUE_UNREACHABLE: 'The queue server does not answer.',
  CELL_UNKNOWN: 'The id names a cell that is not in the list of cells.',
  NOT_SERVED: 'No worker serves this queue and none ever did, while others are served.',
  QUEUE_STUCK: 'Jobs wait in the queue, but claiming brings none.',
  QUEUE_DAMAGED: 'A key of the queue is of another type than it should be.',
  QUEUE_UNSAFE: 'The queue server is configured so that it can lose jobs.',
  ADMISSION_REFUSED: 'The queue takes no more for the moment; the error says when to come back.',
  QUEUE_FULL: 'The queue server has no memory left.',
  QUEUE_REFUSES_WRITES: 'The queue server answers and takes no writes; its own words say why.',
  // similarity
  COLLECTION_UNKNOWN: 'No collection of this name is known.',
  COLLECTION_GONE: 'This version of the collection is no longer stored.',
  COLLECTION_CORRUPT: 'The file of the collection is not what was written.',
  COLLECTION_EMPTY: 'There are no rows to search.',
  COLLECTION_MODEL_MISMATCH: 'The texts were embedded by another model than the rows of the collection.',
  DIMENSIONS_MISMATCH: 'Vectors of different lengths cannot be compared.',
  VECTOR_INVALID: 'A vector holds something that cannot be compared, such as NaN.',
  SEARCH_INVALID: 'The search asks for something that cannot be, such as the best 0 rows.',
  GRAPH_INVALID: 'The edges do not make a graph.',
  // models and set-up
  MODEL_UNKNOWN: 'No model of this name is known.',
  MODEL_UNAVAILABLE: 'The model could not be fetched.',
  MODEL_CORRUPT: 'The files of the model are not what they should be.',
  CANARY_FAILED: 'The device gives another vector for a known text than the model should.',
  SETUP_FAILED: 'Something that Shoal needs on this machine is missing.',
  CONFIG_INVALID: 'A setting has a value it cannot have.',
  // what a person handed over
  USAGE: 'The command was called in a way it does not understand.',
  FILE_UNREADABLE: 'A file cannot be read.',
  FILE_UNWRITABLE: 'A file cannot be written.',
  INPUT_INVALID: 'A line of the input is not what the format asks for.',
  INTERRUPTED: 'The command was interrupted.',
} as const;

export type ErrorCode = keyof typeof ERROR_CODES;

/**
 * The one error class. `code` is literal, `fields` are the facts a caller or a log needs, `cause` is what was caught.
 */
export class ShoalError<Code extends ErrorCode = ErrorCode> extends Error {
  readonly code: Code;
  readonly fields: Readonly<Record<string, unknown>>;

  constructor(code: Code, message: string, fields: Readonly<Record<string, unknown>> = {}, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'ShoalError';
    this.code = code;
    this.fields = fields;
  }
}

export function isShoalError(error: unknown, code?: ErrorCode): error is ShoalError {
  return error instanceof ShoalError && (code === undefined || error.code === code);
}

/** A failure as data: what a failed job stores and what crosses process borders. */
export interface Failure {
  readonly code: ErrorCode;
  readonly message: string;
}

/** `failedReason` of a job: the code first, so that a person and a program can both read it. */
export function failedReason(failure: Failure): string {
  return `${failure.code}: ${failure.message}`;
}

/**
 * The reverse of `failedReason`; a reason that somebody else wrote is reported as INFERENCE_FAILED with its own text.
 */
export function parseFailedReason(reason: string): Failure {
  const match = /^([A-Z_]+): ([\s\S]*)$/.exec(reason);
  const code = match?.[1];
  if (code !== undefined && Object.hasOwn(ERROR_CODES, code))
    return { code: code as ErrorCode, message: match?.[2] ?? '' };
  return { code: 'INFERENCE_FAILED', message: reason };
}

/** Any thrown value as a failure; unknown errors keep their text under `fallback`. */
export function toFailure(error: unknown, fallback: ErrorCode = 'INFERENCE_FAILED'): Failure {
  if (error instanceof ShoalError) return { code: error.code, message: error.message };
  return { code: fallback, message: error instanceof Error ? error.message : String(error) };
}
