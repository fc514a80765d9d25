// /v1/files, as OpenAI has it: what batches read and write. A file is stored as it arrives and seen when it is whole; its
// name is only told, and never names anything here.

import type { IncomingMessage } from 'node:http';
import multipart from '@fastify/multipart';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { callerOf } from '../access/caller.ts';
import { checkedBody, missing, oneOf, shown } from '../body-fields.ts';
import type { Gate } from '../gate.ts';
import { Problem, callerLeft, invalid, overloaded } from '../problem.ts';
import type { BatchCounts } from './batch-counts.ts';
import type { BatchStore } from './batch-store.ts';
import { EXPIRES, MAX_FILES_PAGE, config, noSuch, parseExpiresAfter, parseListQuery } from './fields.ts';
import {
  CREATE_FILE_SCHEMA,
  DELETE_FILE_SCHEMA,
  FILE_CONTENT_SCHEMA,
  LIST_FILES_SCHEMA,
  RETRIEVE_FILE_SCHEMA,
} from './openapi-batches.ts';
import { newId, nowSeconds, shownFile, type FileRecord } from './records.ts';

export interface FileRoutesOptions {
  readonly counts: Pick<BatchCounts, 'stored'>;
  readonly maxBytes: number;
  /** Seconds that a file is kept where its upload does not say; undefined: for good. */
  readonly keptSeconds: number | undefined;
}

const MOST_UPLOADS = 16;
const RETRY_UPLOAD_SECONDS = 5;
/** Longest time without a byte of an upload. */
const IDLE_MS = 30_000;
const MAX_NAME = 512;
const FIELDS = ['purpose', 'expires_after', 'expires_after[anchor]', 'expires_after[seconds]'];

interface ById {
  Params: { id: string };
}

export async function addFileRoutes(
  app: FastifyInstance,
  store: BatchStore,
  gate: Gate,
  options: FileRoutesOptions,
): Promise<void> {
  await app.register(multipart, {
    limits: { fileSize: options.maxBytes, files: 1, fields: 8, parts: 9, fieldSize: 4_096, headerPairs: 32 },
    throwFileSizeLimit: false,
  });
  let uploads = 0;
  app.post('/v1/files', { schema: CREATE_FILE_SCHEMA, config }, async (request) => {
    if (!request.isMultipart())
      throw invalid(
        'unsupported_media_type',
        null,
        'a file is sent as multipart/form-data, with the fields "file" and "purpose"',
        415,
      );
    if (uploads >= MOST_UPLOADS)
      throw overloaded('too_many_uploads', `${MOST_UPLOADS} files are being uploaded; try again`, RETRY_UPLOAD_SECONDS);
    uploads += 1;
    try {
      const stored = await upload(request, store, options);
      options.counts.stored(stored);
      return shownFile(stored);
    } finally {
      uploads -= 1;
    }
  });
  app.get('/v1/files', { schema: LIST_FILES_SCHEMA, config }, async (request) => {
    const { purpose, ...asked } = parseListQuery(request.query, {
      most: MAX_FILES_PAGE,
      byDefault: MAX_FILES_PAGE,
      names: ['order', 'purpose'],
    });
    const wanted = (file: FileRecord): boolean => purpose === undefined || file.purpose === purpose;
    const page = await store.page('file', callerOf(request).tenant, { ...asked, wanted });
    if (page === undefined) throw noSuch('file', asked.after ?? '', 'after');
    return listOf(page.data.map(shownFile), page.data, page.hasMore);
  });
  app.get<ById>('/v1/files/:id', { schema: RETRIEVE_FILE_SCHEMA, config }, async (request) =>
    shownFile(await found(request, store)),
  );
  app.get<ById>('/v1/files/:id/content', { schema: FILE_CONTENT_SCHEMA, config }, async (request, reply) => {
    const { tenant, id, bytes } = await found(request, store);
    const pieces = await store.storage.open(store.contentKey(tenant, id));
    if (pieces === undefined) throw noSuch('file', id);
    void reply.header('content-length', bytes).header('content-disposition', `attachment; filename="${id}.jsonl"`);
    return gate.sendBytes(reply, 'application/octet-stream', pieces);
  });
  app.delete<ById>('/v1/files/:id', { schema: DELETE_FILE_SCHEMA, config }, async (request) => {
    const { tenant, id } = await found(request, store);
    const reader = await store.readerOf(tenant, id);
    if (reader !== undefined)
      throw invalid(
        'file_in_use',
        'file_id',
        `the batch ${reader} still reads ${id}; cancel it first, or wait for its end`,
        409,
      );
    await store.remove('file', tenant, id);
    return { id, object: 'file', deleted: true };
  });
}

/** As OpenAI's lists are. */
export function listOf(data: readonly object[], records: readonly { readonly id: string }[], hasMore: boolean): object {
  return {
    object: 'list',
    data,
    first_id: records[0]?.id ?? null,
    last_id: records.at(-1)?.id ?? null,
    has_more: hasMore,
  };
}

async function found(request: FastifyRequest<ById>, store: BatchStore): Promise<FileRecord> {
  const { id } = request.params;
  const file = await store.find('file', callerOf(request).tenant, id);
  if (file === undefined) throw noSuch('file', id);
  return file.record;
}

async function upload(
  request: FastifyRequest,
  store: BatchStore,
  { maxBytes, keptSeconds }: FileRoutesOptions,
): Promise<FileRecord> {
  const tenant = callerOf(request).tenant;
  const id = newId('file');
  const key = store.contentKey(tenant, id);
  const fields: Record<string, unknown> = {};
  let file: { readonly filename: string; readonly bytes: number } | undefined;
  try {
    for await (const part of request.parts()) {
      if (part.type === 'field') {
        const name = checkName(part.fieldname);
        if (Object.hasOwn(fields, name)) throw invalid('invalid_value', name, `"${name}" is there twice; send one`);
        fields[name] = part.value;
      } else {
        if (part.fieldname !== 'file') throw notAField(part.fieldname);
        const bytes = await store.storage.write(key, arriving(request.raw, part.file));
        if (part.file.truncated) throw tooLarge(maxBytes);
        file = { filename: nameOf(part.filename), bytes };
      }
    }
    if (file === undefined) throw missing('file', 'the file itself, as multipart/form-data');
    const { purpose, expires } = parseFields(fields);
    const created = nowSeconds();
    const kept = expires ?? keptSeconds;
    const record: FileRecord = {
      tenant,
      id,
      bytes: file.bytes,
      created_at: created,
      filename: file.filename,
      purpose,
      ...(kept !== undefined && { expires_at: created + kept }),
    };
    return (await store.create('file', record)).record;
  } catch (error) {
    letGo(request.raw);
    await store.storage.remove(key).catch(() => undefined);
    throw refusalOf(error);
  }
}

/** What still comes of an upload that was refused is dropped: the next request of its connection comes behind it. */
function letGo(body: IncomingMessage): void {
  body.unpipe();
  body.resume();
}

function checkName(name: string): string {
  if (FIELDS.includes(name)) return name;
  if (name === 'file')
    throw invalid(
      'invalid_type',
      'file',
      '"file" came as a plain field, without a file name; send it as a file (curl: -F file=@input.jsonl)',
    );
  throw notAField(name);
}

function notAField(name: string): Problem {
  const param = name.slice(0, 80);
  return invalid('unknown_parameter', param, `"${param}" is not a field here; there are file, purpose, expires_after`);
}

function parseFields(fields: Readonly<Record<string, unknown>>): {
  readonly purpose: 'batch';
  readonly expires: number | undefined;
} {
  const { purpose, 'expires_after[anchor]': anchor, 'expires_after[seconds]': seconds, expires_after: packed } = fields;
  if (purpose === undefined) throw missing('purpose', '"batch"');
  oneOf('purpose', purpose, ['batch']);
  const number = typeof seconds === 'string' && /^\d{1,12}$/.test(seconds) ? Number(seconds) : seconds;
  const asked = anchor === undefined && seconds === undefined ? unpacked(packed) : { anchor, seconds: number };
  if (packed !== undefined && (anchor ?? seconds) !== undefined)
    throw invalid(
      'invalid_value',
      'expires_after',
      '"expires_after" is there as JSON and as fields of its own; send one of them',
    );
  return { purpose: 'batch', expires: parseExpiresAfter('expires_after', asked) };
}

/** Some clients send the object as JSON, which is parsed already where its part says so. */
function unpacked(packed: unknown): unknown {
  if (packed === undefined || typeof packed === 'object') return packed;
  try {
    return checkedBody(JSON.parse(String(packed)), ['anchor', 'seconds'], 'expires_after');
  } catch (error) {
    if (error instanceof Problem) throw error;
    throw invalid(
      'invalid_type',
      'expires_after',
      `"expires_after" must be {"anchor": "created_at", "seconds": ${EXPIRES.from} to ${EXPIRES.to}}, found ${shown(packed)}`,
    );
  }
}

/** What is told of it: without folders, and without what is no text. */
function nameOf(given: string | undefined): string {
  const last = (given ?? '').toWellFormed().split(/[/\\]/).at(-1) ?? '';
  // oxlint-disable-next-line no-control-regex
  const plain = last.replaceAll(/[\u0000-\u001f\u007f]/g, '').slice(0, MAX_NAME);
  return plain === '' ? 'file.jsonl' : plain;
}

/** The bytes of an upload, unless none come for a while or the caller leaves. */
async function* arriving(
  raw: IncomingMessage,
  pieces: AsyncIterable<Uint8Array>,
): AsyncGenerator<Uint8Array, void, undefined> {
  let idle: NodeJS.Timeout | undefined;
  let onGone: (() => void) | undefined;
  const over = new Promise<never>((_, reject) => {
    const late = (): void =>
      reject(invalid('request_timeout', null, `nothing of the file came for ${IDLE_MS / 1_000} s; send it again`, 408));
    idle = setTimeout(late, IDLE_MS);
    onGone = () => {
      if (!raw.complete) reject(callerLeft());
    };
    raw.once('close', onGone);
  });
  over.catch(() => undefined);
  const iterator = pieces[Symbol.asyncIterator]();
  try {
    for (;;) {
      const next = await Promise.race([iterator.next(), over]);
      if (next.done === true) return;
      idle?.refresh();
      yield next.value;
    }
  } finally {
    clearTimeout(idle);
    if (onGone !== undefined) raw.off('close', onGone);
    void iterator.return?.().catch(() => undefined);
  }
}

function tooLarge(maxBytes: number): Problem {
  return invalid(
    'file_too_large',
    'file',
    `the file is larger than ${maxBytes} bytes (the setting batchMaxFileBytes); cut it into several`,
    413,
  );
}

/** What the multipart plugin refuses, in our words. */
function refusalOf(error: unknown): unknown {
  const code: unknown = error instanceof Error ? Reflect.get(error, 'code') : undefined;
  switch (code) {
    case 'FST_FILES_LIMIT':
      return invalid('invalid_value', 'file', 'one file goes into one request');
    case 'FST_PARTS_LIMIT':
    case 'FST_FIELDS_LIMIT':
      return invalid('invalid_value', null, 'the form has more fields than file, purpose and expires_after');
    case 'FST_INVALID_MULTIPART_CONTENT_TYPE':
    case 'FST_MULTIPART_PREMATURE_CLOSE':
    case 'FST_PROTO_VIOLATION':
      return invalid('invalid_multipart', null, 'the body is no whole multipart/form-data; send it again');
    default:
      return error instanceof Error &&
        /multipart|Unexpected end|boundary/i.test(error.message) &&
        !(error instanceof Problem)
        ? invalid('invalid_multipart', null, `the body is no multipart/form-data: ${error.message.slice(0, 120)}`)
        : error;
  }
}
