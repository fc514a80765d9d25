// The password at the queue server out of a file, named by the parameter `passwordFile` of the URL: secrets of
// Kubernetes, containers and systemd are files, and what is in an environment everybody reads who may look into the
// process. The file is read when a connection is made; a new password wants a restart.

import { readFileSync } from 'node:fs';
import { ShoalError } from '@shoal/contract';
import type { RedisOptions } from 'ioredis';

export const PASSWORD_FILE = 'passwordFile';

/** With the password of the file, where one is named. Throws CONFIG_INVALID; no message has a password in it. */
export function withPasswordFile(credentials: RedisOptions, parameters: URLSearchParams): RedisOptions {
  const path = parameters.get(PASSWORD_FILE);
  if (path === null) return credentials;
  if (credentials.password !== undefined)
    throw invalid(
      'the URL of the queue server has a password and redisPasswordFile names another: take one of them out',
    );
  return { ...credentials, password: passwordIn(path) };
}

/** Its one line, without the end of it. */
function passwordIn(path: string): string {
  let content: string;
  try {
    content = readFileSync(path, 'utf8');
  } catch (error) {
    throw invalid(`the file of redisPasswordFile cannot be read: ${(error as Error).message}`, error);
  }
  const [line = '', ...more] = content.replace(/\r?\n$/, '').split('\n');
  if (line !== '' && more.length === 0) return line;
  const found = line === '' ? 'begins with an empty line or is empty' : `has ${more.length + 1} lines`;
  throw invalid(`the file of redisPasswordFile, ${path}, ${found}: it must hold the password as its one line`);
}

function invalid(message: string, cause?: unknown): ShoalError<'CONFIG_INVALID'> {
  return new ShoalError('CONFIG_INVALID', message, {}, cause);
}
