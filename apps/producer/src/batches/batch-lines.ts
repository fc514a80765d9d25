// One line of a batch's input, `{ custom_id, method, url, body }`, and the lines of its output and error files, all in
// OpenAI's shape. What is wrong with a line's frame ends the batch before it begins; what is wrong with its body is
// answered in the error file.

import { createHash } from 'node:crypto';
import { Problem } from '../problem.ts';
import { shown, shortened } from '../body-fields.ts';
import type { TextLine } from './jsonl.ts';
import type { Endpoint, LineError } from './records.ts';

export interface BatchLine {
  readonly number: number;
  readonly customId: string;
  readonly body: object;
}

const FIELDS = ['custom_id', 'method', 'url', 'body'];
const MAX_CUSTOM_ID = 512;

/** Throws a LineProblem. */
export function parseLine({ number, text, problem }: TextLine, endpoint: Endpoint): BatchLine {
  const refuse = (code: string, param: string | null, message: string): LineProblem =>
    new LineProblem({ code, line: number, param, message: `line ${number}: ${message}` });
  if (text === undefined) throw refuse('invalid_json_line', null, problem ?? 'the line cannot be read');
  const found = parseJson(text);
  if (found === undefined || typeof found !== 'object' || found === null || Array.isArray(found))
    throw refuse(
      'invalid_json_line',
      null,
      'the line is not a JSON object; each line is one request, without line breaks in it',
    );
  const stranger = Object.keys(found).find((name) => !FIELDS.includes(name));
  if (stranger !== undefined) {
    const name = shortened(stranger);
    throw refuse('unknown_parameter', name, `"${name}" is not a field of a line; there are ${FIELDS.join(', ')}`);
  }
  const { custom_id: customId, method, url, body } = found as Readonly<Record<string, unknown>>;
  if (customId === undefined || customId === null)
    throw refuse('missing_required_parameter', 'custom_id', '"custom_id" is missing: a text that is on no other line');
  if (typeof customId !== 'string' || customId === '' || customId.length > MAX_CUSTOM_ID)
    throw refuse(
      'invalid_value',
      'custom_id',
      `"custom_id" must be a text of 1 to ${MAX_CUSTOM_ID} characters, found ${shown(customId)}`,
    );
  if (method !== 'POST') throw refuse('invalid_method', 'method', `"method" must be "POST", found ${shown(method)}`);
  if (url !== endpoint)
    throw refuse('invalid_url', 'url', `"url" must be the batch's endpoint, "${endpoint}", found ${shown(url)}`);
  if (typeof body !== 'object' || body === null || Array.isArray(body))
    throw refuse('invalid_type', 'body', `"body" must be an object: what is sent to ${endpoint}, found ${shown(body)}`);
  return { number, customId, body };
}

/** What is wrong with a line before anything is asked. */
export class LineProblem extends Error {
  readonly error: LineError;

  constructor(error: LineError) {
    super(error.message);
    this.name = 'LineProblem';
    this.error = error;
  }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** The same whoever writes it, and whenever. */
function requestId(batchId: string, line: number): string {
  return createHash('sha256').update(`${batchId} ${line}`).digest('hex').slice(0, 32);
}

/** A line of the output file. */
export function outputLine(batchId: string, { number, customId }: BatchLine, body: object): string {
  return lineOf(batchId, number, customId, { status_code: 200, body }, null);
}

/** A line of the error file for a request that was refused or failed. */
export function problemLine(batchId: string, { number, customId }: BatchLine, { facts, body }: Problem): string {
  return lineOf(batchId, number, customId, { status_code: facts.status, body }, null);
}

/** A line of the error file for a request that was not asked any more. */
export function endedLine(batchId: string, { number, customId }: BatchLine, as: 'expired' | 'cancelled'): string {
  const message =
    as === 'expired'
      ? 'This request could not be executed before the completion window expired.'
      : 'This request was not executed: the batch was cancelled.';
  return lineOf(batchId, number, customId, undefined, { code: `batch_${as}`, message });
}

function lineOf(
  batchId: string,
  number: number,
  customId: string,
  response: { readonly status_code: number; readonly body: object } | undefined,
  error: { readonly code: string; readonly message: string } | null,
): string {
  const id = requestId(batchId, number);
  const said = response && { status_code: response.status_code, request_id: `req_${id}`, body: response.body };
  return `${JSON.stringify({ id: `batch_req_${id}`, custom_id: customId, response: said ?? null, error })}\n`;
}
