// What is said of a file that cannot be read, or does not hold what its name promises.

import { ShoalError } from '@shoal/contract';

export function unreadable(path: string, error: unknown): ShoalError<'FILE_UNREADABLE'> {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  const reason =
    code === 'ENOENT'
      ? 'there is no such file'
      : code === 'EACCES'
        ? 'this user may not read it'
        : code === 'EISDIR'
          ? 'it is a folder'
          : error instanceof Error
            ? error.message
            : String(error);
  return new ShoalError('FILE_UNREADABLE', `cannot read ${path}: ${reason}`, { file: path }, error);
}

export function wrongFile(path: string, found: string, line?: number): ShoalError<'INPUT_INVALID'> {
  return new ShoalError('INPUT_INVALID', `${path}${line === undefined ? '' : `, line ${line}`}: ${found}`, {
    file: path,
    ...(line === undefined ? {} : { line }),
  });
}
