// What is wrong with the data of a job, in words for whoever wrote it: the field, what it should be, what was found, and
// what to write instead where many write the same wrong thing. The schemas find the problems; none is found here.

import type { z } from 'zod';

type Issue = z.core.$ZodIssue;

/** `data`: of the job, for what was found. Never a text of it in full: failed jobs and logs keep what is said here. */
export function describeIssue(issue: Issue, data: unknown): string {
  const path = issue.path.map(String).join('.');
  return told(issue, valueAt(data, issue.path), path) + laterRows(issue, path, valueAt(data, ['v']));
}

/** Jobs of more rows came with version 2. */
function laterRows(issue: Issue, path: string, version: unknown): string {
  const isRows = path === 'texts' || path === 'input.rows';
  return issue.code === 'too_big' && isRows && version === 1
    ? ', and more only with "v": 2, where all workers of the queue say in their facts that they take them'
    : '';
}

function told(issue: Issue, found: unknown, path: string): string {
  const place = path === '' ? 'data' : path;
  switch (issue.code) {
    case 'unrecognized_keys':
      return unknownFields(issue.keys, path, valueAt(found, ['v']));
    case 'invalid_type':
      return `${place}: must be ${typeNamed(issue.expected, path)}, found ${kindOf(found)}`;
    case 'invalid_value':
      return `${place}: must be ${oneOf(issue.values)}, found ${kindOf(found)}${laterValue(path, found)}`;
    case 'too_small':
    case 'too_big':
      return `${place}: ${bound(issue, found)}`;
    case 'invalid_union':
      return union(issue, found, path);
    case 'invalid_format':
      return `${place}: ${issue.format === 'base64' ? 'must be base64' : issue.message}, found ${kindOf(found)}`;
    default:
      return `${place}: ${issue.message}`;
  }
}

/** What people write who know other APIs, and where it goes here. */
const ELSEWHERE: Readonly<Record<string, string>> = {
  ...Object.fromEntries(
    ['text', 'inputs', 'sentence', 'sentences', 'content', 'contents', 'document', 'documents', 'query'].map((name) => [
      name,
      'the field is called "texts": a list of strings',
    ]),
  ),
  model: 'the queue says which model, embed-<model>',
  dimensions: 'it belongs into "output": { "dimensions": … }',
  dtype: 'it belongs into "output": { "dtype": … }',
  encoding_format: 'the form of vectors is chosen by "output": { "dtype": … }',
  input_type: 'the field is called "prompt": "query" or "passage"',
  priority: 'it is an option of the job, beside jobId, not data; "class" says whether somebody waits',
  jobId: 'it is an option of the job: queue.add(name, data, { jobId })',
  ttl: 'the field is called "resultTtlMs"',
  user: 'the field is called "tenant"',
  metadata: 'the field is called "meta"',
  requestId: 'it belongs into "trace": { "requestId": … }',
  traceparent: 'it belongs into "trace": { "traceparent": … }',
  returnVectors: 'it goes with "texts" in an embed job, not with an input key; a rerank job has "returnScores"',
  returnScores: 'it goes with rerank jobs; embed jobs have "returnVectors"',
};

function unknownFields(names: readonly string[], path: string, version: unknown): string {
  const list = names.map((name) => `"${name}"`).join(', ');
  const said = `unknown field${names.length > 1 ? 's' : ''} ${list}${path === '' ? '' : ` in ${path}`}`;
  if (path === 'output' && names.includes('normalize')) return `${said} ("normalize" needs "v": 2)`;
  if (path !== '') return said;
  const found = names.map((name) => ({ name, cure: cureOf(name, version) }));
  const cures = found.flatMap(({ name, cure }) => (cure === undefined ? [] : [`"${name}": ${cure}`]));
  const strange = found.flatMap(({ name, cure }) => (cure === undefined ? [`"${name}": …`] : []));
  const own =
    'fields of your own go into "meta" and come back with the result: ' +
    `{ "v": 2, "meta": { ${strange.join(', ')} } }`;
  return `${said} (${[...new Set(cures), ...(strange.length > 0 ? [own] : [])].join('; ')})`;
}

/** Fields that jobs of version 1 do not have. */
const SECOND_VERSION: ReadonlySet<string> = new Set(['meta', 'returnVectors', 'trace']);

function cureOf(name: string, version: unknown): string | undefined {
  if (SECOND_VERSION.has(name) && version === 1) return 'it needs "v": 2';
  return Object.hasOwn(ELSEWHERE, name) ? ELSEWHERE[name] : undefined;
}

/** Names of prompts came with version 2. */
function laterValue(path: string, found: unknown): string {
  return path === 'prompt' && typeof found === 'string' ? '; other names that the model has need "v": 2' : '';
}

function typeNamed(expected: string, path: string): string {
  if (path === 'texts') return 'a list of strings, such as ["hello"]';
  if (path === 'input') return 'an object that says what the input key holds; texts themselves go into "texts"';
  const names: Readonly<Record<string, string>> = {
    string: 'a string',
    number: 'a number',
    int: 'a whole number',
    array: 'a list',
    tuple: 'a list',
    object: 'an object',
    record: 'an object',
  };
  return names[expected] ?? expected;
}

function oneOf(values: readonly unknown[]): string {
  const shown = values.map((value) => JSON.stringify(value));
  return shown.length > 1 ? `one of ${shown.join(', ')}` : (shown[0] ?? 'left out');
}

function bound(issue: Extract<Issue, { code: 'too_small' | 'too_big' }>, found: unknown): string {
  const [side, limit] = issue.code === 'too_small' ? ['at least', issue.minimum] : ['at most', issue.maximum];
  const isStrict = issue.inclusive === false;
  if (issue.origin === 'array')
    return `must have ${side} ${limit} ${limit === 1 ? 'entry' : 'entries'}, found ${lengthOf(found)}`;
  if (issue.origin === 'string') return `must have ${side} ${limit} characters, found ${lengthOf(found)}`;
  const more = issue.code === 'too_small' ? 'more than' : 'less than';
  return `must be ${isStrict ? more : side} ${limit}, found ${kindOf(found)}`;
}

function lengthOf(found: unknown): string {
  const length = Array.isArray(found) || typeof found === 'string' ? found.length : 0;
  return length === 0 ? 'none' : String(length);
}

/** Of several forms that a field may have: the problems of the one that it is closest to. */
function union(issue: Extract<Issue, { code: 'invalid_union' }>, found: unknown, path: string): string {
  if ('matches' in issue) return `${path}: ${issue.message}`;
  if (issue.discriminator !== undefined) {
    const options = issue.options ?? [];
    return `${path}: must be ${oneOf(options)}, found ${kindOf(found)}`;
  }
  const closest = issue.errors.toSorted((a, b) => a.length - b.length)[0] ?? [];
  return closest
    .map((inner) =>
      told(
        inner,
        valueAt(found, inner.path),
        [path, ...inner.path.map(String)].filter((part) => part !== '').join('.'),
      ),
    )
    .join('; ');
}

const MOST_SHOWN = 40;

/** What a value is; short ones are shown. */
export function kindOf(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  if (typeof value === 'string')
    return value.length > MOST_SHOWN ? `a string of ${value.length} characters` : JSON.stringify(value);
  if (Array.isArray(value)) return value.length === 0 ? 'an empty list' : `a list of ${value.length}`;
  if (typeof value === 'object') return 'an object';
  return String(value);
}

function valueAt(data: unknown, path: readonly PropertyKey[]): unknown {
  let value = data;
  for (const key of path) value = typeof value === 'object' && value !== null ? Reflect.get(value, key) : undefined;
  return value;
}
