// What may be shown of the URL of a queue server, and of any text that may hold one. The one place that knows:
// settings, errors, logs, `up --json` and whoever else shows an address asks here.
//
// Nothing is cut out of a URL, because a password that was not percent-encoded, a slash or a question mark too few or
// too many, and it would lie where nobody looks. What is shown is put together from what is known to be no secret: the
// scheme, hosts with their ports, a database, the name of a master, a path of a socket, parameters by name. In doubt
// there are three stars.

const HIDDEN = '***';
const SCHEME = /^((?:rediss?(?:\+(?:sentinel|cluster))?|unix|https?):)(\/*)/i;
const HOST = /^(?:\[[0-9a-f:.%]+\]|[a-z0-9._-]+)?(?::\d{1,5})?$/i;
/** Parameters whose values are no secrets; of all others the name alone is shown. */
const SHOWN_PARAMETERS = new Set(['db', 'ca', 'cert', 'key', 'serverName', 'passwordFile']);

/** The URL of a queue server as it may be shown, whatever stands there instead of one. */
export function redactUrl(url: string): string {
  const [, scheme = '', slashes = ''] = SCHEME.exec(url) ?? [];
  const rest = url.slice(scheme.length + slashes.length);
  const isSocket = /^unix:$/i.test(scheme);
  if (isSocket && slashes.length === 3 && !/[@:]/.test(rest)) return `${scheme}//${placeOf(`/${rest}`, true)}`;
  const { place, hasCredentials } = withoutCredentials(rest);
  // Without a scheme, "localhost:6379" is a host; a word may be anything.
  const isPlain = scheme !== '' || hasCredentials || /:\d{1,5}$/.test(place);
  return `${scheme}${slashes}${hasCredentials ? `${HIDDEN}@` : ''}${isPlain ? placeOf(place, isSocket) : HIDDEN}`;
}

/** The text, with what looks like a URL, a password or an API key in it redacted: for messages of others, such as a stack. */
export function redactText(text: string): string {
  return text
    .replaceAll(/\b(?:rediss?(?:\+(?:sentinel|cluster))?|unix):\/*[^\s"'`<>|]*/gi, (found) => redactTail(found))
    .replaceAll(/\b([a-z][a-z0-9+.-]*:\/\/)[^\s"'/]*@/gi, `$1${HIDDEN}@`)
    .replaceAll(/\b(shoal_[a-z0-9]{10}_)[\w-]{20,}/g, `$1${HIDDEN}`)
    .replaceAll(/(\b\w*passw(?:or)?d\w*["']?\s*[=:]\s*["']?)[^\s"'&,}]+/gi, `$1${HIDDEN}`);
}

/** The message of whatever was thrown, redacted. */
export function redactMessage(error: unknown): string {
  return redactText(error instanceof Error ? error.message : String(error));
}

/** A URL inside a sentence ends before the sentence does. */
function redactTail(found: string): string {
  const end = /[).,;:!?\]}]*$/.exec(found)?.[0] ?? '';
  return `${redactUrl(found.slice(0, found.length - end.length))}${end}`;
}

/**
 * Up to the last "@", because a password may hold one that was not encoded. Where a "?" comes before it, it may be in a
 * password or begin the parameters: then there is no telling, but for parameters that we know.
 */
function withoutCredentials(rest: string): { readonly place: string; readonly hasCredentials: boolean } {
  const question = rest.indexOf('?');
  const at = rest.lastIndexOf('@');
  if (at < 0) return { place: rest, hasCredentials: false };
  if (question < 0 || at < question) return { place: rest.slice(at + 1), hasCredentials: true };
  const before = rest.slice(0, question);
  const isOurs = /^(?:sentinel(?:Username|Password)=[^&]*|db=\d+)(?:&(?:sentinel(?:Username|Password)=[^&]*|db=\d+))*$/;
  if (!isOurs.test(rest.slice(question + 1))) return { place: HIDDEN, hasCredentials: true };
  const last = before.lastIndexOf('@');
  return { place: rest.slice(last + 1), hasCredentials: last >= 0 };
}

/** Hosts or a socket, a path, parameters: each where it is one, stars where it is not. */
function placeOf(place: string, isSocket: boolean): string {
  const [, hosts = '', path, query] = isSocket
    ? (/^()(\/?[^?#]*)(?:\?(.*))?$/s.exec(place) ?? [])
    : (/^([^/?#]*)(\/[^?#]*)?(?:\?(.*))?$/s.exec(place) ?? []);
  if (place.includes('#') || !hosts.split(',').every((host) => HOST.test(host))) return HIDDEN;
  return `${hosts}${pathOf(path, isSocket)}${query === undefined ? '' : `?${query.split('&').map(parameterOf).join('&')}`}`;
}

/** A database or the name of a master. Anything else may be the end of a password with a "/" in it. */
function pathOf(path: string | undefined, isSocket: boolean): string {
  if (path === undefined || isSocket || /^\/(?:\d{0,9}|[a-z][a-z0-9_-]{0,63})$/i.test(path)) return path ?? '';
  return `/${HIDDEN}`;
}

function parameterOf(parameter: string): string {
  const [, name = '', value = ''] = /^([^=]*)=?(.*)$/s.exec(parameter) ?? [];
  if (SHOWN_PARAMETERS.has(name) && /^[a-z0-9/._%+~-]*$/i.test(value)) return parameter;
  if (name === 'cells' && /^-?\d{1,9}$/.test(value)) return parameter; // the number of a cluster's cells
  return /^[a-z]{1,32}$/i.test(name) && parameter.includes('=') ? `${name}=${HIDDEN}` : HIDDEN;
}
