// Hides what nobody but its owner may know, in any text: by what it looks like, and by what it is. For files that leave
// this machine, where one look of a pattern too few would be one too many.

import { readFile } from 'node:fs/promises';
import { readCells, redactText, type Settings } from '@shoal/core';

/** Variables whose values are secrets by their name. */
const SECRET_NAME = /PASSW|SECRET|TOKEN|CREDENTIAL|_KEY$|_KEY_|APIKEY|MASTER_KEY/i;
/** Shorter ones are words of every text. */
const LEAST_CHARACTERS = 4;
const HIDDEN = '***';

/** A function that hides them. Reads the password file, so that its content is known by sight. */
export async function secretsHider(
  settings: Settings,
  environment: Readonly<Record<string, string | undefined>>,
): Promise<(text: string) => string> {
  const file = settings.redisPasswordFile;
  const kept = file === undefined ? '' : await readFile(file, 'utf8').catch(() => '');
  const named = Object.entries(environment).flatMap(([name, value]) =>
    value !== undefined && SECRET_NAME.test(name) && !isPath(value) ? [value] : [],
  );
  const urls = [
    settings.redisUrl,
    settings.payloadServers,
    ...cellAddresses(settings),
    ...Object.values(environment),
  ].flatMap((value) => passwordsIn(value ?? ''));
  const found = [...named, ...urls, kept.trim(), settings.webhookSecret ?? ''];
  const all = [...new Set(found.flatMap((secret) => [secret, encodeURIComponent(secret), jsonOf(secret)]))]
    .filter((secret) => secret.length >= LEAST_CHARACTERS)
    .toSorted((a, b) => b.length - a.length);
  return (text) => redactText(all.reduce((shown, secret) => shown.replaceAll(secret, HIDDEN), text));
}

function cellAddresses({ cells }: Settings): string[] {
  return cells === undefined ? [] : readCells(cells).map(({ address }) => address);
}

/** Of every address in the text, as it stands there and decoded. */
function passwordsIn(text: string): string[] {
  return [...text.matchAll(/[a-z][a-z0-9+.-]*:\/\/[^\s/?#]*?:([^\s]+)@/gi)].flatMap(([, password = '']) => [
    password,
    decoded(password),
  ]);
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** As it stands within a JSON text. */
function jsonOf(secret: string): string {
  return JSON.stringify(secret).slice(1, -1);
}

/** The variable names a file; what is in it is not read. */
function isPath(value: string): boolean {
  return /^[.~]?\//.test(value);
}
