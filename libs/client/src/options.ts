// Options as plain JavaScript gives them: what the types rule out is refused here by name, before anything connects. A
// wrong shape is a mistake of the program and throws a TypeError; a value out of its range is CONFIG_INVALID.

import { inspect } from 'node:util';
import { MAX_ROWS_PER_JOB, ShoalError, traceField } from '@shoal/contract';
import type {
  ClientModel,
  ClientOptions,
  EmbedOptions,
  JobOptions,
  RerankJobOptions,
  RerankOptions,
  StreamOptions,
  SubmitOptions,
  SubmitRerankOptions,
  WaitOptions,
} from './embedding.ts';
import type { CosineOptions, RankingOptions, SearchOptions, SpreadOptions } from './similarity-calls.ts';

/** Every name that an options object may have; `true` so that one that is added to the type is missed here. */
type Names<Options> = Readonly<Record<keyof Required<Options>, true>>;

const CLIENT: Names<ClientOptions> = {
  redisUrl: true,
  connection: true,
  prefix: true,
  cells: true,
  cellAwayAfterMs: true,
  model: true,
  tokenizer: true,
  tenant: true,
  maxInFlightJobs: true,
  jobTexts: true,
  log: true,
  tracer: true,
  askAfterMs: true,
  giveUpAfterMs: true,
  notServedAfterMs: true,
  whenFull: true,
  onHeldBack: true,
  onWaiting: true,
  payloadServers: true,
  limits: true,
  faults: true,
};
const TERMS = {
  signal: true,
  timeoutMs: true,
  deadline: true,
  truncate: true,
  class: true,
  tenant: true,
  resultTtlMs: true,
  meta: true,
  trace: true,
} as const;
const REQUEST = { ...TERMS, prompt: true, output: true } as const;
const EMBED: Names<EmbedOptions> = { ...REQUEST, jobId: true };
const STREAM: Names<StreamOptions> = { ...REQUEST, runId: true, startAt: true, onError: true, onProgress: true };
const { timeoutMs: _, ...LATER } = REQUEST; // nobody waits for what is submitted
const SUBMIT: Names<SubmitOptions> = { ...LATER, jobId: true };
const CALL = {
  signal: true,
  timeoutMs: true,
  deadline: true,
  tenant: true,
  resultTtlMs: true,
  jobId: true,
  class: true,
  meta: true,
  trace: true,
} as const;
const RANKING: Names<RankingOptions> = { ...CALL, k: true, metric: true, names: true };
const SEARCH: Names<SearchOptions> = RANKING;
const COSINE: Names<CosineOptions> = { ...CALL, metric: true };
const SPREAD: Names<SpreadOptions> = { ...CALL, k: true, steps: true, decay: true, threshold: true };

const JOB: Names<JobOptions> = { tenant: true };
const RERANK_JOB: Names<RerankJobOptions> = { ...JOB, model: true };
const WAIT: Names<WaitOptions> = { signal: true, timeoutMs: true };
const RERANK: Names<RerankOptions> = {
  ...TERMS,
  model: true,
  query: true,
  documents: true,
  topN: true,
  jobId: true,
  onProgress: true,
};

const { timeoutMs: __, topN: ___, onProgress: ____, ...SUBMITTED } = RERANK;
const SUBMIT_RERANK: Names<SubmitRerankOptions> = SUBMITTED;

const CALLS = {
  embed: EMBED,
  embedStream: STREAM,
  embedMany: STREAM,
  submit: SUBMIT,
  job: JOB,
  result: WAIT,
  rerank: RERANK,
  submitRerank: SUBMIT_RERANK,
  rerankJob: RERANK_JOB,
  search: SEARCH,
  topK: RANKING,
  rescore: RANKING,
  cosine: COSINE,
  spread: SPREAD,
};

/** Where people look for something that is called otherwise, or is somewhere else. */
const ELSEWHERE: Readonly<Record<string, string>> = {
  dimensions: 'output: { dimensions }',
  dtype: 'output: { dtype }',
  normalize: 'output: { normalize }',
  timeout: 'timeoutMs',
  ttl: 'resultTtlMs',
  priority: 'class: "interactive" or "bulk"',
  url: 'redisUrl',
  redis: 'connection',
  texts: 'documents',
  top_n: 'topN',
};

/** The client's options; throws a TypeError for what is missing, unknown or of another shape. */
export function checkClientOptions(options: ClientOptions): void {
  refuseUnknown('ShoalClient.connect', options, CLIENT);
  const { redisUrl, connection, cells, model }: { readonly [Name in keyof ClientOptions]?: unknown } = options;
  if (connection !== undefined && (typeof connection !== 'object' || connection === null))
    throw new TypeError(
      `ShoalClient.connect takes a connection of ioredis, or its options, as connection; found ${shown(connection)}`,
    );
  if (connection !== undefined && redisUrl !== undefined)
    throw new TypeError('ShoalClient.connect takes redisUrl or connection, and was given both');
  if (cells !== undefined && connection !== undefined)
    throw new TypeError('ShoalClient.connect takes cells or connection, and was given both');
  if (cells !== undefined && typeof cells !== 'string' && !Array.isArray(cells))
    throw new TypeError(
      `ShoalClient.connect takes cells as a list of { name, address, write }, or as the path of a file with it; found ${shown(cells)}`,
    );
  if (redisUrl !== undefined && typeof redisUrl !== 'string')
    throw new TypeError(
      `ShoalClient.connect takes redisUrl as a text ("redis://localhost:6379"); found ${shown(redisUrl)}`,
    );
  if (connection === undefined && cells === undefined && redisUrl === undefined)
    throw new TypeError(
      'ShoalClient.connect needs redisUrl, the address of the queue server ("redis://localhost:6379"), or connection, ' +
        `one of ioredis; found ${shown(redisUrl)}`,
    );
  if (typeof model === 'string' ? model === '' : !isModel(model))
    throw new TypeError(
      `ShoalClient.connect needs model, the model's name ("minilm") or an object with it ({ name, revision }); found ` +
        shown(model),
    );
  refuseHubRevision('ShoalClient.connect', typeof options.model === 'string' ? options.model : options.model.name);
  checkRanges(options);
}

/** A model by its name, or name@revision, as an object. */
export function modelOf(model: string | ClientModel): ClientModel {
  if (typeof model !== 'string') return model;
  const [name = '', revision] = model.split('@');
  return revision === undefined ? { name } : { name, revision };
}

/** Workers know the revision of the weights and not the hub's. */
function refuseHubRevision(where: string, name: string): void {
  if (/^[^@]*\/[^@]*@/.test(name))
    throw new TypeError(
      `${where}: model is ${shown(name)}, with a revision of the hub, which workers do not know; pass ` +
        `${shown(name.replace(/@.*/s, ''))} alone, or the revision that shoal model list shows as { name, revision }`,
    );
}

/** The options of one call. */
export function checkCallOptions(call: keyof typeof CALLS, options: object): void {
  refuseUnknown(call, options, CALLS[call]);
  const { timeoutMs, deadline, tenant, meta, trace }: Record<string, unknown> = { ...options };
  if (timeoutMs !== undefined && !(typeof timeoutMs === 'number' && timeoutMs > 0))
    throw new TypeError(`${call}: timeoutMs is ${shown(timeoutMs)}; it is a number of milliseconds above 0`);
  if (deadline !== undefined && !Number.isFinite(Number(deadline)))
    throw new TypeError(`${call}: deadline is ${shown(deadline)}; it is a Date, or epoch milliseconds`);
  if (tenant !== undefined) refuseTenant(tenant);
  if (meta !== undefined) checkMeta(call, meta);
  if (trace !== undefined) checkTrace(call, trace);
}

/** JSON would drop what it cannot say, or say something else. */
function checkMeta(call: string, meta: unknown): void {
  if (typeof meta !== 'object' || meta === null || Array.isArray(meta))
    throw new TypeError(`${call}: meta is ${shown(meta)}; it is an object with fields of your own`);
  if (isCyclic(meta)) throw new TypeError(`${call}: meta goes in a circle, which JSON cannot say`);
  const found = notJson(meta, 'meta');
  if (found !== undefined)
    throw new TypeError(
      `${call}: ${found.path} is ${shown(found.value)}, which JSON cannot say; leave it out or make it a text`,
    );
}

function checkTrace(call: string, trace: unknown): void {
  const [problem] = traceField.safeParse(trace).error?.issues ?? [];
  if (problem === undefined) return;
  const at = problem.path.length === 0 ? '' : `.${problem.path.join('.')}`;
  const wrong = problem.path.length === 0 ? trace : Reflect.get(Object(trace), problem.path[0]!);
  throw new TypeError(
    `${call}: trace${at} is ${shown(wrong)}; ${problem.message} (trace has requestId, traceparent and tracestate)`,
  );
}

function isCyclic(value: unknown, outer: readonly unknown[] = []): boolean {
  if (typeof value !== 'object' || value === null) return false;
  return outer.includes(value) || Object.values(value).some((field) => isCyclic(field, [...outer, value]));
}

function notJson(value: unknown, path: string): { readonly path: string; readonly value: unknown } | undefined {
  if (value === null || typeof value === 'string' || typeof value === 'boolean' || Number.isFinite(value))
    return undefined;
  const isPlain =
    Array.isArray(value) || (typeof value === 'object' && Object.getPrototypeOf(value) === Object.prototype);
  if (!isPlain) return { path, value };
  for (const [name, field] of Object.entries(value as object)) {
    const found = notJson(field, `${path}.${name}`);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** A text is iterable as well: its letters would be embedded one by one. */
export function checkTexts(texts: unknown, call = 'embed'): asserts texts is readonly string[] {
  if (typeof texts === 'string')
    throw new TypeError(
      `${call} takes an array of texts and was given one text; write ${call}(${call === 'search' ? 'collection, ' : ''}[text])`,
    );
  if (!Array.isArray(texts)) throw new TypeError(`${call} takes an array of texts, and found ${shown(texts)}`);
  const at = texts.findIndex((text) => typeof text !== 'string');
  if (at >= 0) throw new TypeError(`${call} takes an array of texts, and found ${shown(texts[at])} at ${at}`);
}

/** The options of `rerank`, among them what it is asked. */
export function checkRerank(options: RerankOptions, call: 'rerank' | 'submitRerank' = 'rerank'): void {
  checkCallOptions(call, options);
  const { query, documents, topN, model }: { readonly [Name in keyof RerankOptions]: unknown } = options;
  if (typeof query !== 'string')
    throw new TypeError(`${call} needs query, the text that documents are weighed against; found ${shown(query)}`);
  if (!Array.isArray(documents))
    throw new TypeError(`${call} needs documents, an array of texts; found ${shown(documents)}`);
  const at = documents.findIndex((document) => typeof document !== 'string');
  if (at >= 0) throw new TypeError(`${call} takes texts as documents, and found ${shown(documents[at])} at ${at}`);
  if (topN !== undefined && !(Number.isInteger(topN) && Number(topN) >= 1))
    throw new TypeError(`${call}: topN is ${shown(topN)}; it is a whole number from 1`);
  if (model !== undefined && (typeof model === 'string' ? !/^[^@]+(@[^@]+)?$/.test(model) : !isModel(model)))
    throw new TypeError(
      `${call}: model is ${shown(model)}; it is the name of a reranker, name@revision, or { name, revision }`,
    );
  const given = options.model;
  if (given !== undefined) refuseHubRevision(call, typeof given === 'string' ? given : given.name);
}

/** The items of a stream; each is looked at when it comes. */
export function checkItems(texts: unknown, call: 'embedStream' | 'embedMany' = 'embedStream'): void {
  const isIterable =
    typeof texts === 'object' && texts !== null && (Symbol.iterator in texts || Symbol.asyncIterator in texts);
  const what = call === 'embedMany' ? 'texts, or of items' : 'items';
  if (!isIterable)
    throw new TypeError(
      `${call} takes an iterable of ${what} with a text ([{ text: "…" }]), and found ${shown(texts)}`,
    );
}

/** A text is no list of texts here either. */
export function checkQueries(call: string, queries: unknown): void {
  if (typeof queries === 'object' && queries !== null && 'dims' in queries) return;
  checkTexts(queries, call);
}

/** The id of a request. */
export function checkId(call: string, id: unknown): asserts id is string {
  if (typeof id !== 'string' || id === '')
    throw new TypeError(`${call} takes the id of a request, a text, and found ${shown(id)}`);
}

function refuseUnknown(where: string, options: unknown, known: Readonly<Record<string, true>>): void {
  if (typeof options !== 'object' || options === null)
    throw new TypeError(`${where} takes its options as an object, and found ${shown(options)}`);
  const unknown = Object.keys(options).filter((name) => !Object.hasOwn(known, name));
  if (unknown.length === 0) return;
  const named = unknown.map((name) => {
    const other = Object.hasOwn(ELSEWHERE, name) ? ELSEWHERE[name] : undefined;
    return `"${name}"${other === undefined ? '' : ` (it is ${other})`}`;
  });
  throw new TypeError(
    `${where} has no option ${named.join(', ')}; there are ${Object.keys(known)
      .filter((name) => name !== 'faults')
      .join(', ')}`,
  );
}

function isModel(model: unknown): model is ClientModel {
  if (typeof model !== 'object' || model === null) return false;
  const { name, revision, kind }: { readonly [Name in keyof ClientModel]?: unknown } = model;
  return (
    typeof name === 'string' &&
    name !== '' &&
    (revision === undefined || typeof revision === 'string') &&
    (kind === undefined || kind === 'embedder' || kind === 'reranker')
  );
}

function checkRanges(options: ClientOptions): void {
  const { jobTexts = 1, maxInFlightJobs = 1, cellAwayAfterMs = 1, tenant = 'default' } = options;
  const problems = [
    ...(Number.isInteger(jobTexts) && jobTexts >= 1 && jobTexts <= MAX_ROWS_PER_JOB
      ? []
      : [`jobTexts is ${jobTexts}; a job has 1 to ${MAX_ROWS_PER_JOB} texts`]),
    ...(Number.isInteger(maxInFlightJobs) && maxInFlightJobs >= 1
      ? []
      : [`maxInFlightJobs is ${maxInFlightJobs}; at least 1 is needed`]),
    ...(cellAwayAfterMs > 0 ? [] : [`cellAwayAfterMs is ${cellAwayAfterMs}; it is a number of milliseconds above 0`]),
    ...tenantProblems(tenant),
  ];
  if (problems.length > 0) throw new ShoalError('CONFIG_INVALID', problems.join('; '), { problems });
}

function refuseTenant(tenant: unknown): void {
  const problems = tenantProblems(tenant);
  if (problems.length > 0) throw new ShoalError('CONFIG_INVALID', problems.join('; '), { problems });
}

function tenantProblems(tenant: unknown): string[] {
  if (typeof tenant !== 'string') return [`tenant is ${shown(tenant)}; it is a text`];
  if (/^[^:~]{1,128}$/.test(tenant) && tenant.isWellFormed()) return [];
  return [
    `tenant is "${tenant.toWellFormed()}"; it is part of every job id, so it has 1 to 128 characters ` +
      'without ":" and "~", and no half of a surrogate pair',
  ];
}

/** A value in a message, however large it is. */
export function shown(value: unknown): string {
  return inspect(value, { depth: 0, maxArrayLength: 3, maxStringLength: 40 });
}
