import { expect, test } from 'vitest';
import { S3Failure } from '@shoal/fetch/s3';
import { putManifest, type ManifestPlace } from './run-manifest.ts';

const RUN = 'a'.repeat(16);
const text = (run: string, rows: number): string => JSON.stringify({ v: 1, run, rows }, null, 1);

function failure(httpStatusCode: number, name: string): S3Failure {
  return new S3Failure(Object.assign(new Error(name), { name, $metadata: { httpStatusCode } }));
}

/** An object with a version, before whose PUTs something happens. */
function place(before: (put: number, own: { text: string | undefined; version: number }) => void) {
  const own: { text: string | undefined; version: number; puts: number } = { text: undefined, version: 0, puts: 0 };
  const bucket: ManifestPlace['bucket'] = {
    async get() {
      const { text: found, version } = own;
      if (found === undefined) return undefined;
      const pieces = (async function* () {
        yield Buffer.from(found);
      })();
      return { version: `"${version}"`, bytes: found.length, pieces };
    },
    async put(_key, bytes, condition) {
      before(++own.puts, own);
      const version = own.text === undefined ? undefined : `"${own.version}"`;
      if (condition !== undefined && condition.version !== version) throw failure(412, 'PreconditionFailed');
      [own.text, own.version] = [Buffer.from(bytes).toString(), own.version + 1];
      return `"${own.version}"`;
    },
  };
  return { own, place: { bucket, key: 'k', name: 's3://b/k', ask: async <Done>(act: () => Promise<Done>) => act() } };
}

test('it is put once, and again over an older one of the same run', async () => {
  const { own, place: there } = place(() => undefined);
  await putManifest(there, RUN, text(RUN, 1));
  await putManifest(there, RUN, text(RUN, 1));
  await putManifest(there, RUN, text(RUN, 2));
  expect([own.puts, own.text]).toEqual([2, text(RUN, 2)]);
});

test('what came between reading and putting is read again; another run’s stays, by name', async () => {
  const same = place((put, own) => {
    if (put === 1) [own.text, own.version] = [text(RUN, 1), 7];
  });
  await putManifest(same.place, RUN, text(RUN, 2));
  expect(same.own.text).toBe(text(RUN, 2));
  const other = place((_, own) => {
    [own.text, own.version] = [text('b'.repeat(16), 1), own.version + 1];
  });
  await expect(putManifest(other.place, RUN, text(RUN, 1))).rejects.toThrow(
    `s3://b/k is no manifest of run ${RUN}: two commands write into one place`,
  );
  expect(other.own.text).toBe(text('b'.repeat(16), 1));
});

test('a store without conditions takes it without one; what it refuses is told', async () => {
  const { own, place: there } = place((put) => {
    if (put === 1) throw failure(501, 'NotImplemented');
  });
  await putManifest(there, RUN, text(RUN, 1));
  expect(own.text).toBe(text(RUN, 1));
  const refusing = place(() => {
    throw failure(403, 'AccessDenied');
  });
  await expect(putManifest(refusing.place, RUN, text(RUN, 1))).rejects.toThrow('AccessDenied');
});
