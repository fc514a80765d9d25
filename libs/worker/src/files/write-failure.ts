// Why a file could not be written, for a person.

import { ShoalError } from '@shoal/contract';
import { NO_MORE_FILES, takesNoMoreFiles } from '@shoal/fetch';

const ELSEWHERE = 'or write elsewhere, and run the command again';
const NOT_ALLOWED = 'this user may not write there';
/** Causes of failed writes for a person, by the code of the operating system. */
const WRITE_FAILURES: ReadonlyMap<string, string> = new Map([
  ['ENOSPC', `the disk is full; free some space ${ELSEWHERE}`],
  ['EDQUOT', `the quota of this user on that disk is used up (EDQUOT); free some space ${ELSEWHERE}`],
  ['EFBIG', 'the file would become larger than this user or file system allows (ulimit -f)'],
  ['EACCES', NOT_ALLOWED],
  ['EPERM', NOT_ALLOWED],
  ['EROFS', 'the file system is read-only'],
  [
    'ESTALE',
    'the share on which it lies was mounted anew or went away (ESTALE); run the command again once it is there',
  ],
  ['ENAMETOOLONG', 'its name is too long for a temporary file beside it'],
]);

/** What the operating system says of a failed write, as one sentence for a person. */
export function writeFailure(name: string, error: unknown): ShoalError<'FILE_UNWRITABLE'> {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  const isOutOfFiles = code === 'ENOSPC' && takesNoMoreFiles(name);
  const known = isOutOfFiles
    ? `${NO_MORE_FILES}; remove some ${ELSEWHERE}`
    : typeof code === 'string'
      ? WRITE_FAILURES.get(code)
      : undefined;
  const reason = known ?? (error instanceof Error ? error.message : String(error));
  return new ShoalError('FILE_UNWRITABLE', `cannot write ${name}: ${reason}`, { file: name }, error);
}
