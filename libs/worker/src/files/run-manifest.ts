// The manifest of a run takes the place of its own alone; in a bucket of the one that was read, and of nothing that came
// meanwhile.

import { ShoalError } from '@shoal/contract';
import { S3Failure, gathered, type S3Bucket } from '@shoal/fetch/s3';

/** Two who end a run at once write the same; more than these many who write other things cannot be. */
const MOST_ROUNDS = 5;

export interface ManifestPlace {
  readonly bucket: Pick<S3Bucket, 'get' | 'put'>;
  readonly key: string;
  /** s3://BUCKET/KEY */
  readonly name: string;
  /** Waits for the store, and says what it says. */
  readonly ask: <Done>(act: () => Promise<Done>) => Promise<Done>;
}

/** FILE_UNWRITABLE where that of another run lies there. */
export async function putManifest(place: ManifestPlace, run: string, text: string): Promise<void> {
  for (let round = 1; ; round++) {
    const found = await readManifestObject(place);
    if (found?.text === text) return;
    if (found !== undefined) refuseOtherManifest(place.name, found.text, run);
    if (await isPut(place, text, found?.version, round === MOST_ROUNDS)) return;
  }
}

export async function readManifestObject({
  bucket,
  key,
  ask,
}: ManifestPlace): Promise<{ readonly text: string; readonly version: string } | undefined> {
  return ask(async () => {
    const found = await bucket.get(key);
    return found && { text: (await gathered(found.pieces)).toString(), version: found.version };
  });
}

/** False where another one is there by now. */
async function isPut(
  { bucket, key, ask }: ManifestPlace,
  text: string,
  version: string | undefined,
  isLast: boolean,
): Promise<boolean> {
  return ask(async () => {
    try {
      await bucket.put(key, Buffer.from(text), { version });
      return true;
    } catch (error) {
      if (!(error instanceof S3Failure)) throw error;
      if (error.kind === 'changed' && !isLast) return false;
      if (error.code !== 'NotImplemented') throw error;
      await bucket.put(key, Buffer.from(text)); // a store without conditions
      return true;
    }
  });
}

/** Throws FILE_UNWRITABLE where what lies there is not of this run. */
export function refuseOtherManifest(name: string, text: string, run: string): void {
  if (text.includes(`"run": ${JSON.stringify(run)}`)) return;
  throw new ShoalError(
    'FILE_UNWRITABLE',
    `${name} is no manifest of run ${run}: two commands write into one place, and their objects lie over each other. ` +
      'Empty it, and run one of them again',
    { file: name },
  );
}

/** Somebody else's object has the name. */
export function takenName(name: string, run: string): ShoalError<'FILE_UNWRITABLE'> {
  return new ShoalError(
    'FILE_UNWRITABLE',
    `${name} is there and not of run ${run}: two commands write into one place, or it was there before. Name another ` +
      'place for one of them, or remove it and run the command again',
    { file: name },
  );
}
